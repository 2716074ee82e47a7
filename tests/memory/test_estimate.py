"""The pencil against the allocator, against the models themselves, and against what has been published."""

import re

import pytest
import sympy
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, LlamaConfig

from course_utils import models
from course_utils.errors import CourseError
from course_utils.memory import Workload, distinct_bytes
from course_utils.memory.allocator import allocator_of
from course_utils.memory.estimate import Shards, estimate, parameter_shapes
from course_utils.memory.estimate.report import KINDS
from course_utils.memory.phases import announced_to
from course_utils.memory.recipe import Recipe
from course_utils.models import ConvNetConfig


def distilbert(labels=3, **changes):
    sizes = {
        "dim": 96,
        "hidden_dim": 200,
        "n_layers": 2,
        "n_heads": 4,
        "vocab_size": 700,
        "max_position_embeddings": 80,
    }
    return models.configuration("distilbert", labels=labels, **{**sizes, **changes})


def gpt2(labels=None, **changes):
    sizes = {"n_embd": 96, "n_layer": 2, "n_head": 4, "vocab_size": 700, "n_positions": 80}
    return models.configuration("gpt2", labels=labels, **{**sizes, **changes})


def llama(labels=None, **changes):
    sizes = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"vocab_size": 700, "intermediate_size": 250, "max_position_embeddings": 80}
    return models.configuration("llama", labels=labels, **{**sizes, **changes})


CONVNET = ConvNetConfig((24, 40), depth=2, image=48)
CONFIGURATIONS = [
    distilbert(),
    distilbert(None),
    gpt2(),
    gpt2(4, n_inner=130),
    llama(),
    llama(5, attention_bias=True, mlp_bias=True),
    llama(tie_word_embeddings=True, num_key_value_heads=4),
    CONVNET,
    ConvNetConfig((16,), depth=3, image=17, channels=1),
    models.configuration("llama-7b"),
    models.configuration("distilbert-base-cased", labels=2),
]


@pytest.mark.parametrize("config", CONFIGURATIONS, ids=lambda config: type(config).__name__)
def test_parameters_are_those_of_the_real_model(config):
    with torch.device("meta"):
        model = models.from_configuration(config)
    real = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert list(parameter_shapes(config).items()) == list(real.items())


def measured_step(config, recipe):
    """What was there before the second step, by kind, and the step's peak, as the allocator has them."""
    workload = Workload(config, recipe)
    model, optimizer, batches = workload.build()
    allocator = allocator_of(torch.device("cpu"))
    with allocator.recording():
        workload.step(model, optimizer, batches)
        with allocator.measured(), announced_to(allocator.begin_phase, model, optimizer):
            workload.step(model, optimizer, batches)
    resident = {
        "parameters": distinct_bytes(model.parameters()),
        "buffers": distinct_bytes(model.buffers()),
        "inputs": distinct_bytes(tensor for batch in batches for tensor in batch.values()),
        "optimizer state": distinct_bytes(
            value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)
        ),
    }
    account, start = allocator.account(), sum(resident.values())
    return resident, {phase: start + above for phase, above in account.by_phase.items()}


def predicted_phases(predicted):
    """The fullest instant of each phase that `Workload.step` marks."""
    phases = {}
    for name, kinds in predicted.by_instant().items():
        phase = {"forward": "forward", "clipping": "update", "update": "update"}.get(name, "backward")
        phases[phase] = max(phases.get(phase, 0), sum(kinds.values()))
    return phases


