"""GaLore beside its equations, written out with NumPy."""

import numpy as np
import pytest
import torch

from course_utils.optim.adam import AdamW
from course_utils.optim.galore import GaLore

OPTIONS = {"lr": 0.1, "weight_decay": 0.05, "rank": 3, "interval": 4, "scale": 0.5}


def by_equations(theta, gradients):
    """The parameter after each step; the algorithm of Zhao et al. (2024), with AdamW inside."""
    m = v = projection = None
    for t, g in enumerate(gradients, 1):
        if (t - 1) % OPTIONS["interval"] == 0:
            projection = np.linalg.svd(g, full_matrices=False)[0][:, : OPTIONS["rank"]]
        r = projection.T @ g
        m, v = ((0.0 if one is None else one) for one in (m, v))
        m, v = 0.9 * m + 0.1 * r, 0.999 * v + 0.001 * r**2
        n = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        theta = (
            theta * (1 - OPTIONS["lr"] * OPTIONS["weight_decay"]) - OPTIONS["lr"] * OPTIONS["scale"] * projection @ n
        )
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
    found = []
    for kind, options in ((GaLore, OPTIONS), (AdamW, {"lr": 0.1, "weight_decay": 0.05})):
        parameter = torch.nn.Parameter(torch.ones(3, 7))
        parameter.grad = gradient
        kind([parameter], **options).step()
        found.append(parameter.detach())
    assert torch.equal(*found)


@pytest.mark.parametrize("shape", [(5, 8), (8, 5), (3, 8), (6,)])
def test_state_bytes_are_those_of_the_state(shape):
    parameter = torch.nn.Parameter(torch.ones(shape))
    parameter.grad = torch.ones(shape)
    optimizer = GaLore([parameter], **OPTIONS)
    optimizer.step()
    assert sum(t.nbytes for t in optimizer.state[parameter].values()) == GaLore.state_bytes(shape, rank=3)
