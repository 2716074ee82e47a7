"""The first tensor with an infinity or a NaN is named, in both directions."""

import torch
from torch import nn

from course_utils.precision import watch_finite


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def test_a_healthy_step_finds_nothing():
    model = make_model()
    with watch_finite(model) as sightings:
        model(torch.ones(1, 3)).sum().backward()
    assert sightings == []


def test_a_broken_parameter_is_named_with_its_place():
    model = make_model()
    model[2].weight.data[1, 3] = torch.nan
    with watch_finite(model) as sightings:
        model(torch.ones(1, 3)).sum().backward()
    assert sightings[0] == "the parameter 2.weight holds nan at (1, 3) (12.5% of it is not finite)"


def test_the_first_output_that_overflows_is_named_before_those_that_follow():
    model = make_model().half()
    model[0].weight.data.fill_(60_000.0)
    with watch_finite(model) as sightings:
        model(torch.full((1, 3), 2.0, dtype=torch.float16)).float().sum().backward()
    assert sightings[0].startswith("the output of 0 holds inf at (0, 0)")
    assert any(line.startswith("the output of the model") for line in sightings)


def test_a_gradient_that_overflows_in_backward_is_named():
    model = make_model()
    with watch_finite(model) as sightings:
        (model(torch.ones(1, 3)) * torch.inf).sum().backward()
    assert sightings[0].startswith("the gradient of the output of")
    assert any("the gradient of the parameter 0.weight" in line for line in sightings)
    assert not model[0]._forward_hooks
