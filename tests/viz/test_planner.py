"""The calculator shows what `memory.estimate` says, for every value of its controls."""

import re
from dataclasses import replace

import pytest
import torch
from transformers import LlamaForCausalLM

from course_utils import models, viz
from course_utils.memory.estimate import estimate, parameter_shapes
from course_utils.memory.optimizers import COSTS
from course_utils.memory.recipe import Recipe
from course_utils.units import format_bytes
from course_utils.viz import calculator
from course_utils.viz.calculator import LLAMA_SIZES, OWN, LlamaSizes
from course_utils.viz.controls import in_words
from course_utils.viz.picker import ModelPicker

SMALL = LlamaSizes(layers=2, width=32, heads=4, kv_heads=2, inner_width=48, vocabulary=100)


def title_of(figure):
    return figure.axes[0].get_title(loc="left") or figure.axes[0].get_title()


@pytest.mark.parametrize("model", calculator.CALCULATOR_MODELS)
def test_every_model_has_a_picture_with_its_peak(model):
    figure, alt = viz.calculator_figure(model, batch=2, sequence=16)
    toy = {"convnet": " (toy)"} | dict.fromkeys(models.FAMILIES, " (toy, smoke scale)")
    assert title_of(figure).startswith(f"{model}{toy.get(model, '')}: peak ")
    assert "← peak" in "".join(text.get_text() for text in figure.axes[0].texts)
    assert "At the peak, " in alt


@pytest.mark.parametrize("optimizer", COSTS)
def test_the_bars_are_the_estimate(optimizer):
    figure, alt = viz.calculator_figure("gpt2", optimizer=optimizer, batch=2, sequence=16, checkpointing=True)
    expected = estimate(models.configuration("gpt2"), Recipe(optimizer, batch=2, sequence=16, checkpointing=True))
    drawn = sum(bar.get_width() for bar in figure.axes[0].patches)
    unit = {"KiB": 2**10, "MiB": 2**20}[figure.axes[0].get_xlabel()[-3:]]
    assert drawn * unit == pytest.approx(sum(instant.bytes for instant in expected.instants))
    assert title_of(figure) == f"gpt2 (toy, smoke scale): peak {format_bytes(expected.peak)}"
    assert expected.peak_instant.terms[0].formula in alt


def test_the_working_is_the_whole_sum_of_the_peak():
    lines = viz.calculator_working("gpt2", batch=2, sequence=16).data.splitlines()
    expected = estimate(models.configuration("gpt2"), Recipe(batch=2, sequence=16))
    assert format_bytes(expected.peak) in lines[0]
    assert "b = 2 (examples of a micro-batch), s = 16" in lines[0]
    rows = [line.strip("| ").split(" | ") for line in lines[4:]]
    assert lines[2].split(" | ")[1] == "formula, in bytes"
    letters = expected.sizes
    worked_out = [eval(formula.strip("`"), {}, dict(letters)) for _, formula, _ in rows]
    assert sum(worked_out) == expected.peak


def test_shards_are_said_in_the_title():
    alone, _ = viz.calculator_figure("llama", zero_stage=0, ranks=8)
    shared, _ = viz.calculator_figure("llama", zero_stage=3, ranks=8)
    assert "devices" not in title_of(alone)
    assert title_of(shared).endswith("on each of 8 devices")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"model": "gpt2-large", "sequence": 8192}, "longer than the model's 1024 positions"),
        ({"zero_stage": 1, "ranks": 1}, "nothing to shard over"),
        ({"model": "convnet", "checkpointing": True}, "no blocks to checkpoint"),
    ],
)
def test_what_cannot_be_is_a_sentence_and_no_traceback(values, sentence):
    figure, alt = viz.calculator_figure(**values)
    assert sentence in alt
    assert sentence in figure.axes[0].texts[0].get_text().replace("\n", " ")
    assert viz.calculator_working(**values).data == "", "once is enough"


