"""The planner shows what a dry run of the same step says, for every value of its controls, and what a card holds of it."""

import re
from dataclasses import replace
from importlib import import_module
from unittest.mock import Mock

import pytest
import torch
from figures import title
from transformers import LlamaForCausalLM

from course_utils import models, viz
from course_utils.hardware import MACHINES
from course_utils.memory import Recipe, estimate
from course_utils.memory.step.recipe import OPTIMIZERS
from course_utils.units import format_bytes
from course_utils.viz.controls import in_words
from course_utils.viz.picker import ModelPicker
from course_utils.viz.planner import CUSTOM_MODEL, LLAMA_SIZES, NO_CARD, PLANNER_MODELS, LlamaSizes

SMALL = LlamaSizes(layers=2, width=32, heads=4, kv_heads=2, inner_width=48, vocabulary=100)
DEEP = models.configuration(
    "mistral-7b",
    **{"num_hidden_layers": 6, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"vocab_size": 100, "intermediate_size": 48, "head_dim": 8},
)
FEW = {"batch": 2, "sequence": 16}
LARGE = [m for m in PLANNER_MODELS if m not in (*models.FAMILIES, "convnet")]


def rows_of(working):
    """The table's rows: name, formula, size."""
    return [line.strip("| ").split(" | ") for line in working.splitlines()[4:]]


def value_of(formula, letters):
    """A formula's number, by Python's own arithmetic."""
    plain = formula.strip("`").translate(str.maketrans({"·": "*", "×": "*", "²": "**2", "³": "**3", "⁴": "**4"}))
    return eval(plain, {}, dict(letters))


@pytest.mark.parametrize(
    "model", [pytest.param(m, marks=pytest.mark.slow) if m in LARGE else m for m in PLANNER_MODELS]
)
def test_every_model_has_a_picture_with_its_peak(model):
    figure, alt = viz.planner_figure(model, **FEW)
    toy = {"convnet": " (toy)"} | dict.fromkeys(models.FAMILIES, " (toy, smoke scale)")
    assert title(figure.axes[0]).startswith(f"{model}{toy.get(model, '')}: peak ")
    assert "← peak" in "".join(text.get_text() for text in figure.axes[0].texts)
    assert "fullest in forward: " in alt


@pytest.mark.parametrize(
    "optimizer", [pytest.param(o, marks=() if o in ("sgd", "adamw8bit") else pytest.mark.slow) for o in OPTIMIZERS]
)
def test_the_bars_are_those_of_an_estimate(optimizer):
    expected = estimate(SMALL.configuration(), Recipe(optimizer, **FEW, checkpointing=True))
    figure, _ = viz.planner_figure(SMALL, optimizer=optimizer, **FEW, checkpointing=True)
    width = sum(bar.get_width() for bar in figure.axes[0].patches)
    unit = {"KiB": 2**10, "MiB": 2**20}[figure.axes[0].get_xlabel()[-3:]]
    assert width * unit == pytest.approx(sum(instant.bytes for instant in expected.instants))
    assert title(figure.axes[0]) == f"{CUSTOM_MODEL}: peak {format_bytes(expected.peak)}"


@pytest.mark.parametrize("model", [SMALL, DEEP], ids=["sizes of one's own", "many blocks"])
def test_the_working_is_the_sum_of_the_peak_and_explains_its_letters_alone(model):
    expected = estimate(model.configuration() if model is SMALL else model, Recipe(**FEW))
    working = viz.planner_working(model, **FEW).data
    head, _, columns, *_ = working.splitlines()
    assert format_bytes(expected.peak) in head
    assert f"Known from {expected.basis}." in head
    assert columns.split(" | ")[1] == "formula, in bytes"
    rows = rows_of(working)
    terms = expected.peak_instant.terms
    assert [name for name, _, _ in rows] == [term.name for term in terms]
    assert sum(value_of(term.formula, expected.sizes) for term in terms) == expected.peak
    formulas = [(formula, term) for (_, formula, _), term in zip(rows, terms, strict=True) if formula.startswith("`")]
    assert all(value_of(formula, expected.sizes) == term.bytes for formula, term in formulas)
    assert model is SMALL or "parameters of 6 model.layers" in [name for name, _, _ in rows]
    letters = re.findall(r"\b(\w) = [\d,]+ \(", head)
    assert set(letters) == set(re.findall("[A-Za-z]", "".join(formula for formula, _ in formulas)))