FEW = {"batch": 6, "sequence": 48}
CASES = [
    (distilbert(), {}),
    (distilbert(), {"optimizer": "sgd", "accumulation": 3}),
    (distilbert(), {"checkpointing": True, "clipping": True}),
    (distilbert(), {"attention": "eager", "optimizer": "adafactor"}),
    (distilbert(), {"precision": "autocast", "batch": 2}),
    (distilbert(), {"precision": "autocast", "attention": "eager", "checkpointing": True, "batch": 2}),
    (distilbert(None), {"optimizer": "adamw-foreach"}),
    (distilbert(None, vocab_size=9000), {"precision": "autocast", "batch": 1}),
    (distilbert(attention_dropout=0.0, dropout=0.0), {"clipping": True}),
    (gpt2(), {}),
    (gpt2(), {"checkpointing": True, "accumulation": 2}),
    (gpt2(), {"attention": "eager", "precision": "bf16", "batch": 1}),
    (gpt2(vocab_size=9000), {"optimizer": "sgd", "batch": 1}),
    (gpt2(vocab_size=9000), {"batch": 1, "sequence": 8}),
    (gpt2(4, activation_function="relu"), {"optimizer": "adafactor-transformers", "batch": 1, "sequence": 4}),
    (llama(), {}),
    (llama(), {"precision": "bf16", "batch": 1, "optimizer": "adafactor"}),
    (llama(5), {"checkpointing": True}),
    (distilbert(), {"checkpointing": True, "segments": 1}),
    (gpt2(), {"checkpointing": True, "segments": 2, "accumulation": 2}),
    (llama(5), {"checkpointing": True, "segments": 2, "attention": "eager"}),
    (llama(5, num_key_value_heads=1), {"optimizer": "sgd"}),
    (llama(tie_word_embeddings=True, vocab_size=9000), {"precision": "autocast", "batch": 1}),
    (llama(attention_dropout=0.1), {"attention": "eager", "accumulation": 2}),
    (distilbert(None, tie_word_embeddings=False), {"optimizer": "sgd"}),
    (llama(vocab_size=50), {}),  # so small a vocabulary moves the peak from the loss into the blocks
    (llama(3000, vocab_size=50), {"optimizer": "sgd"}),  # so many classes move it to the choice of the last token
    (gpt2(tie_word_embeddings=False, activation_function="relu"), {"clipping": True}),
    (gpt2(vocab_size=50), {"precision": "autocast", "attention": "eager"}),
    (distilbert(activation="gelu_new"), {"checkpointing": True}),
    (llama(num_key_value_heads=1, vocab_size=50), {"attention": "eager", "checkpointing": True}),
    (llama(num_key_value_heads=1, vocab_size=50), {"attention": "eager", "batch": 1}),
    (
        llama(vocab_size=50, attention_dropout=0.1),
        {"precision": "autocast", "attention": "eager", "checkpointing": True},
    ),
    (CONVNET, {}),
    (CONVNET, {"optimizer": "adafactor", "accumulation": 2, "clipping": True}),
    (CONVNET, {"precision": "autocast", "batch": 3}),
    (CONVNET, {"precision": "bf16", "batch": 2}),
    (ConvNetConfig((48,), depth=2, image=64, channels=1), {"optimizer": "sgd"}),
    (ConvNetConfig((32,), depth=2, image=24, channels=1), {"batch": 1}),
]


def name_of(value):
    """Short names for the cases: the architecture, or what the recipe changes."""
    if isinstance(value, dict):
        return " ".join(f"{key}={one}" for key, one in value.items()) or "plain"
    return (getattr(value, "architectures", None) or [type(value).__name__])[0]


@pytest.mark.parametrize(("config", "changes"), CASES, ids=name_of)
def test_the_peak_of_every_phase_is_what_the_allocator_counts(config, changes, monkeypatch):
    recipe = Recipe(**{**FEW, **changes})
    if recipe.precision != "fp32":  # oneDNN's scratch space in half precision differs between processors and threads
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    resident, phases = measured_step(config, recipe)
    predicted = estimate(config, recipe)
    before = predicted.peak_instant.by_kind
    assert {kind: before.get(kind, 0) for kind in resident} == resident
    assert predicted_phases(predicted) == pytest.approx(phases, rel=2e-3)


@pytest.mark.parametrize("config", [distilbert(), gpt2(), llama(5)], ids=name_of)
def test_what_is_saved_on_disk_takes_no_memory(config):
    """Nothing that is saved hides how long local names live, so it is a little less exact."""
    recipe = Recipe(**FEW, saved_on_disk=True, accumulation=2)
    _, phases = measured_step(config, recipe)
    assert predicted_phases(estimate(config, recipe)) == pytest.approx(phases, rel=0.02)
    assert phases["backward"] < 0.9 * measured_step(config, Recipe(**FEW, accumulation=2))[1]["backward"]


def refuse(*args, **options):
    raise AssertionError("the pencil works from sizes alone")


class NoOperators(TorchDispatchMode):
    """Refuses every operator, those that make a tensor among them."""

    __torch_dispatch__ = refuse


@pytest.mark.parametrize("changes", [{}, {"checkpointing": True, "clipping": True}], ids=name_of)
def test_nothing_is_built_and_nothing_is_run(changes, monkeypatch):
    config, recipe = gpt2(), Recipe(**FEW, **changes)
    monkeypatch.setattr(nn.Module, "__init__", refuse)
    with NoOperators(), pytest.raises(AssertionError, match="sizes alone"):
        torch.ones(1)
    with NoOperators():
        assert not estimate(config, recipe).working().empty


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (distilbert(), {"clipping": True}),
        (gpt2(), {"attention": "eager", "checkpointing": True, "accumulation": 2}),
        (llama(5), {"precision": "autocast"}),
        (llama(), {"optimizer": "adamw8bit", "precision": "bf16"}),
        (CONVNET, {"optimizer": "adafactor"}),
        (gpt2(), {"zero_stage": 1, "ranks": 3, "clipping": True}),
        (gpt2(), {"zero_stage": 3, "ranks": 4, "device": "cuda", "precision": "bf16", "optimizer": "sgd"}),
    ],
    ids=name_of,
)
def test_every_formula_gives_its_bytes(config, changes):
    predicted = estimate(config, Recipe(**{**FEW, **changes}))
    letters = {name: sympy.Symbol(name) for name in predicted.sizes}
    values = {letters[name]: size for name, size in predicted.sizes.items()}
    for instant in predicted.instants:
        for term in instant.terms:
            assert sympy.ceiling(sympy.sympify(term.formula, locals=letters).subs(values)) == pytest.approx(
                term.bytes, abs=64
            )
        assert sum(term.bytes for term in instant.terms) == instant.bytes == sum(instant.by_kind.values())