def test_sizes_of_ones_own_are_a_real_model_of_these_sizes():
    with torch.device("meta"):
        real = LlamaForCausalLM(SMALL.configuration())
    block = real.model.layers[0]
    assert (len(real.model.layers), block.mlp.up_proj.weight.shape) == (2, (48, 32))
    assert (block.self_attn.q_proj.weight.shape, block.self_attn.k_proj.weight.shape) == ((32, 32), (16, 32))
    assert parameter_shapes(SMALL.configuration()) == {name: tuple(p.shape) for name, p in real.named_parameters()}
    assert f"{models.parameter_count(real):,} parameters" in viz.calculator_working(SMALL, batch=1).data
    assert "1.35 billion parameters" in viz.calculator_working(LlamaSizes(), batch=1).data


def test_sizes_of_ones_own_are_not_those_of_the_scale():
    figure, _ = viz.calculator_figure(SMALL, batch=2, sequence=2**16, checkpointing=True)
    expected = estimate(SMALL.configuration(), Recipe(batch=2, sequence=2**16, checkpointing=True))
    assert title_of(figure) == f"{OWN}: peak {format_bytes(expected.peak)}"


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"heads": 3}, "A width of 32 does not divide into 3 heads"),
        ({"width": 12}, "even width each"),
        ({"kv_heads": 3}, "do not divide by 3 of keys and values"),
        ({"inner_width": 0}, "'inner width' must be 1 or more, not 0"),
    ],
)
def test_sizes_that_do_not_go_together_are_a_sentence(changed, sentence):
    assert sentence in viz.calculator_figure(replace(SMALL, **changed))[1]


def test_any_configuration_is_taken():
    config = models.configuration("gpt2-large", n_layer=2)
    figure, _ = viz.calculator_figure(config, batch=1)
    assert title_of(figure) == f"GPT2Config: peak {format_bytes(estimate(config, Recipe(batch=1)).peak)}"
    assert "36 blocks" not in viz.calculator_working(config, batch=1).data


def test_letters_that_no_formula_uses_are_not_explained():
    for text in (viz.calculator_figure("gpt2")[1], viz.calculator_working("gpt2").data):
        assert "V = 1,000 (vocabulary)" in text
        assert "classes" not in text
    head, *rows = viz.calculator_working("distilbert").data.splitlines()
    assert set(re.findall(r"(\w+) = ", head)) == set(
        re.findall(r"[A-Za-z]\d*", " ".join(r.split("`")[1] for r in rows[3:]))
    )


def test_without_a_stage_nothing_is_shared_whatever_the_ranks():
    assert viz.calculator_figure("gpt2", ranks=8)[1] == viz.calculator_figure("gpt2", ranks=1)[1]


def test_the_mark_of_the_peak_stays_clear_of_the_frame():
    for model in ("distilbert-base-cased", LlamaSizes()):
        figure, _ = viz.calculator_figure(model)
        figure.canvas.draw()
        (mark,) = [text for text in figure.axes[0].texts if "peak" in text.get_text()]
        assert mark.get_window_extent().x1 < figure.axes[0].get_window_extent().x1 - 5


def test_fields_for_sizes_show_where_they_are_asked_for():
    picker = ModelPicker([("GPT-2", "gpt2")], OWN, LlamaSizes, LLAMA_SIZES)
    assert picker.value == "gpt2"
    assert "inner width" not in in_words({"model": picker})
    picker.model.value = OWN
    assert picker.value == LlamaSizes()
    assert "model your own (Llama-like); layers 24; width 2048" in in_words({"model": picker})
    picker.fields["layers"].value = 3
    assert picker.value == LlamaSizes(layers=3)


def test_a_control_moves_the_picture_and_the_sum(shown, monkeypatch):
    played = {}
    play = calculator.play
    monkeypatch.setattr(
        calculator, "play", lambda *draw, **controls: played.update(controls) or play(*draw, **controls)
    )
    viz.memory_calculator()
    played["model"].model.value = "gpt2"
    assert set(played) - {"model"} <= set(Recipe.__dataclass_fields__)
    before = shown[-1][0].data
    played["optimizer"].value = "sgd"
    assert "optimizer state" in before
    assert "optimizer state" not in shown[-1][0].data
    assert played["ranks"].disabled
    played["zero_stage"].value = 2
    assert not played["ranks"].disabled
    played["ranks"].value = 1
    assert "nothing to shard over" in shown[-2][0]["text/plain"]
