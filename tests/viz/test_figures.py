"""Of the room: each figure's text says what its data say, and what is drawn is the data."""

import pytest
from figures import title

from course_utils import viz
from course_utils.errors import CourseError
from course_utils.memory import instants
from course_utils.training import History
from course_utils.units import MiB
from course_utils.viz.parts import draw_arrow, draw_box, subplots


def labels_are_there(figure):
    return all(axes.get_xlabel() for axes in figure.axes if axes.axison)


def test_instants_mark_the_fullest_and_draw_each_kind():
    sizes = instants(parameters=10 * MiB, state=20 * MiB, activations=50 * MiB, temporaries=MiB)
    figure, alt = viz.instants_figure(sizes, "a step")
    axes = figure.axes[0]
    assert sum("peak" in text.get_text() for text in axes.texts) == 1
    assert "80.0 MiB  ← peak" in axes.texts[0].get_text()
    widths = [patch.get_width() for patch in axes.patches]
    assert sum(widths) == pytest.approx(80 + 40 + 41)
    assert "activations 50.0 MiB" in alt
    assert labels_are_there(figure)


def history(losses=(2.0, 1.0, 0.5)):
    steps = [{"step": i + 1, "loss": loss, "seconds": i, "tokens": 1} for i, loss in enumerate(losses)]
    return History(steps=steps, evaluations=[{"epoch": 1, "step": 3, "accuracy": 0.7}])


def test_losses_are_means_over_a_window_beside_a_level():
    figure, alt = viz.losses_over_seeds({"a": [history()]}, window=2, level=("knowing nothing", 2.3))
    assert list(figure.axes[0].lines[0].get_ydata()) == [2.0, 1.5, 0.75]
    assert alt.endswith("knowing nothing is at 2.30.")


def test_bands_reach_from_the_least_to_the_most_of_the_runs():
    runs = {"A": [history((2.0, 1.0)), history((4.0, 3.0)), history((3.0, 2.0))], "B": [history((1.0, 1.0))]}
    figure, alt = viz.losses_over_seeds(runs, window=1)
    (steps,) = figure.axes
    assert [list(line.get_ydata()) for line in steps.lines] == [[3.0, 2.0], [1.0, 1.0]]
    band = steps.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (1.0, 4.0)
    assert "A: 3.00 (2.00 to 4.00) at 1, 2.00 (1.00 to 3.00) at 2; B: 1.00" in alt
    assert labels_are_there(figure)
    titled = viz.losses_over_seeds(runs, title="A is lower")[0]
    assert title(titled.axes[0]) == "A is lower"


def test_losses_apart_are_paired_by_seed():
    runs = {"A": [history((2.0, 1.0)), history((4.0, 3.0))], "B": [history((2.5, 2.0)), history((4.5, 3.0))]}
    figure, alt = viz.losses_over_seeds(runs, window=1, reference="A")
    assert [list(line.get_ydata()) for line in figure.axes[0].lines[:1]] == [[0.5, 0.5]]
    band = figure.axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (0.0, 1.0)
    assert "B: +0.500 (+0.500 to +0.500) at 1, +0.500 (+0.000 to +1.000) at 2" in alt
    assert labels_are_there(figure)


@pytest.mark.parametrize("runs", [{}, {str(i): [history()] for i in range(8)}, {"A": [history(), history((1.0,))]}])
def test_runs_that_cannot_stand_together_are_refused(runs):
    with pytest.raises(CourseError):
        viz.losses_over_seeds(runs)


def test_an_arrow_joins_two_boxes():
    figure, axes = subplots()
    start, end = draw_box(axes, 0.2, 0.5, "one", "warning"), draw_box(axes, 0.8, 0.5, "other", "warning", ink="ink")
    draw_arrow(axes, start, end)
    (annotation,) = [text for text in axes.texts if not text.get_text()]
    assert (annotation.xyann, annotation.xy) == ((0.2, 0.5), (0.8, 0.5))
    assert start.get_color() != end.get_color()