def test_a_card_is_a_line_and_a_verdict():
    memory = MACHINES["RTX 4090"].memory
    small, _ = viz.planner_figure("gpt2", "RTX 4090", **FEW)
    assert models.parameter_count(models.build("gpt2")) * 16 < memory / 1000, "parameters, gradients and Adam's states"
    assert title(small.axes[0]).endswith(", fits on RTX 4090")
    large, _ = viz.planner_figure(LlamaSizes(layers=6, width=8192), "RTX 4090", **FEW)
    assert memory < 6 * (4 * 8192**2 + 3 * 8192 * 5504) * 12
    assert title(large.axes[0]).endswith(", does not fit on RTX 4090")
    assert "In all" not in title(small.axes[0])
    low = re.search(r"\nIn all ([\d.]+) GiB to [\d.]+ GiB, does not fit", title(large.axes[0]))[1]
    assert float(low) > memory / 2**30
    (line,) = large.axes[0].lines
    assert large.axes[0].get_xlabel().endswith("GiB")
    assert set(line.get_xdata()) == {memory / 2**30}
    assert not viz.planner_figure("gpt2", NO_CARD, **FEW)[0].axes[0].lines


def test_without_a_stage_nothing_is_shared_whatever_the_ranks():
    on_one, on_eight = (viz.planner_figure(SMALL, **FEW, ranks=ranks, zero_stage=0)[1] for ranks in (1, 8))
    assert on_one == on_eight
    sharded, _ = viz.planner_figure(SMALL, **FEW, ranks=8, zero_stage=3)
    assert title(sharded.axes[0]).endswith("on each of 8 devices")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"model": "gpt2-large", "sequence": 8192}, "longer than the model's 1024 positions"),
        ({"zero_stage": 1, "ranks": 1}, "nothing to shard over"),
        ({"model": "convnet", "checkpointing": True}, "no blocks in an nn.ModuleList"),
        ({"model": replace(SMALL, heads=3)}, "A width of 32 does not divide into 3 heads"),
        ({"model": replace(SMALL, width=12)}, "even width each"),
        ({"model": replace(SMALL, kv_heads=3)}, "do not divide by 3 of keys and values"),
        ({"model": replace(SMALL, inner_width=0)}, "'inner width' must be 1 or more, not 0"),
    ],
)
def test_what_cannot_be_is_a_sentence_and_no_traceback(values, sentence):
    figure, alt = viz.planner_figure(**values)
    assert sentence in alt
    assert sentence in figure.axes[0].texts[0].get_text().replace("\n", " ")
    assert viz.planner_working(**values).data == "", "once is enough"


@pytest.mark.parametrize("layers", [1, 5])
def test_sizes_of_ones_own_are_a_real_model_of_these_sizes(layers):
    sizes = replace(SMALL, layers=layers)
    with torch.device("meta"):
        real = LlamaForCausalLM(sizes.configuration())
    block = real.model.layers[0]
    assert (len(real.model.layers), block.mlp.up_proj.weight.shape) == (layers, (48, 32))
    assert (block.self_attn.q_proj.weight.shape, block.self_attn.k_proj.weight.shape) == ((32, 32), (16, 32))
    working = viz.planner_working(sizes, **FEW).data
    assert f"a model of {models.parameter_count(real):,} parameters" in working


def test_the_mark_of_the_peak_stays_clear_of_the_frame_and_large_numbers_are_words():
    figure, _ = viz.planner_figure(LlamaSizes(), batch=1)
    figure.canvas.draw()
    (mark,) = [text for text in figure.axes[0].texts if "peak" in text.get_text()]
    assert mark.get_window_extent().x1 < figure.axes[0].get_window_extent().x1 - 5
    assert "1.35 billion parameters" in viz.planner_working(LlamaSizes(), batch=1).data


