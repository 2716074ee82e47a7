"""GaLore beside its equations, written out with NumPy."""

from functools import partial

import numpy as np
import pytest
import torch
from optimizer_runs import state_bytes_of

from course_utils.optim import APOLLO, AdamW, GaLore

OPTIONS = {"lr": 0.1, "weight_decay": 0.05, "rank": 3, "interval": 4, "scale": 0.5}


def adam_step(gradient, m, v, t):
    """The step at a rate of 1, and both averages."""
    m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
    return (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8), m, v


def by_equations(theta, gradients):
    """The parameter after each step; the algorithm of Zhao et al. (2024), with AdamW inside."""
    m = v = 0.0
    for t, g in enumerate(gradients, 1):
        if (t - 1) % OPTIONS["interval"] == 0:
            projection = np.linalg.svd(g, full_matrices=False)[0][:, : OPTIONS["rank"]]
        n, m, v = adam_step(projection.T @ g, m, v, t)
        theta = theta * (1 - OPTIONS["lr"] * OPTIONS["weight_decay"])
        theta = theta - OPTIONS["lr"] * OPTIONS["scale"] * projection @ n
        yield theta


@pytest.mark.parametrize("turned", [False, True])
def test_steps_are_those_of_the_equations_whichever_side_is_longer(turned):
    random = np.random.default_rng(0)
    theta, gradients = random.normal(size=(5, 8)), random.normal(size=(9, 5, 8))
    lay = (lambda matrix: torch.tensor(matrix.T.copy())) if turned else torch.tensor
    parameter = torch.nn.Parameter(lay(theta))
    optimizer = GaLore([parameter], **OPTIONS)
    for gradient, right in zip(gradients, by_equations(theta, gradients), strict=True):
        parameter.grad = lay(gradient)
        optimizer.step()
        torch.testing.assert_close(parameter.detach(), lay(right), rtol=1e-5, atol=1e-5)


def test_what_is_not_wider_than_the_rank_is_adamws():
    gradient = torch.randn(3, 7, generator=torch.Generator().manual_seed(1))
    updates = []
    for kind, options in ((GaLore, OPTIONS), (AdamW, {"lr": 0.1, "weight_decay": 0.05})):
        parameter = torch.nn.Parameter(torch.ones(3, 7))
        parameter.grad = gradient
        kind([parameter], **options).step()
        updates.append(parameter.detach())
    assert torch.equal(*updates)


@pytest.mark.parametrize("shape", [(5, 8), (8, 5), (3, 8), (6,)])
def test_state_bytes_are_those_of_the_state(shape):
    state_bytes = state_bytes_of(partial(GaLore, **OPTIONS), torch.nn.Parameter(torch.ones(shape)))
    assert state_bytes == GaLore.state_bytes(shape, rank=3)


APOLLO_OPTIONS = {**OPTIONS, "growth": 1.01}


def apollo_by_equations(theta, gradients, rank, draw):
    """Zhu et al. (2024), algorithm 1, with their limit on how fast a step may grow; `draw(t)` is P of step t."""
    m = v = 0.0
    before = None
    for t, g in enumerate(gradients, 1):
        r = draw(t).T @ g
        n, m, v = adam_step(r, m, v, t)
        if rank > 1:
            scaled = g * (np.linalg.norm(n, axis=0) / np.linalg.norm(r, axis=0))
        else:
            scaled = g * np.linalg.norm(n) / np.linalg.norm(r)
        if before is not None and np.linalg.norm(scaled) / before > 1.01:
            scaled = scaled / np.linalg.norm(scaled) * 1.01 * before
        before = np.linalg.norm(scaled)
        theta = theta * (1 - OPTIONS["lr"] * OPTIONS["weight_decay"]) - OPTIONS["lr"] * OPTIONS["scale"] * scaled
        yield theta


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("turned", [False, True])
def test_apollo_scales_the_gradient_itself(turned, rank):
    random = np.random.default_rng(0)
    theta, gradients = random.normal(size=(5, 8)), random.normal(size=(9, 5, 8))
    gradients[4] *= 10  # where the limit bites
    lay = (lambda matrix: torch.tensor(matrix.T.copy())) if turned else torch.tensor
    parameter, updates = torch.nn.Parameter(lay(theta)), []
    optimizer = APOLLO([parameter], **{**APOLLO_OPTIONS, "rank": rank})
    for gradient in gradients:
        parameter.grad = lay(gradient)
        optimizer.step()
        updates.append(parameter.detach().clone())
    state = optimizer.state[parameter]

    def draw(t):
        generator = torch.Generator().manual_seed(state["seed"] + (t - 1) // OPTIONS["interval"])
        return (torch.randn(5, rank, generator=generator) / rank**0.5).double().numpy()

    for update, right in zip(updates, apollo_by_equations(theta, gradients, rank, draw), strict=True):
        torch.testing.assert_close(update, lay(right), rtol=1e-5, atol=1e-5)
    state_bytes = state_bytes_of(partial(APOLLO, **{**APOLLO_OPTIONS, "rank": rank}), parameter)
    assert state_bytes == APOLLO.state_bytes((5, 8), 8, rank=rank)


def test_apollo_moves_after_a_step_at_rate_zero_and_after_a_gradient_of_zeros():
    parameter = torch.nn.Parameter(torch.ones(5, 8))
    optimizer = APOLLO([parameter], lr=0.0, weight_decay=0.0, rank=2)
    for rate, size in ((0.0, 1.0), (0.1, 0.0), (0.1, 1.0)):
        optimizer.param_groups[0]["lr"] = rate
        parameter.grad = size * torch.ones(5, 8)
        before = parameter.detach().clone()
        optimizer.step()
        assert torch.equal(parameter, before) == (rate * size == 0)


def test_apollo_draws_for_each_matrix_of_its_own():
    pair = [torch.nn.Parameter(torch.ones(5, 8)) for _ in range(2)]
    for parameter in pair:
        parameter.grad = torch.arange(40.0).view(5, 8)
    APOLLO(pair, rank=2).step()
    assert not torch.equal(*pair)


@pytest.mark.parametrize("options", [{"rank": 0}, {"interval": 0}])
def test_what_is_out_of_range_is_refused(options):
    with pytest.raises(ValueError, match="is out of range: it must be at least 1"):
        GaLore([{"params": [torch.nn.Parameter(torch.ones(5, 8))], **options}])


def test_an_infinite_rank_projects_nothing():
    state_bytes = state_bytes_of(partial(GaLore, rank=float("inf")), torch.nn.Parameter(torch.ones(5, 8)))
    assert state_bytes == AdamW.state_bytes((5, 8))
