"""Gradients in 8 bits: unbiased, a byte an element on the wire, and coarse ones that need error feedback."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from course_utils.distributed import QSGD, counted, launch
from course_utils.distributed.qsgd import BLOCK, from_levels, to_levels


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def round_trip(tensor, *arguments, **options):
    return from_levels(*to_levels(tensor, *arguments, **options), tensor, *arguments[:1])


def test_rounding_stochastic_is_right_on_average():
    tensor, draw = torch.randn(300, generator=draws()), draws(1)
    for levels in (1, 127):
        mean = torch.stack([round_trip(tensor, levels, generator=draw) for _ in range(4000)]).mean(0)
        step = tensor.abs().max() / levels
        # At most half a step of standard deviation a draw: four thousand draws, and five deviations.
        assert ((mean - tensor).abs() < 5 * 0.5 * step / 4000**0.5).all(), levels


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 3 * BLOCK), st.integers(1, 127), st.booleans(), st.floats(1e-36, 1e30))
def test_no_element_is_off_by_more_than_a_step(size, levels, stochastic, scale):
    tensor = scale * torch.randn(size, generator=draws(size))
    codes, scales = to_levels(tensor, levels, stochastic, draws())
    assert codes.dtype == torch.int8
    assert codes.abs().max() <= levels
    errors = torch.nn.functional.pad((from_levels(codes, scales, tensor, levels) - tensor).abs(), (0, -size % BLOCK))
    limit = (1 if stochastic else 0.5) * (1 + 1e-3) * scales / levels
    assert (errors.view(-1, BLOCK) <= limit).all()


def test_zeros_stay_zero_and_shape_and_type_come_back():
    assert torch.equal(round_trip(torch.zeros(3, 5)), torch.zeros(3, 5))
    tiny = 1e-37 * torch.tensor([1.0, 0.1, 0.5, 0.0])
    torch.testing.assert_close(round_trip(tiny, 127, False), tiny, rtol=0.05, atol=0)
    half = torch.randn(3, 5).bfloat16()
    assert round_trip(half).shape == (3, 5)
    assert round_trip(half).dtype == torch.bfloat16


def one_mean(levels):
    """This rank's gradient, the mean it gets, and what it sends."""
    layer = nn.Linear(100, 50)
    averaging = QSGD(layer.parameters(), levels)
    layer(torch.randn(8, 100, generator=draws(dist.get_rank()))).square().mean().backward()
    gradient = layer.weight.grad.clone()
    with counted() as traffic:
        averaging.average()
    return gradient, layer.weight.grad, traffic.sent, traffic.messages


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_everybody_gets_the_same_mean_for_a_byte_an_element(ranks):
    results = launch(one_mean, ranks, 127)
    gradients = torch.stack([result[0] for result in results])
    blocks = -(-(50 * 100 + 50) // BLOCK)
    for _, mean, sent, messages in results:
        assert torch.equal(mean, results[0][1])
        assert (mean - gradients.mean(0)).abs().max() < gradients.abs().max() / 127
        assert sent == (ranks - 1) * blocks * (BLOCK + 4)
        assert messages == 2 * (ranks - 1)


def losses(cases):
    """The loss of a small regression at the end, by way of averaging, with a share of the data on each rank."""
    draw = draws()
    x, truth = torch.randn(64, 20, generator=draw), torch.randn(20, 1, generator=draw)
    # A few columns are much larger, so that to the nearest of −1, 0 and 1 all others are rounded away.
    x[:, 0] *= 10
    y = x @ truth
    share = slice(dist.get_rank(), None, dist.get_world_size())
    results = {}
    for name, options in cases.items():
        theta = nn.Parameter(torch.zeros(20, 1))
        averaging = QSGD([theta], **options)
        optimizer = torch.optim.SGD([theta], lr=0.004)
        for _ in range(600):
            (x[share] @ theta - y[share]).square().mean().backward()
            averaging.average()
            optimizer.step()
            optimizer.zero_grad()
        results[name] = (x @ theta - y).square().mean().item()
    return results


def test_coarse_rounding_needs_error_feedback():
    nearest = {"levels": 1, "stochastic": False}
    cases = {"127 levels": {}, "nearest": nearest, "with feedback": nearest | {"error_feedback": True}}
    results = launch(losses, 2, cases)[0]
    assert results["127 levels"] < 0.1
    assert results["with feedback"] < 0.1 * results["nearest"]


def one_level():
    parameter = nn.Parameter(torch.zeros(1000))
    parameter.grad = torch.linspace(0, 1, 1000)
    QSGD([parameter], levels=1).average()
    return parameter.grad


def test_every_rank_has_its_own_chance():
    """With one chance for both, the mean of equal gradients would be one rank's rounding: 0 or 1 everywhere."""
    assert set(launch(one_level, 2)[0].tolist()) == {0.0, 0.5, 1.0}
