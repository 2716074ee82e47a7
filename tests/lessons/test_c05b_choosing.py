"""The optimizers of the comparison: each makes a step at its own rate, and rates never vanish before the end."""

import pytest
import torch

from course_utils import models
from course_utils.lessons import c05b_choosing as lesson
from course_utils.lessons.c05b_choosing import contenders
from course_utils.training import History
from course_utils.units import MiB


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


def test_bytes_by_optimizer_add_up_with_and_without_gradients():
    figure, alt = lesson.bytes_by_optimizer(MiB, {"A": 8, "B": 0.5})
    assert sum(patch.get_width() for patch in figure.axes[0].patches) == pytest.approx(4 + 4 + 8 + 4 + 4 + 0.5)
    assert "A 16.0 MiB; B 8.50 MiB" in alt
    assert "B 4.50 MiB" in lesson.bytes_by_optimizer(MiB, {"B": 0.5}, in_backward=True)[1]


def test_the_decision_chart_says_all_its_answers():
    figure, alt = lesson.decision_figure()
    drawn = " ".join(text.get_text() for text in figure.axes[0].texts).replace("\n", " ")
    for answer in ("AdamW in 8 bits", "Adafactor, updated in backward", "shard the model"):
        assert answer in drawn
        assert answer in alt


def test_losses_stand_against_bytes():
    def history(*losses):
        return History(steps=[{"step": i + 1, "loss": loss} for i, loss in enumerate(losses)])

    runs = {"A": [history(2.0, 1.0), history(4.0, 3.0)], "B": [history(1.0, 1.0)]}
    figure, alt = lesson.losses_against_bytes(runs, {"A": 2 * MiB, "B": 0}, "state", last=1)
    assert "A 2.00 MiB, 2.00; B 0 B, 1.00" in alt
    assert "MiB" in figure.axes[0].get_xlabel()
