"""The planner shows what a dry run of the same step says, for every value of its controls, and what a card holds of it."""

import re
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from transformers import LlamaForCausalLM

from course_utils import models, viz
from course_utils.hardware import MACHINES
from course_utils.memory import Recipe, estimate
from course_utils.memory.optimizers import OPTIMIZERS
from course_utils.units import format_bytes
from course_utils.viz.controls import in_words
from course_utils.viz.picker import ModelPicker
from course_utils.viz.planner import LLAMA_SIZES, NO_CARD, OWN, PLANNER_MODELS, LlamaSizes

SMALL = LlamaSizes(layers=2, width=32, heads=4, kv_heads=2, inner_width=48, vocabulary=100)
DEEP = {
    "num_hidden_layers": 6,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}
WITH_FORMULAS = [
    SMALL,
    models.configuration("gpt2-large", n_layer=2),
    models.configuration("distilbert-base-cased", labels=2, n_layers=2),
]
RUN_DRY = ("qwen2.5-0.5b", "mistral-7b")
"""Of the models without formulas those that are large."""


def title_of(figure):
    return figure.axes[0].get_title(loc="left") or figure.axes[0].get_title()


def rows_of(working):
    """The table's rows: what, formula, size."""
    return [line.strip("| ").split(" | ") for line in working.splitlines()[4:]]


def value_of(formula, letters):
    """A formula's number, by Python's own arithmetic."""
    plain = formula.strip("`").translate(str.maketrans({"·": "*", "×": "*", "²": "**2", "³": "**3", "⁴": "**4"}))
    return eval(plain, {}, dict(letters))


@pytest.mark.parametrize(
    "model", [pytest.param(m, marks=pytest.mark.slow) if m in RUN_DRY else m for m in PLANNER_MODELS]
)
def test_every_model_has_a_picture_with_its_peak(model):
    figure, alt = viz.planner_figure(model, batch=2, sequence=16)
    toy = {"convnet": " (toy)"} | dict.fromkeys(models.FAMILIES, " (toy, smoke scale)")
    assert title_of(figure).startswith(f"{model}{toy.get(model, '')}: peak ")
    assert "← peak" in "".join(text.get_text() for text in figure.axes[0].texts)
    assert "At the peak, " in alt


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_bars_are_those_of_a_dry_run(optimizer):
    expected = estimate(SMALL.configuration(), Recipe(optimizer, batch=2, sequence=16, checkpointing=True))
    assert expected.how == "a dry run of just this step"
    figure, _ = viz.planner_figure(SMALL, optimizer=optimizer, batch=2, sequence=16, checkpointing=True)
    drawn = sum(bar.get_width() for bar in figure.axes[0].patches)
    unit = {"KiB": 2**10, "MiB": 2**20}[figure.axes[0].get_xlabel()[-3:]]
    assert drawn * unit == pytest.approx(sum(instant.bytes for instant in expected.instants))
    assert title_of(figure) == f"{OWN}: peak {format_bytes(expected.peak)}"


def test_the_working_is_the_whole_sum_of_the_peak():
    expected = estimate(SMALL.configuration(), Recipe(batch=2, sequence=16))
    working = viz.planner_working(SMALL, batch=2, sequence=16).data
    head, _, columns, *_ = working.splitlines()
    assert format_bytes(expected.peak) in head
    assert "b = 2 (examples of a micro-batch), s = 16" in head
    assert columns.split(" | ")[1] == "formula, in bytes"
    assert sum(value_of(formula, expected.sizes) for _, formula, _ in rows_of(working)) == expected.peak


def test_of_many_blocks_a_few_are_run_dry_and_the_answer_is_that_of_all():
    config = models.configuration("mistral-7b", **DEEP, intermediate_size=48, head_dim=8)
    expected = estimate(config, Recipe(batch=2, sequence=16)).peak
    working = viz.planner_working(config, batch=2, sequence=16).data
    assert "Known from a dry run of 3 of its 6 blocks." in working.splitlines()[0]
    rows = rows_of(working)
    assert "parameters of 6 model.layers" in [what for what, _, _ in rows]
    assert sum(value_of(formula, {}) for _, formula, _ in rows) == expected


def test_a_card_is_a_line_and_a_verdict():
    memory = MACHINES["RTX 4090"].memory
    least = models.parameter_count(models.build("gpt2")) * 16  # float32 parameters, gradients and two states of Adam's
    small, _ = viz.planner_figure("gpt2", "RTX 4090", batch=2, sequence=16)
    assert least < memory / 1000
    assert title_of(small).endswith(", fits on RTX 4090")
    large, _ = viz.planner_figure("llama-7b", "RTX 4090", batch=1, sequence=16)
    assert memory < 7e9 * 12
    assert title_of(large).endswith(", does not fit on RTX 4090")
    (line,) = large.axes[0].lines
    assert large.axes[0].get_xlabel().endswith("GiB")
    assert set(line.get_xdata()) == {memory / 2**30}
    assert not viz.planner_figure("gpt2", NO_CARD, batch=2, sequence=16)[0].axes[0].lines