@pytest.mark.slow
def test_a_model_has_its_parameters_whole_or_in_shards():
    counts = set()
    for stage in (0, 3):
        working = viz.planner_working(SMALL, **FEW, ranks=8, zero_stage=stage, precision="bf16").data
        counts.add(re.search(r"for a model of (.+?) parameters", working)[1])
    assert len(counts) == 1


def test_fields_for_sizes_show_where_they_are_asked_for():
    picker = ModelPicker([("GPT-2", "gpt2")], CUSTOM_MODEL, LlamaSizes, LLAMA_SIZES)
    assert picker.value == "gpt2"
    assert "inner width" not in in_words({"model": picker})
    picker.model.value = CUSTOM_MODEL
    assert picker.value == LlamaSizes()
    assert "model your own (Llama-like); layers 24; width 2048" in in_words({"model": picker})
    picker.fields["layers"].value = 3
    assert picker.value == LlamaSizes(layers=3)


def test_controls_move_the_picture_and_the_sum(outputs, monkeypatch):
    planner = import_module("course_utils.viz.planner")
    play = Mock(wraps=planner.play)
    monkeypatch.setattr(planner, "play", play)
    viz.planner()
    controls = play.call_args.kwargs
    assert set(controls) - {"model", "card"} <= set(Recipe.__dataclass_fields__)
    controls["model"].model.value = "gpt2"
    card, device = controls["card"], controls["device"]
    before = outputs[-1][0].data
    controls["optimizer"].value = "sgd"
    assert "optimizer state" in before
    assert "optimizer state" not in outputs[-1][0].data
    assert (card.value, device.value, device.disabled) == (NO_CARD, "cpu", False)
    card.value = "RTX 4090"
    assert (device.value, device.disabled, device.description) == ("cuda", True, "kind of device: the card's")
    expected = estimate("gpt2", Recipe("sgd", batch=8, sequence=128, device="cuda"))
    assert f": {format_bytes(expected.peak)} for a model of" in outputs[-1][0].data
    assert "fits on RTX 4090." in outputs[-2][0]["text/plain"]
    card.value = NO_CARD
    assert (device.disabled, device.description) == (False, "kind of device")
    controls["ranks"].value = 1
    assert controls["ranks"].disabled
    controls["zero_stage"].value = 2
    assert not controls["ranks"].disabled
    assert "nothing to shard over" in outputs[-2][0]["text/plain"]


def test_bytes_of_a_cpu_get_no_verdict_of_a_card():
    small = {**FEW, "model": "gpt2"}
    cuda, alt = viz.planner_figure(card="RTX 4090", **small)
    assert title(cuda.axes[0]).endswith("fits on RTX 4090")
    assert f"peak {format_bytes(estimate('gpt2', Recipe(**FEW, device='cuda')).peak)}" in title(cuda.axes[0])
    cpu, alt = viz.planner_figure(card="RTX 4090", **small, device="cpu")
    assert "fits" not in title(cpu.axes[0]) + alt
    assert not cpu.axes[0].lines


@pytest.mark.slow
def test_bytes_without_a_formula_are_written_for_people():
    recipe = {"optimizer": "adamw8bit", "precision": "bf16", "checkpointing": True, **FEW}
    expected = estimate(DEEP, Recipe(**recipe))
    rows = {name: (formula, size) for name, formula, size in rows_of(viz.planner_working(DEEP, **recipe).data)}
    assert not [row for row in rows.values() if re.search(r"\d{5}", row[0])]
    blocks = "parameters of 6 model.layers"
    (parameters,) = [term for term in expected.peak_instant.terms_in_bytes if term.name == blocks]
    assert value_of(parameters.formula, {}) == parameters.bytes, "the working stays a sum in bytes"
    assert rows[blocks][0] == f"6 × {format_bytes(parameters.bytes // 6)}"
    assert rows["parameters of lm_head"][0] == "", "its size stands beside it"
