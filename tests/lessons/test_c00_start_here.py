"""Chapter 00's two figures draw their data, and say so where there is none."""

import pytest

from course_utils.errors import CourseError
from course_utils.lessons import c00_start_here as lesson
from course_utils.training import History
from course_utils.units import MiB


def history(losses=(2.0, 1.0, 0.5)):
    steps = [{"step": i + 1, "loss": loss, "seconds": i, "tokens": 1} for i, loss in enumerate(losses)]
    return History(steps=steps, evaluations=[{"epoch": 1, "step": 3, "accuracy": 0.7}])


def test_learning_curves_stand_beside_chance():
    figure, alt = lesson.learning_curves(history(), chance=0.25)
    accuracy, level = figure.axes[1].lines
    assert list(accuracy.get_ydata()) == [0.7]
    assert set(level.get_ydata()) == {0.25}
    assert "0.70" in alt
    assert "0.25" in alt


def test_learning_curves_need_an_evaluation():
    with pytest.raises(CourseError, match="evaluate_on"):
        lesson.learning_curves(History(steps=history().steps), chance=0.25)


def test_peak_against_batch_draws_both_series():
    figure, alt = lesson.peak_against_batch([1, 2], [3 * MiB, 5 * MiB], {1: 2 * MiB, 2: 4 * MiB}, rule=MiB)
    predicted, measured, bet = figure.axes[0].lines
    assert set(bet.get_ydata()) == {1}
    assert list(predicted.get_ydata()) == [2, 4]
    assert list(measured.get_ydata()) == [3, 5]
    assert "4.00 MiB at 2; measured: 3.00 MiB at 1, 5.00 MiB at 2" in alt