def test_shards_are_said_in_the_title():
    alone, _ = viz.planner_figure("llama", zero_stage=0, ranks=8, batch=2, sequence=16)
    shared, _ = viz.planner_figure("llama", zero_stage=3, ranks=8, batch=2, sequence=16)
    assert "devices" not in title_of(alone)
    assert title_of(shared).endswith("on each of 8 devices")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"model": "gpt2-large", "sequence": 8192}, "longer than the model's 1024 positions"),
        ({"zero_stage": 1, "ranks": 1}, "nothing to shard over"),
        ({"model": "convnet", "checkpointing": True}, "no nn.ModuleList of blocks"),
    ],
)
def test_what_cannot_be_is_a_sentence_and_no_traceback(values, sentence):
    figure, alt = viz.planner_figure(**values)
    assert sentence in alt
    assert sentence in figure.axes[0].texts[0].get_text().replace("\n", " ")
    assert viz.planner_working(**values).data == "", "once is enough"


def test_sizes_of_ones_own_are_a_real_model_of_these_sizes():
    with torch.device("meta"):
        real = LlamaForCausalLM(SMALL.configuration())
    block = real.model.layers[0]
    assert (len(real.model.layers), block.mlp.up_proj.weight.shape) == (2, (48, 32))
    assert (block.self_attn.q_proj.weight.shape, block.self_attn.k_proj.weight.shape) == ((32, 32), (16, 32))


@pytest.mark.parametrize("layers", [1, 2, 3, 5])
def test_every_layer_counts_once(layers):
    sizes = replace(SMALL, layers=layers)
    with torch.device("meta"):
        real = LlamaForCausalLM(sizes.configuration())
    working = viz.planner_working(sizes, batch=2, sequence=16).data
    assert f"a model of {models.parameter_count(real):,} parameters" in working


def test_large_numbers_of_parameters_are_said_in_words():
    assert "1.35 billion parameters" in viz.planner_working(LlamaSizes(), batch=1).data


def test_sizes_of_ones_own_are_not_those_of_the_scale():
    figure, _ = viz.planner_figure(SMALL, optimizer="sgd", batch=2, sequence=256)
    expected = estimate(SMALL.configuration(), Recipe("sgd", batch=2, sequence=256))
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
    assert sentence in viz.planner_figure(replace(SMALL, **changed))[1]


def test_any_configuration_is_taken():
    config = models.configuration("gpt2-large", n_layer=2)
    expected = estimate(config, Recipe(batch=1, sequence=16)).peak
    figure, _ = viz.planner_figure(config, batch=1, sequence=16)
    assert title_of(figure) == f"GPT2Config: peak {format_bytes(expected)}"
    assert "36" not in viz.planner_working(config, batch=1, sequence=16).data


@pytest.mark.parametrize("model", WITH_FORMULAS, ids=lambda model: type(model).__name__)
def test_just_the_letters_that_occur_are_explained(model):
    alt, working = viz.planner_figure(model)[1], viz.planner_working(model).data
    formulas = [formula for _, formula, _ in rows_of(working)]
    for text, shown_formulas in ((working.splitlines()[0], formulas), (alt, formulas[:5])):
        explained = re.findall(r"\b(\w) = [\d,]+ \(", text)
        assert set(explained) == set(re.findall("[A-Za-z]", "".join(shown_formulas)))
        assert "(vocabulary)" in text


def test_without_a_stage_nothing_is_shared_whatever_the_ranks():
    one, eight = (viz.planner_figure(SMALL, batch=2, sequence=16, ranks=ranks)[1] for ranks in (1, 8))
    assert one == eight


def test_the_mark_of_the_peak_stays_clear_of_the_frame():
    for model in ("distilbert-base-cased", LlamaSizes()):
        figure, _ = viz.planner_figure(model)
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
    planner, played = import_module("course_utils.viz.planner"), {}
    play = planner.play
    monkeypatch.setattr(planner, "play", lambda *draw, **controls: played.update(controls) or play(*draw, **controls))
    viz.planner()
    played["model"].model.value = "gpt2-large"
    assert set(played) - {"model", "card"} <= set(Recipe.__dataclass_fields__)
    before = shown[-1][0].data
    played["optimizer"].value = "sgd"
    assert "optimizer state" in before
    assert "optimizer state" not in shown[-1][0].data
    played["card"].value = "RTX 4090"
    assert "On RTX 4090: fits." in shown[-2][0]["text/plain"]
    played["ranks"].value = 1
    assert played["ranks"].disabled
    played["zero_stage"].value = 2
    assert not played["ranks"].disabled
    assert "nothing to shard over" in shown[-2][0]["text/plain"]
