"""The calculator shows what `memory.estimate` says, for every value of its controls."""

import pytest

from course_utils import models, viz
from course_utils.memory.estimate import estimate
from course_utils.memory.optimizers import COSTS
from course_utils.memory.recipe import Recipe
from course_utils.units import format_bytes
from course_utils.viz import calculator


def title_of(figure):
    return figure.axes[0].get_title(loc="left") or figure.axes[0].get_title()


@pytest.mark.parametrize("model", calculator.CALCULATOR_MODELS)
def test_every_model_has_a_picture_with_its_peak(model):
    figure, alt = viz.calculator_figure(model, batch=2, sequence=16)
    assert title_of(figure).startswith(f"{model}: peak ")
    assert "← peak" in "".join(text.get_text() for text in figure.axes[0].texts)
    assert "At the peak, " in alt


@pytest.mark.parametrize("optimizer", COSTS)
def test_the_bars_are_the_estimate(optimizer):
    figure, alt = viz.calculator_figure("gpt2", optimizer=optimizer, batch=2, sequence=16, checkpointing=True)
    expected = estimate(models.configuration("gpt2"), Recipe(optimizer, batch=2, sequence=16, checkpointing=True))
    drawn = sum(bar.get_width() for bar in figure.axes[0].patches)
    unit = {"KiB": 2**10, "MiB": 2**20}[figure.axes[0].get_xlabel()[-3:]]
    assert drawn * unit == pytest.approx(sum(instant.bytes for instant in expected.instants))
    assert title_of(figure) == f"gpt2: peak {format_bytes(expected.peak)}"
    assert expected.peak_instant.terms[0].formula in alt


def test_the_working_is_the_whole_sum_of_the_peak():
    lines = viz.calculator_working("gpt2", batch=2, sequence=16).data.splitlines()
    expected = estimate(models.configuration("gpt2"), Recipe(batch=2, sequence=16))
    assert format_bytes(expected.peak) in lines[0]
    assert "b = 2 (examples of a micro-batch), s = 16" in lines[0]
    rows = [line.strip("| ").split(" | ") for line in lines[4:]]
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
    assert sentence in viz.calculator_working(**values).data


def test_a_control_moves_the_picture_and_the_sum(shown, monkeypatch):
    played = {}
    play = calculator.play
    monkeypatch.setattr(
        calculator, "play", lambda *draw, **controls: played.update(controls) or play(*draw, **controls)
    )
    viz.memory_calculator()
    assert all(control.description for control in played.values())
    assert set(played) - {"model"} <= set(Recipe.__dataclass_fields__)
    before = shown[-1][0].data
    played["optimizer"].value = "sgd"
    assert "optimizer state" in before
    assert "optimizer state" not in shown[-1][0].data
    played["ranks"].value = 1
    played["zero_stage"].value = 2
    assert "nothing to shard over" in shown[-2][0]["text/plain"]
