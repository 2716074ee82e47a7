"""Figures about how optimizers move draw what they say."""

import pytest
import torch

from course_utils import optim, viz
from course_utils.errors import CourseError
from course_utils.optim import SGD
from course_utils.optim.surfaces import RAVINE, SURFACES, heights, path


def test_paths_are_drawn_where_they_went_beside_their_losses():
    places = path(lambda p: SGD(p, 0.02), RAVINE, 10)
    figure, alt = viz.paths_figure(RAVINE, {"a": places})
    plan, curve = figure.axes
    assert torch.equal(torch.tensor(plan.lines[0].get_xydata()), places)
    assert list(curve.lines[0].get_ydata()) == pytest.approx(heights(RAVINE, places).tolist())
    assert "ravine" in alt
    assert "a from 33 to" in alt
    with pytest.raises(CourseError, match="not 5"):
        viz.paths_figure(RAVINE, dict.fromkeys("abcde", places))


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("optimizer", viz.STEERED)
def test_every_position_of_the_controls_draws(surface, optimizer):
    figure, alt = viz.steering_figure(surface, optimizer, lr=1.0, beta1=0.0, beta2=0.0, x=-1.0, y=0.5, steps=20)
    assert surface in alt
    assert optimizer in figure.legends[0].texts[0].get_text()


def test_schedules_are_drawn_from_the_functions():
    figure, alt = viz.schedules_figure(total=60, warmup=6)
    drawn = {line.get_label(): line.get_ydata() for line in figure.axes[0].lines}
    assert len(drawn) == 5
    assert drawn["inverse square root"][24] == optim.schedules.inverse_sqrt(24, warmup=6) == 0.5
    assert "inverse square root 0, 1, 0.32" in alt


def test_noise_is_held_against_one_over_the_size():
    figure, alt = viz.noise_figure([1, 2, 4], [8.0, 4.0, 2.2])
    predicted, measured = figure.axes[0].lines
    assert (list(predicted.get_ydata()), list(measured.get_ydata())) == ([8, 4, 2], [8, 4, 2.2])
    assert "1.00, 1.00, 1.10" in alt


def test_the_family_names_everyone():
    figure, alt = viz.family_figure()
    drawn = {text.get_text().replace("\n", " ") for text in figure.axes[0].texts}
    assert {"gradient descent", "momentum", "Nesterov", "AdaGrad", "RMSProp", "Adam"} <= drawn
    assert "AdaGrad to RMSProp: forget old ones" in alt


def test_a_difference_shows_lines_that_go_and_lines_that_come():
    shown = viz.difference(optim.SGD.descend, optim.SGD.roll).data
    assert "-     parameter.add_(gradient" in shown
    assert "+     parameter.add_(b" in shown
    assert "course_utils.optim.sgd.SGD.descend" in shown
