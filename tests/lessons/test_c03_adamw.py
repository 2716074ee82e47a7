"""Chapter 03: what decay leaves against closed forms, and figures that say what their data say."""

from math import sqrt

import pytest
import torch
from torch import nn

from course_utils import hardware, training
from course_utils.lessons import c03_adamw as lesson
from course_utils.optim import Adam, AdamW
from course_utils.training import History


def test_a_step_is_as_large_as_gradients_agree():
    """Noise alone gives the root of 1/19, a steady gradient 1, and all between lies on the curve."""
    assert lesson.predicted_step_size(0.0) == pytest.approx(sqrt(1 / 19))
    assert lesson.predicted_step_size(1e6) == pytest.approx(1)
    signals = (0.0, 0.3, 1.0, 10.0)
    predicted = [lesson.predicted_step_size(signal) for signal in signals]
    assert lesson.step_sizes(signals, steps=300).tolist() == pytest.approx(predicted, rel=0.05)


def test_decay_alone_is_what_the_closed_forms_say():
    """AdamW and SGD with L2 leave (1 - αλ)^steps at every scale; Adam with L2 follows the pencil."""
    scales = (0.01, 1.0, 100.0)
    options = {"lr": 0.01, "weight_decay": 0.1}
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


def small_work():
    model = nn.Linear(8, 8, bias=False)
    return model, AdamW(model.parameters()), [torch.ones(8, 8)]


def test_the_bytes_of_an_update_are_counted_and_its_seconds_taken():
    """Twenty numbers of 4 bytes for each parameter, read or written, as the chapter adds them up."""
    cost = lesson.predict_and_time(small_work, training.update, hardware.machine("A100-40GB"))
    assert cost.bytes_moved == pytest.approx(20 * 64 * 4, rel=0.01)
    assert cost.new_bytes == 64 * 4  # the denominator
    assert cost.predicted == pytest.approx(cost.bytes_moved / 1555e9)
    assert cost.measured > 0


def test_the_figure_of_losses_draws_both_texts():
    def run(of_epoch):
        steps = [{"step": t + 1, "loss": of_epoch} for t in range(4)]
        return History(steps, [{"epoch": e, "step": 2 * e, "loss": of_epoch + e} for e in (1, 2)])

    figure, alt = lesson.validation_figure({"λ = 0": [run(1.0), run(2.0)], "λ = 10": [run(0.5), run(0.5)]})
    assert "3.50 (3.00 to 4.00) at 2; λ = 10" in alt
    assert [list(line.get_ydata()) for line in figure.axes[1].lines] == [[2.5, 3.5], [1.5, 2.5]]
