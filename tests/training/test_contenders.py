"""The optimizers of the comparison: each makes a step at its own rate, and rates never vanish before the end."""

import pytest
import torch

from course_utils import models
from course_utils.training.contenders import contenders


@pytest.mark.parametrize("name", contenders())
def test_each_moves_every_parameter_at_its_rate(name):
    contender = contenders()[name]
    model = models.build("distilbert", labels=3)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = contender.at(0.5 * contender.lr).make(model, 0.5 * contender.lr)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    assert {group["lr"] for group in optimizer.param_groups} == {0.5 * contender.lr}
    assert not any(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("name", contenders())
def test_the_rate_is_never_zero_within_the_run(name):
    factors = [contenders()[name].factor(step, 91) for step in range(1, 92)]
    assert all(0 < factor <= 1 for factor in factors)
    assert max(factors) == 1
