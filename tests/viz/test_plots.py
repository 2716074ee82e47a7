"""General plots draw the numbers they are given, and their words say them."""

import pytest

from course_utils import viz
from course_utils.errors import CourseError
from course_utils.viz.parts import arrow, box, subplots


def test_lines_are_the_values_and_levels_lie_across():
    figure, alt = viz.lines(
        {"a": {1: 3.0, 10: 2.0}, "b": [5.0, 4.0]}, "step", "loss", levels={"chance": 2.3}, marks=True
    )
    axes = figure.axes[0]
    assert [list(line.get_xdata()) for line in axes.lines[:2]] == [[1, 10], [1, 2]]
    assert [list(line.get_ydata()) for line in axes.lines[:2]] == [[3.0, 2.0], [5.0, 4.0]]
    assert set(axes.lines[2].get_ydata()) == {2.3}
    assert alt == "loss against step: a from 3 at 1 to 2 at 10; b from 5 at 1 to 4 at 2; chance is at 2.3."
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "loss")


@pytest.mark.parametrize("count", [0, 8])
def test_more_lines_than_colors_are_refused(count):
    with pytest.raises(CourseError, match=f"1 to 7 runs, not {count}"):
        viz.lines({str(number): [1.0] for number in range(count)}, "x", "y")


def test_bars_say_their_values():
    figure, alt = viz.bars({"AdamW": 8, "SGD": 0}, "bytes a parameter", words="{:d} B".format)
    assert [bar.get_width() for bar in figure.axes[0].patches] == [8, 0]
    assert [text.get_text() for text in figure.axes[0].texts] == ["8 B", "0 B"]
    assert alt == "bytes a parameter: AdamW 8 B; SGD 0 B."


def test_an_arrow_joins_two_boxes():
    figure, axes = subplots()
    one, other = box(axes, 0.2, 0.5, "one", "warning"), box(axes, 0.8, 0.5, "other", "warning", letters="ink")
    arrow(axes, one, other, both_ways=True)
    (drawn,) = [text for text in axes.texts if not text.get_text()]
    assert (drawn.xyann, drawn.xy) == ((0.2, 0.5), (0.8, 0.5))
    assert one.get_color() != other.get_color()
