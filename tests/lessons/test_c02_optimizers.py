"""Chapter 02: surfaces, paths and small experiments against closed forms, and figures that draw what they say."""

from math import sqrt

import pytest
import torch
from figures import title
from transformers import get_linear_schedule_with_warmup

from course_utils.lessons import c02_optimizers as lesson
from course_utils.lessons.c02_optimizers import (
    BOWL,
    RAVINE,
    SADDLE,
    SURFACES,
    TURNED_RAVINE,
    fewest_steps,
    follow_path,
    gradient_sizes,
    gradient_variance,
    heights,
    predicted_steps,
    predicted_variance,
    settled_variance,
    steps_to_shrink,
    update_sizes,
)
from course_utils.optim import SGD, Adam, Momentum, Nesterov, RMSProp, schedules


@pytest.mark.parametrize("surface", SURFACES.values(), ids=SURFACES)
def test_the_lowest_value_is_zero_and_start_and_minimum_are_in_view(surface):
    (left, right), (low, high) = surface.view
    x, y = torch.meshgrid(torch.linspace(left, right, 301), torch.linspace(low, high, 301), indexing="xy")
    z = surface.height(x.double(), y.double())
    assert z.min() >= -1e-12
    assert z.min() < 2e-2
    assert left <= surface.start[0] <= right
    assert low <= surface.start[1] <= high


def test_the_turned_ravine_is_the_ravine_turned():
    """Gradient descent goes the same way on both, up to the turn."""
    surfaces = RAVINE, TURNED_RAVINE
    places = [follow_path(lambda p: Momentum(p, 0.03, momentum=0.5), surface, 30) for surface in surfaces]
    assert heights(RAVINE, places[0]).tolist() == pytest.approx(heights(TURNED_RAVINE, places[1]).tolist())
    assert places[0].norm(dim=1).tolist() == pytest.approx(places[1].norm(dim=1).tolist())


def test_a_path_is_the_closed_form_of_gradient_descent():
    places = follow_path(lambda p: SGD(p, 0.03), RAVINE, 20, start=(1.0, 1.0))
    assert places[-1].tolist() == pytest.approx([(1 - 0.03) ** 20, (1 - 0.03 * 50) ** 20])
    assert places.shape == (21, 2)


def test_noise_is_that_of_the_seed():
    def places(seed):
        return follow_path(lambda p: SGD(p, 0.1), BOWL, 5, seed=seed)

    assert torch.equal(places(1), places(1))
    assert not torch.equal(places(1), places(2))


def test_a_path_that_leaves_the_numbers_is_infinitely_high():
    assert heights(SADDLE, follow_path(lambda p: SGD(p, 50.0), SADDLE, 60))[-1] == torch.inf


def test_the_fewest_steps_are_those_of_the_best_rate():
    """Gradient descent multiplies x by 1 − α and y by 1 − 50α; 1/50 makes y vanish at once."""
    rates = [0.001, 1 / 50, 0.05]
    steps, rate = fewest_steps(SGD, RAVINE, share=1e-4, rates=rates)
    left = [
        0.5 * (4 * (1 - rate) ** t) ** 2 / RAVINE.height(torch.tensor(-4.0), torch.tensor(1.0)).item()
        for t in range(400)
    ]
    assert (steps, rate) == (next(t for t in range(400) if left[t] <= 1e-4), 1 / 50)
    assert fewest_steps(SGD, RAVINE, steps=10, rates=[0.001]) == (10, 0.001)


@pytest.mark.parametrize("curvature", [3.0, 40.0, 700.0])
def test_closed_forms_predict_the_steps_of_all_three(curvature):
    root = sqrt(curvature)
    makers = {
        "descent": lambda p: SGD(p, 2 / (1 + curvature)),
        "momentum": lambda p: Momentum(p, 4 / (1 + root) ** 2, momentum=((root - 1) / (root + 1)) ** 2),
        "Nesterov": lambda p: Nesterov(p, 1 / curvature, momentum=(root - 1) / (root + 1)),
    }
    counted = {name: steps_to_shrink(make, curvature, 1e-3) for name, make in makers.items()}
    assert predicted_steps(curvature, 1e-3) == counted
    assert steps_to_shrink(lambda p: SGD(p, 1.0), 3.0, 1e-3, max_steps=50) is None