def block_activations(**changes):
    """Formula, and value for one block, of what a block of GPT-2 in 2-byte precision saves, with the GELU of the paper."""
    config = gpt2(n_embd=1024, n_head=16, n_inner=None, n_positions=1024, activation_function="gelu")
    recipe = Recipe(precision="bf16", attention="eager", batch=2, sequence=1024, **changes)
    predicted = estimate(config, recipe)
    instant = next(instant for instant in predicted.instants if instant.name == "backward of output layer")
    (term,) = [term for term in instant.terms if term.kind == "activations" and "2 blocks" in term.name]
    return term.formula, term.bytes / 2, predicted.sizes


@pytest.mark.parametrize(("device", "linear", "square"), [("cuda", 34, 5), ("cpu", 36, 6)])
def test_activations_of_a_block_follow_korthikanti(device, linear, square):
    """Korthikanti et al. 2022, section 4.1; on the CPU the three dropout masks have two bytes an element instead of one."""
    formula, size, n = block_activations(device=device)
    b, s, h, a = (n[letter] for letter in "bsha")
    assert size == pytest.approx(s * b * h * (linear + square * a * s / h), rel=1e-3)
    letters = {name: sympy.Symbol(name) for name in n}
    one = sympy.expand(sympy.sympify(formula, locals=letters).subs(letters["f"], 4 * letters["h"]) / 2)
    assert one.coeff(letters["b"] * letters["h"] * letters["s"]) == linear
    assert one.coeff(letters["a"] * letters["b"] * letters["s"] ** 2) == square


def test_seven_billion_parameters_are_fullest_in_the_update_and_checkpointing_buys_nothing():
    recipe = {"precision": "bf16", "batch": 1, "sequence": 2048}
    plain, checkpointed = (estimate("llama-7b", Recipe(checkpointing=on, **recipe)) for on in (False, True))
    assert plain.peak_instant.name == checkpointed.peak_instant.name == "update"
    assert plain.peak == checkpointed.peak
    forward = [estimated.by_instant()["forward"]["activations"] for estimated in (plain, checkpointed)]
    assert forward[1] < forward[0] / 10


def test_zero_divides_as_its_paper_says():
    """Rajbhandari et al. 2020, figure 1: 7.5 billion parameters, 64 ranks, 12 bytes of state for each parameter."""
    parameters, gigabytes = 7_500_000_000, []
    for stage in range(4):
        shards = Shards(stage, 64)
        kept = (
            shards.of_parameters(2 * parameters),
            shards.of_gradients(2 * parameters),
            shards.of_state(12 * parameters),
        )
        gigabytes.append(round(sum(kept) / 1e9, 1))
    assert gigabytes == [120.0, 31.4, 16.6, 1.9]


def test_stage_three_keeps_a_part_and_gathers_two_blocks():
    one = estimate(gpt2(), Recipe(**FEW)).by_instant()
    shared = estimate(gpt2(), Recipe(**FEW, zero_stage=3, ranks=4)).by_instant()
    tensors = len(parameter_shapes(gpt2()))
    for kind in ("parameters", "gradients", "optimizer state"):
        whole, part = one["end of backward"][kind], shared["end of backward"][kind]
        assert whole / 4 <= part <= whole / 4 + tensors
    block = sum(torch.Size(shape).numel() for name, shape in parameter_shapes(gpt2()).items() if ".h.0." in name)
    more = shared["forward"]["temporaries"] - one["forward"].get("temporaries", 0)
    assert more == 2 * 4 * block
    assert "temporaries" not in shared["end of backward"]


def test_offloading_takes_the_state_and_the_update_from_the_device():
    kept = estimate(gpt2(), Recipe(**FEW, device="cuda"))
    moved = estimate(gpt2(), Recipe(**FEW, device="cuda", offload=True))
    state = kept.by_instant()["forward"]["optimizer state"]
    assert kept.by_instant()["forward"].keys() - moved.by_instant()["forward"].keys() == {"optimizer state"}
    assert kept.instants[0].bytes - moved.instants[0].bytes == state
    assert "update" in kept.by_instant()
    assert "update" not in moved.by_instant()


