"""The estimate of any model: the first answers are dry runs, the next ones formulas that equal dry runs."""

import re
from dataclasses import replace

import pytest
import torch
from llamas import dry, value_of
from torch import nn
from torch.nn import functional as F
from transformers import BertConfig, BertModel

from course_utils import memory, models
from course_utils.errors import CourseError
from course_utils.memory import Recipe, estimate, measure
from course_utils.memory.formulas.trial import try_recipe
from course_utils.memory.step.model import source_of
from course_utils.memory.step.quantized import quantize_linears

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
SMALL = {"hidden_size": 64, "intermediate_size": 160, "vocab_size": 300, **HEADS}
# Depth is worked out from five blocks on.
LLAMA, SHALLOW = (
    models.configuration("llama-7b", **SMALL, head_dim=16, num_hidden_layers=blocks, max_position_embeddings=512)
    for blocks in (5, 2)
)
ON_CUDA = Recipe("adamw-foreach", "autocast", device="cuda", clipping=True)


class Regression(nn.Module):
    """A network of one's own that returns its loss."""

    def __init__(self, width=48):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x, y):
        return F.mse_loss(self.layers(x).squeeze(-1), y)


def pairs(b, s):
    return torch.randn(b, 10), torch.randn(b)


def pairs_in_bf16(b, s):
    return torch.randn(b, 10).bfloat16(), torch.randn(b).bfloat16()


@pytest.mark.parametrize(
    ("model", "recipe", "batch"),
    [
        (SHALLOW, Recipe(batch=2, sequence=40), None),
        (models.ConvNetConfig((8, 16), image=16), Recipe("sgd", batch=4), None),
        (Regression, Recipe(batch=64), pairs),
        (Regression(), Recipe("momentum", batch=64), pairs),
        (Regression, Recipe("adamw", batch=64, precision="bf16-masters"), pairs_in_bf16),
    ],
    ids=["a configuration", "pictures", "a function", "a module", "master weights"],
)
def test_the_first_answer_is_what_the_allocator_counts(model, recipe, batch):
    workload = memory.Workload(model, recipe, batch)
    predicted = estimate(model, recipe, batch=batch)
    assert predicted.peak == pytest.approx(measure(workload.build, workload.step, timed=0).peak, rel=0.002)
    assert predicted.basis == "a dry run of just this step"


@pytest.mark.parametrize(
    "recipe",
    [
        ON_CUDA,
        pytest.param(Recipe("sgd"), marks=pytest.mark.slow),
        pytest.param(Recipe("adafactor", checkpointing=True, accumulation=2), marks=pytest.mark.slow),
        pytest.param(Recipe("sgd", zero_stage=3, ranks=4, device="cuda"), marks=pytest.mark.slow),
    ],
    ids=lambda recipe: f"{recipe.optimizer} {recipe.precision} {recipe.zero_stage}",
)
def test_further_sizes_are_formulas_and_equal_dry_runs(recipe):
    first = estimate(LLAMA, replace(recipe, batch=4, sequence=64))
    assert first.basis == "a dry run of 3 of its 5 blocks"
    first.working()  # whose formulas are then there
    for batch, sequence in ((3, 96), (9, 256)):
        predicted = first.with_fields(batch=batch, sequence=sequence)
        assert "formulas found from" in predicted.basis, predicted.basis
        usage = dry(predicted.finder.source, predicted.recipe)
        assert predicted.peak == usage.peak
        assert predicted.peak_instant.name == usage.peak_phase
        assert predicted.peak_instant.by_kind == usage.split


def test_one_example_has_formulas_of_its_own():
    config = models.configuration("llama-7b", **SMALL, head_dim=16, num_hidden_layers=5)
    first = estimate(config, Recipe(batch=1, sequence=64))
    first.working()
    predicted = first.with_fields(sequence=128)
    assert "formulas found" in predicted.basis
    assert predicted.peak == dry(config, predicted.recipe).peak
    assert first.with_fields(batch=2).basis == "a dry run of 3 of its 5 blocks", "two examples are another regime"


@pytest.mark.slow
def test_beyond_what_was_confirmed_it_asks_again():
    """With a sliding window, a formula for lengths below it is wrong above, and must not be used there."""
    from transformers import MistralConfig

    config = MistralConfig(**SMALL, head_dim=16, num_hidden_layers=5, sliding_window=100, max_position_embeddings=2048)
    first = estimate(config, Recipe("sgd", batch=2, sequence=32))
    for sequence in (48, 256):
        predicted = first.with_fields(sequence=sequence)
        assert predicted.peak == dry(config, predicted.recipe).peak, predicted.basis


