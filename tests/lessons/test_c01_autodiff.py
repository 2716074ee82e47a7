"""The picture of a graph shows its numbers, and its boxes and arrows keep clear of each other."""

import numpy as np
import pytest
from figures import title

from course_utils import autodiff
from course_utils.autodiff import Variable
from course_utils.lessons import c01_autodiff as lesson


def boxes(figure):
    return [patch.get_bbox() for patch in figure.axes[0].patches]


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts if text.get_text()]


def quadratic_figure():
    a, b, c, x, y = (Variable(value, name) for value, name in zip((1, 2, 3, 2, -1), "abcxy", strict=True))
    output = a * x**2 + b * x * y + c * y**2
    output.backward(retain_graph=True)
    return lesson.graph_figure(output)


@pytest.mark.parametrize("draw", [quadratic_figure, lesson.cost_figure])
def test_boxes_do_not_overlap_and_stay_in_the_picture(draw):
    figure, _ = draw()
    outlines = boxes(figure)
    for i, box in enumerate(outlines):
        assert not any(box.overlaps(other) for other in outlines[:i])
    axes = figure.axes[0]
    assert min(box.x0 for box in outlines) >= axes.get_xlim()[0]
    assert max(box.x1 for box in outlines) <= axes.get_xlim()[1]
    assert min(min(box.y0, box.y1) for box in outlines) >= min(axes.get_ylim())


def test_arrows_pass_no_box():
    figure, _ = quadratic_figure()
    for line in figure.axes[0].lines:
        x, y = line.get_data()
        for box in boxes(figure):
            for place in zip(x[1:-1], y[1:-1], strict=True):
                assert not (box.x0 < place[0] < box.x1 and box.y0 < place[1] < box.y1)


def test_the_cost_figure_shows_values_gradients_and_local_derivatives():
    figure, alt = lesson.cost_figure(y=1, w=2, x=3, b=-1)
    assert {"C:  −", "max(0, ·)", "grad −3", "−4"} <= set(texts(figure))
    assert "w = 2, gradient −3, saved" in alt
    assert "max(0, ·) to C:  − −1" in alt
    assert "gradients pass" in title(figure.axes[0])
    figure, alt = lesson.cost_figure(b=-7)
    assert "w = 2, gradient 0, saved" in alt
    assert "max stops all" in title(figure.axes[0])


def test_arrays_show_their_numbers_or_their_shape():
    w = Variable(np.ones((4, 2)), "w")
    output = autodiff.relu(w @ Variable([1.0, 2.0], "x")).sum()
    output.backward(retain_graph=True)
    figure, alt = lesson.graph_figure(output)
    assert "4 × 2" in texts(figure)
    assert "(1, 2)" in texts(figure)
    assert "w to @;" in alt


def test_a_graph_without_backward_is_drawn_without_gradients():
    figure, _ = lesson.graph_figure(lesson.cost(1, 2, 3, -1))
    assert not [text for text in texts(figure) if text.startswith("grad")]
