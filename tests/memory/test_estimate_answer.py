"""The estimate as a sentence, and a model itself as what is asked about."""

import copy
import re
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils import models
from course_utils.distributed import launch
from course_utils.errors import CourseError
from course_utils.memory import Recipe, Workload, dry_run, estimate, measure
from course_utils.settings import SCALES
from course_utils.units import format_bytes

FEW = Recipe(batch=2, sequence=16)
SMALL = SCALES["smoke"]
EIGHT_SHARES = {"zero_stage": 3, "ranks": 8}


def small(family="llama", labels=None, **changes):
    return models.build(family, labels=labels, scale=SMALL, **changes)


def sizes_in(text):
    """The sizes at the beginning of the printed answer's lines of terms, in bytes."""
    units = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}
    found = re.findall(r"^ +([\d.,]+) (\w+)  ", text, re.MULTILINE)
    return [float(figure.replace(",", "")) * units[unit] for figure, unit in found]


@pytest.mark.parametrize("changes", [{}, {"checkpointing": True}, {"device": "cuda", "zero_stage": 3, "ranks": 4}])
def test_printed_it_says_how_much_when_and_for_what(changes):
    answer = estimate("llama-7b", replace(FEW, sequence=512, **changes))
    text = str(answer)
    assert text.startswith(f"peak: {format_bytes(answer.peak)} on ")
    assert text.splitlines()[0].endswith(f"at this instant: {answer.peak_instant.name}")
    assert sum(sizes_in(text)) == pytest.approx(answer.peak, rel=0.01)
    assert [term.name in text for term in answer.peak_instant.terms[:5]] == [True] * 5
    shown = set().union(*(re.findall(r"[a-zA-Z]\d*", term.formula) for term in answer.peak_instant.terms[:5]))
    flat = " ".join(text.split())
    assert all(f"{letter}={answer.sizes[letter]} (" in flat for letter in shown)
    assert len(text.splitlines()) <= 14
    assert max(map(len, text.splitlines()[-3:])) <= 88
    assert repr(answer) == text


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (Recipe(), "on the CPU, at"),
        (Recipe(device="cuda"), "takes all at once there: 'adamw-foreach'"),
        (Recipe(ranks=8), "on each of 8 ranks, at .*ranks: each keeps everything .*buffers of communication"),
        (Recipe(zero_stage=1, ranks=8), "on each of 8 ranks, at .*buffers of communication"),
        (Recipe(precision="autocast"), "weights in 16 bits: .*until backward has used them not counted"),
        (Recipe("sgd", "autocast", checkpointing=True, **EIGHT_SHARES), "kept until forward ends, whole"),
        (Recipe("sgd", "autocast", **EIGHT_SHARES), "whole on every rank .with FSDP's MixedPrecisionPolicy"),
    ],
)
def test_it_says_what_was_counted_where_it_could_be_taken_otherwise(recipe, said):
    assert re.search(said, " ".join(str(estimate("gpt2-large", recipe)).split()))


def test_it_says_nothing_of_what_was_not_asked():
    plain = str(estimate("gpt2-large", Recipe()))
    assert not re.search("ranks|adamw|16 bits|communication|CUDA", plain)
    assert "adamw" not in str(estimate("gpt2-large", Recipe("adamw-foreach", device="cuda")))


def test_ranks_without_a_stage_keep_everything():
    assert estimate("gpt2-large", Recipe(ranks=8)).by_instant() == estimate("gpt2-large", Recipe()).by_instant()


class CopiesOfParameters(TorchDispatchMode):
    """Bytes of the casts of a model's parameters."""

    def __init__(self, model):
        super().__init__()
        self.parameters, self.bytes = {p.data_ptr() for p in model.parameters()}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **kwargs or {})
        if function is torch.ops.aten._to_copy.default and args[0].data_ptr() in self.parameters:
            self.bytes += result.nbytes
        return result


@pytest.mark.parametrize("family", models.FAMILIES)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_autocasts_copies_of_the_weights_are_a_term_of_their_own(family, checkpointing):
    config = models.configuration(family, scale=SMALL)
    recipe = replace(FEW, precision="autocast", checkpointing=checkpointing, attention="eager")
    model, _, (batch,) = Workload(config, recipe).build()
    with CopiesOfParameters(model) as copies, torch.autocast("cpu", torch.bfloat16):
        model(**batch)
    (forward,) = [instant for instant in estimate(config, recipe).instants if instant.name == "forward"]
    booked = [term.bytes for term in forward.terms if term.name == "activations, weights in 16 bits"]
    assert booked == [copies.bytes]


