"""Chapter 03: what decay leaves against closed forms, and figures that say what their data say."""

import pytest
import torch

from course_utils.lessons import c03_adamw as lesson
from course_utils.optim import Adam, AdamW


def test_decay_alone_is_what_the_closed_forms_say():
    """AdamW and SGD with L2 leave (1 - αλ)^steps at every scale; Adam with L2 follows the pencil."""
    scales, options = (0.01, 1.0, 100.0), {"lr": 0.01, "weight_decay": 0.1}
    expected = torch.full((3,), (1 - 0.001) ** 200, dtype=torch.float64)
    for kind in (AdamW, torch.optim.AdamW, torch.optim.SGD):
        left = lesson.left_after_noise(lambda p, kind=kind: kind(p, **options), scales, 200, pairs=50)
        torch.testing.assert_close(left, expected, rtol=0.02, atol=0)
    l2 = lesson.left_after_noise(lambda p: Adam(p, **options), scales, 200)
    torch.testing.assert_close(l2, lesson.predicted_left_l2(scales, 200, **options), rtol=0.02, atol=0.02)
    assert l2[0] < 0.05
    assert l2[2] > 0.99


def test_the_decay_figure_follows_its_controls():
    _, alt = lesson.decay_figure(lr=0.01, weight_decay=0.1, steps=100)
    _, other = lesson.decay_figure(lr=0.01, weight_decay=0.2, steps=100)
    assert "after 100 steps" in alt
    assert alt != other


def test_the_correction_figure_names_first_and_largest():
    sizes = [(1 - 0.9**t) / (1 - 0.999**t) ** 0.5 for t in range(1, 101)]
    figure, alt = lesson.correction_figure(sizes, (0.9, 0.999))
    assert "3.16 at step 1, a largest value of 6.57 at step 12" in alt
    predicted, measured = figure.axes[0].lines[:2]
    assert list(predicted.get_ydata()) == pytest.approx(list(measured.get_ydata()))


def test_the_flow_charts_join_decay_at_different_places():
    figure, _ = lesson.decay_paths_figure()
    places = [next(t.get_position()[0] for t in axes.texts if t.get_text() == "decay λθ") for axes in figure.axes]
    assert places[0] < 0.2 < 0.8 < places[1]