def test_the_working_is_the_whole_sum_and_its_formulas_are_true():
    predicted = estimate(LLAMA, replace(ON_CUDA, batch=4, sequence=64))
    for instant in predicted.by_instant():
        table = predicted.working(instant)
        assert table["bytes"].sum() == sum(predicted.by_instant()[instant].values())
        for _, row in table.iterrows():
            assert value_of(row.formula, predicted.sizes) == row["bytes"], row.formula
    assert "5 × (" in predicted.working()["formula"].str.cat()
    with pytest.raises(CourseError, match="No instant is called 'lunch'; choose one of forward"):
        predicted.working("lunch")


def test_it_prints_what_somebody_wants_to_read():
    text = str(estimate(LLAMA, replace(ON_CUDA, batch=4, sequence=64)))
    lines = text.splitlines()
    assert re.match(r"peak: [\d.]+ [KM]iB on a GPU, in this phase: \w+", lines[0])
    assert "parameters of 5 model.layers = 5 × (" in text
    assert "known from a dry run of 3 of its 5 blocks" in text
    assert "not counted" in text
    assert all(len(line) <= 130 for line in lines)


def test_documents_of_a_packed_row_do_not_see_each_other():
    """Transformers makes a mask from positions that restart only if the model has no cache."""
    packed = Recipe(batch=2, sequence=40, packed=True)
    model, _, (batch,) = memory.Workload(SHALLOW, packed).build()
    before = model(**batch).logits
    batch["input_ids"][:, 0] = 1 + batch["input_ids"][:, 0] % 200
    differs = (model(**batch).logits != before).any(-1).any(0)
    assert differs[:20].all()
    assert not differs[20:].any()
    assert estimate(SHALLOW, packed).peak == dry(SHALLOW, packed).peak


def test_beside_training_there_are_evaluation_saving_and_loading():
    predicted = estimate(SHALLOW, Recipe("sgd", batch=8, sequence=128, device="cuda"))
    aside = predicted.beside_training()
    parameters = predicted.by_instant()["forward"]["parameters"]
    assert aside["evaluation"] < predicted.peak
    assert aside["loading"] == pytest.approx(2 * parameters, rel=0.1), "the checkpoint lies beside the model"
    assert aside["saving"] == pytest.approx(parameters, rel=0.1), "copies go to the host"


def test_lora_keeps_activations_but_no_gradients_or_state():
    full, adapters = (estimate(SHALLOW, Recipe(batch=4, sequence=64, lora=rank)) for rank in (0, 4))
    assert adapters.by_instant()["forward"]["optimizer state"] < 0.2 * full.by_instant()["forward"]["optimizer state"]
    assert adapters.by_instant()["forward"]["activations"] > 0.8 * full.by_instant()["forward"]["activations"]
    frozen = estimate(SHALLOW, Recipe(batch=4, sequence=64, frozen=("model.embed_tokens", "lm_head")))
    saved = full.by_instant()["update"]["gradients"] - frozen.by_instant()["update"]["gradients"]
    assert saved == 2 * 300 * 64 * 4


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_in_4_bits_are_as_large_as_the_librarys(precision):
    """The same layers quantized by bitsandbytes, with real numbers."""
    import bitsandbytes as bnb

    predicted = estimate(SHALLOW, Recipe(batch=2, sequence=64, lora=4, quantized="nf4", precision=precision))
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    real = nn.Linear(64, 160, bias=False, dtype=dtype)
    weight = real.weight.detach()
    codes = bnb.nn.Params4bit(weight, requires_grad=False, quant_type="nf4", compress_statistics=True).to("cpu")
    state = codes.quant_state
    theirs = [codes, state.absmax, state.code, state.offset, state.state2.absmax, state.state2.code]
    events = zip(predicted.log.changes.tolist(), predicted.log.labels, strict=True)
    layer = "layers.0.mlp.up_proj.base_layer"
    ours = sum(change for change, label in events if label.phase == "" and label.module.endswith(layer))
    assert ours == memory.distinct_bytes(theirs)


def layers_in_4_bits(model):
    from bitsandbytes.nn import Linear4bit

    return {
        name: (layer.in_features, layer.out_features, memory.distinct_bytes([layer.weight]))
        for name, layer in model.named_modules()
        if isinstance(layer, Linear4bit)
    }