def whole_copies_saved(by_policy):
    """On one of several ranks: bytes of weights that backward will read, whole, of three layers sharded by FSDP."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(3)])
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if by_policy else MixedPrecisionPolicy()
    for layer in (*model, model):
        fully_shard(layer, mp_policy=policy)
    with torch.autocast("cpu", torch.bfloat16, enabled=not by_policy):
        node = model(torch.ones(2, 64)).grad_fn
    saved = 0
    while node is not None:
        weight = getattr(node, "_saved_mat2", None)
        saved += 0 if weight is None else weight.untyped_storage().nbytes()
        node = next((before for before, _ in node.next_functions if "AccumulateGrad" not in str(before)), None)
    return saved


@pytest.mark.slow
def test_under_fsdp_every_rank_keeps_autocasts_copies_whole_and_a_policy_keeps_none():
    found = {by_policy: launch(whole_copies_saved, 2, by_policy) for by_policy in (False, True)}
    assert all(size >= 2 * 2 * 64 * 64 for size in found[False])  # the first layer's input needs no gradient
    assert all(size <= 2 * 64 * 64 for size in found[True])  # the last one's own unit may still be gathered


@pytest.mark.parametrize("family", models.FAMILIES)
@pytest.mark.parametrize("labels", [None, 3])
def test_of_a_model_the_answer_is_that_of_its_configuration(family, labels):
    model = small(family, labels)
    assert estimate(model, FEW).peak == estimate(model.config, FEW).peak
    model.config.architectures = None  # as where a model is made by its class
    assert estimate(model, FEW).peak > 0


def frozen(model):
    model.get_input_embeddings().requires_grad_(False)
    return model


def with_another_head(model):
    model.lm_head = nn.Linear(SMALL.width, 9)
    return model


def eager(model):
    model.set_attn_implementation("eager")
    return model


def checkpointed(model):
    # The newer of two names for the same thing; Transformers 5.0 knows only the older.
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    return model


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (frozen(small()), "1 of 12 parameter tensors are frozen, such as model.embed_tokens.weight, .*dry_run"),
        (with_another_head(small()), "not those of its configuration, such as lm_head.bias; .*dry_run"),
        (small().half(), "The parameters are float16, and the formulas know float32 or bfloat16; .*dry_run"),
        (small().bfloat16(), r"precision='bf16' and the recipe precision='fp32'; write Recipe\(precision='bf16'\)"),
        (eager(small()), r"write Recipe\(attention='eager'\), or give model.config"),
        (checkpointed(small()), r"write Recipe\(checkpointing=True\), or give model.config"),
        (nn.Linear(2, 2), "A Linear carries no configuration for the formulas; .*dry_run"),
        (small().model, "no formulas for LlamaModel"),
    ],
    ids=["frozen", "head", "dtype", "precision", "attention", "checkpointing", "bare", "part"],
)
def test_what_the_formulas_would_overlook_in_a_model_is_refused(model, sentence):
    with pytest.raises(CourseError, match=sentence) as error:
        estimate(model, FEW)
    assert "\n" not in str(error.value)


def test_the_model_itself_stays_as_it_was():
    model = small()
    before = copy.deepcopy(model.config.to_dict())
    estimate(model, FEW)
    assert model.config.to_dict() == before


def test_a_recipe_that_agrees_with_the_model_is_taken():
    assert estimate(small().bfloat16(), replace(FEW, precision="bf16")).peak < estimate(small(), FEW).peak
    assert estimate(checkpointed(small()), replace(FEW, checkpointing=True)).peak > 0
    assert estimate(small(), replace(FEW, checkpointing=True)).peak > 0  # a question: what if


def test_frozen_weights_are_counted_by_the_dry_run_that_the_refusal_names():
    work = Workload(models.configuration("gpt2", scale=SMALL), FEW)

    def build():
        model, _, batches = work.build()
        frozen(model)
        return model, torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), foreach=False), batches

    built = build()
    measured = measure(lambda: work.step(*built), *built[:2])
    assert dry_run(build, work.step).peak == pytest.approx(measured.peak, rel=0.005)
    assert measured.peak < 0.9 * estimate(work.config, FEW).peak