def test_cuda_keeps_smaller_masks_and_rounds_up():
    cpu, cuda = (estimate(gpt2(), Recipe(**FEW, device=device)).by_instant()["forward"] for device in ("cpu", "cuda"))
    assert cuda["activations"] < cpu["activations"]
    assert all(size % 512 == 0 for size in cuda.values())


def test_few_instants_are_reported_and_in_the_order_of_the_step():
    predicted = estimate(distilbert(), Recipe(**FEW, clipping=True))
    names = [instant.name for instant in predicted.instants]
    assert names[:3] == ["forward", "backward of output layer", "backward of block 2"]
    assert names[-5:] == ["backward of block 1", "backward of embedding", "end of backward", "clipping", "update"]
    assert len(estimate("llama-7b", Recipe()).instants) <= 9
    assert all(set(kinds) <= set(KINDS) for kinds in predicted.by_instant().values())
    assert predicted.peak == max(sum(kinds.values()) for kinds in predicted.by_instant().values())


def test_the_working_of_any_instant_can_be_shown():
    predicted = estimate(llama(), Recipe(**FEW))
    assert predicted.working("update")["bytes"].sum() == sum(predicted.by_instant()["update"].values())
    with pytest.raises(CourseError, match=r"'lunch'; choose one of forward, backward of output layer"):
        predicted.working("lunch")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"optimizer": "lion"}, r"No optimizer is called 'lion'; choose one of sgd, adamw"),
        ({"precision": "fp8"}, r"No precision is called 'fp8'"),
        ({"attention": "flash"}, r"No attention is called 'flash'; choose one of sdpa, eager"),
        ({"device": "tpu"}, r"No device is called 'tpu'"),
        ({"zero_stage": 4}, r"No zero_stage is called 4"),
        ({"batch": 0}, r"batch must be a whole number from 1 on, not 0"),
        ({"sequence": -1}, r"sequence must be"),
        ({"accumulation": 0}, r"accumulation must be"),
        ({"ranks": 1.5}, r"ranks must be"),
        ({"zero_stage": 2}, r"nothing to shard over with ranks=1; give more ranks"),
        ({"offload": True}, r"take device='cuda'"),
        ({"segments": 2}, "add checkpointing=True"),
        ({"segments": 0, "checkpointing": True}, "segments must be a whole number from 1 on"),
        ({"saved_on_disk": True, "checkpointing": True}, "leave one of the two out"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(wrong, sentence):
    with pytest.raises(CourseError, match=sentence):
        Recipe(**wrong)


@pytest.mark.parametrize(
    ("config", "recipe", "sentence"),
    [
        ("gpt5", Recipe(), "No model is called 'gpt5'"),
        (object(), Recipe(), "This object does not say which model it is for; set its `architectures`"),
        (
            LlamaConfig(architectures=["T5"]),
            Recipe(),
            "no formulas for T5; take one of DistilBertFor.*dry_run",
        ),
        (CONVNET, Recipe(checkpointing=True), "no blocks to checkpoint"),
        (gpt2(), Recipe(sequence=8, checkpointing=True, segments=3), "2 blocks cannot be cut into 3 segments"),
        (gpt2(), Recipe(sequence=81), "81 tokens is longer than the model's 80 positions"),
        (llama(hidden_act="mish"), Recipe(sequence=8), "no formula for the activation 'mish'"),
        (
            GPT2Config(n_embd=0, architectures=["GPT2LMHeadModel"]),
            Recipe(),
            "n_embd must be a whole number from 1 on, not 0",
        ),
        (GPT2Config(n_layer=0, architectures=["GPT2LMHeadModel"]), Recipe(), "n_layer must be a whole number"),
        (GPT2Config(n_head=5, architectures=["GPT2LMHeadModel"]), Recipe(), "768 does not divide by 5 attention heads"),
    ],
    ids=["name", "object", "another", "ConvNet", "segments", "positions", "activation", "width", "depth", "heads"],
)
def test_a_model_that_does_not_suit_is_refused(config, recipe, sentence):
    with pytest.raises(CourseError, match=sentence):
        estimate(config, recipe)


@pytest.mark.parametrize(
    "config", [models.configuration("llama"), models.ConvNetConfig((8, 16))], ids=["llama", "convnet"]
)
def test_every_letter_of_a_formula_has_a_meaning(config):
    result = estimate(config, Recipe(batch=2, sequence=16))
    used = set().union(*(re.findall(r"[a-zA-Z]\d*", term.formula) for one in result.instants for term in one.terms))
    assert used <= set(result.letters)
    assert all(result.letters.values())