@pytest.mark.parametrize("family", ["llama", "gpt2", "falcon"])  # with Linear, Conv1D, and a class made from Linear
def test_the_layers_in_4_bits_are_those_that_transformers_chooses(family, tmp_path):
    from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    config = AutoConfig.for_model(family, **sizes, bos_token_id=1, eos_token_id=2)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path)
    of_4_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
    theirs = layers_in_4_bits(AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=of_4_bits))
    if theirs:
        assert layers_in_4_bits(quantize_linears(model)) == theirs
    else:
        with pytest.raises(CourseError, match="No layer of this model can be kept in 4 bits"):
            estimate(config, Recipe(batch=2, sequence=16, lora=4, quantized="nf4"))
    assert bool(theirs) == (family != "falcon")


def test_of_blocks_that_repeat_as_a_pattern_the_pattern_is_named():
    from transformers import SmolLM3Config

    # Every fourth has no positions, and three are left over.
    pattern = SmolLM3Config(**SMALL, num_hidden_layers=23, pad_token_id=0)
    assert try_recipe(source_of(pattern), Recipe("sgd")).basis == "a dry run of 3 of its 5 groups of 4 blocks"


def test_a_config_json_is_enough(tmp_path):
    from transformers import Qwen2Config

    sizes = {**SMALL, "num_hidden_layers": 2}
    Qwen2Config(**sizes).save_pretrained(tmp_path)
    predicted = estimate(tmp_path / "config.json", Recipe("sgd", batch=2, sequence=16))
    assert predicted.peak == estimate(str(tmp_path), Recipe("sgd", batch=2, sequence=16)).peak
    assert predicted.peak == dry(Qwen2Config(**sizes), Recipe("sgd", batch=2, sequence=16)).peak


class Body(nn.Module):
    """A module around a model of Transformers that returns a tuple with the loss first, as without `return_dict`."""

    def __init__(self):
        super().__init__()
        sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
        self.body = BertModel(BertConfig(**sizes, max_position_embeddings=48))
        self.head = nn.Linear(64, 3)

    def forward(self, input_ids, labels):
        logits = self.head(self.body(input_ids).last_hidden_state[:, 0])
        return F.cross_entropy(logits, labels), logits


@pytest.mark.slow
def test_a_module_with_a_model_inside_is_planned_up_to_the_positions_of_that():
    def batch(b, s):
        return {"input_ids": torch.ones(b, s, dtype=torch.long), "labels": torch.ones(b, dtype=torch.long)}

    source = source_of(Body, batch)
    assert source.positions == 48
    answer = memory.plan(source, 24 * 2**30, Recipe("sgd", batch=2, sequence=16, device="cuda"))
    assert answer.largest["longest sequence"] == 48


def test_recurrent_layers_are_said_to_be_planned_by_other_kernels_than_a_gpus():
    class Reader(nn.LSTM):
        def forward(self, x):
            return super().forward(x)[0].sum()

    predicted = estimate(lambda: Reader(8, 8), Recipe("sgd", device="cuda"), batch=lambda b, s: torch.ones(s, b, 8))
    assert any("recurrent layers are planned by the CPU's kernels" in note for note in predicted.notes)


def linear():
    return nn.Linear(4, 4)


def fours(b, s):
    return torch.ones(b, 4)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("lama-7b", {}, "No model is called 'lama-7b'; did you mean llama-7b"),
        (3, {}, "int is no model; give a configuration"),
        (linear(), {}, "takes neither token ids nor pictures by Transformers' names; give batch="),
        (lambda: 3, {}, "returned a int; let it return a module"),
        (lambda: linear().requires_grad_(False), {"batch": fours}, "No parameter of the model is trained"),
        (Body(), {}, "has no .config, which says how large its vocabulary is; give batch="),
        (linear, {"batch": fours}, "returns no loss: let it return one number"),
        (LLAMA, {"recipe": Recipe(sequence=513)}, "longer than the model's 512 positions"),
        (LLAMA, {"recipe": Recipe(compiled=True)}, "unknown, since the compiler chooses"),
        (LLAMA, {"recipe": Recipe(sequence=30, ranks=2, context_parallel=2)}, "does not divide into two stretches"),
        (LLAMA, {"recipe": {"batch": 3}}, "recipe must be a memory.Recipe"),
    ],
)
def test_what_cannot_be_estimated_is_a_sentence(model, options, message):
    with pytest.raises(CourseError, match=message):
        estimate(model, **options)


def test_a_step_that_uses_other_parameters_each_time_is_refused():
    class Alternating(Regression):
        calls = 0

        def __init__(self):
            super().__init__()
            self.others = nn.Linear(10, 1)

        def forward(self, x, y):
            Alternating.calls += 1
            layers = self.layers if Alternating.calls % 2 else self.others
            return F.mse_loss(layers(x).squeeze(-1), y)

    with pytest.raises(CourseError, match="other parameters got no gradient"):
        estimate(Alternating, Recipe(batch=4), batch=pairs)
