from dataclasses import replace

import pytest

from course_utils import viz
from course_utils.errors import CourseError
from course_utils.ledger import Ledger, Row
from course_utils.units import MiB


def row(technique="AdamW", predicted=60 * MiB, measured=100 * MiB, **changes):
    return replace(Row("03", technique, "peak", predicted, measured, "laptop", "cpu"), **changes)


def test_two_bars_for_each_row_and_their_difference_as_in_the_table():
    rows = [row(), row("Adafactor", predicted=150 * MiB)]
    figure, alt = viz.beside_figure(rows)
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == [60, 100, 150, 100]
    assert "100 MiB, +40.0% not attributed" in axes.texts[1].get_text()
    assert [f"{error:+.1%}" for error in Ledger(tuple(rows)).frame()["error"]] == ["+40.0%", "-50.0%"]
    assert "-50.0%" in axes.texts[3].get_text()
    assert "Adafactor, peak, 03, laptop, cpu: predicted 150 MiB, measured 100 MiB, -50.0% not attributed" in alt


@pytest.mark.parametrize(("factor", "scale"), [(49, "linear"), (51, "log")])
def test_a_wide_range_takes_a_logarithmic_axis_and_says_so(factor, scale):
    figure, _ = viz.beside_figure(
        [row(predicted=MiB, measured=MiB), row(predicted=factor * MiB, measured=factor * MiB)]
    )
    (axes,) = figure.axes
    assert axes.get_xscale() == scale
    assert ("logarithmic" in axes.get_xlabel()) is (scale == "log")
    assert axes.get_xlim()[0] < 1 < factor < axes.get_xlim()[1]


def test_seconds_have_an_axis_of_their_own():
    figure, alt = viz.beside_figure([row(), row(predicted=0.12, measured=0.15, unit="seconds")])
    memory, time = figure.axes
    assert (memory.get_xlabel(), time.get_xlabel()) == ("memory, MiB", "time, ms")
    assert [bar.get_width() for bar in time.patches] == pytest.approx([120, 150])
    assert "predicted 120 ms, measured 150 ms" in alt


@pytest.mark.parametrize(
    ("field", "values"), [("device", ("cpu", "cuda")), ("scale", ("laptop", "gpu")), ("chapter", ("03", "04"))]
)
def test_the_same_row_of_two_runs_is_told_apart(field, values):
    figure, _ = viz.ledger_figure(Ledger(tuple(row(**{field: value}) for value in values)))
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == [f"AdamW\npeak, {value}" for value in values]


def test_an_empty_ledger_is_refused_with_a_sentence():
    with pytest.raises(CourseError, match="record one first"):
        viz.ledger_figure(Ledger(()))