def test_update_sizes_are_those_of_a_gradient_of_one():
    assert update_sizes(lambda p: Momentum(p, 0.5, momentum=0.5), 3) == pytest.approx([0.5, 0.75, 0.875])
    assert update_sizes(lambda p: RMSProp(p, 1.0), 1) == pytest.approx([10.0])
    assert update_sizes(lambda p: Adam(p, 1.0), 10) == pytest.approx([1.0] * 10)


@pytest.mark.parametrize(("lr", "momentum"), [(0.1, 0.0), (0.5, 0.0), (0.05, 0.9), (0.3, 0.5)])
def test_the_scatter_is_what_the_fixed_point_says(lr, momentum):
    measured = settled_variance(lambda p: Momentum(p, lr, momentum=momentum))
    assert measured == pytest.approx(predicted_variance(lr, momentum), rel=0.06)


def test_a_schedule_that_falls_takes_the_scatter_away():
    constant = settled_variance(lambda p: SGD(p, 0.2), 200)
    falling = settled_variance(lambda p: SGD(p, 0.2), 200, lambda step: 1 - step / 200)
    assert falling < constant / 5


class Linear(torch.nn.Module):
    """The mean of w·x: its gradient for one example is that example."""

    def __init__(self, width):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(width, dtype=torch.float64))

    def forward(self, x):
        return type("Output", (), {"loss": (x @ self.w).mean()})


@pytest.mark.parametrize("batch_size", [1, 4, 32])
def test_the_variance_of_a_batch_is_that_of_an_example_over_its_size(batch_size):
    x = torch.randn(500, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    of_one = x.var(0, correction=0).sum().item()
    measured = gradient_variance(Linear(300), {"x": x}, batch_size, draws=80)
    assert measured == pytest.approx(of_one / batch_size, rel=0.06)


def test_gradient_sizes_are_by_tensor():
    sizes = gradient_sizes(Linear(3), {"x": torch.tensor([[3.0, 0.0, 4.0]], dtype=torch.float64)})
    assert sizes == {"w": pytest.approx(sqrt(25 / 3))}


def test_paths_are_drawn_where_they_went_beside_their_losses():
    places = follow_path(lambda p: SGD(p, 0.02), RAVINE, 10)
    figure, alt = lesson.paths_figure(RAVINE, {"a": places}, "One path")
    plan, curve = figure.axes
    assert torch.equal(torch.tensor(plan.lines[0].get_xydata()), places)
    assert list(curve.lines[0].get_ydata()) == pytest.approx(heights(RAVINE, places).tolist())
    assert "ravine" in alt
    assert "a: 33 at 0, " in alt


def test_schedules_are_drawn_from_the_functions():
    figure, alt = lesson.schedules_figure(total=60, warmup=6)
    curves = {line.get_label(): line.get_ydata() for line in figure.axes[0].lines}
    assert len(curves) == 3
    assert curves["inverse square root"][24] == schedules.inverse_sqrt(24, warmup=6) == 0.5
    assert "inverse square root: from 0 at 0 to 0.316 at 60, highest 1 at 6" in alt
    assert [name for name, factors in curves.items() if factors[-1] == pytest.approx(0)] == ["linear", "cosine"]
    assert title(figure.axes[0]) == "Linear and cosine end at zero"


def test_linear_decay_is_that_of_transformers():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = get_linear_schedule_with_warmup(optimizer, 5, 20).lr_lambdas[0]
    assert [lesson.linear(step, 20, 5) for step in range(25)] == pytest.approx([theirs(step) for step in range(25)])


def test_noise_is_held_against_one_over_the_size():
    figure, alt = lesson.noise_figure([1, 2, 4], [[9.0, 7.0], [4.0, 4.0], [2.0, 2.4]])
    measured, predicted = figure.axes[0].lines[:2]
    assert list(measured.get_ydata()) == [8, 4, pytest.approx(2.2)]
    assert list(predicted.get_ydata()) == [8, 4, 2]
    assert "variance: 8 (7 to 9) at 1, 4 (4 to 4) at 2, 2.2 (2 to 2.4) at 4" in alt


@pytest.mark.parametrize("surface", SURFACES)
def test_the_steered_path_begins_where_the_figure_shows(surface):
    figure, _ = lesson.steering_figure(surface, "Adam", 0.02, 0.9, 0.99, nearer=0.1)
    plan = figure.axes[0]
    x, y = plan.lines[0].get_xydata()[0]
    assert (x, y) == pytest.approx((SURFACES[surface].start[0], 0.1 * SURFACES[surface].start[1]))
    assert plan.get_xlim()[0] <= x <= plan.get_xlim()[1]
    assert plan.get_ylim()[0] <= y <= plan.get_ylim()[1]
