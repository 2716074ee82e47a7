"""Soft targets beside their definition in float64, and what a gradient does as the temperature grows."""

import pytest
import torch
from torch.nn import functional as F

from course_utils.techniques import distillation_loss, soft_loss


def logits(seed):
    return 3 * torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


LABELS = torch.tensor([[0, 3, -100, 6, 1], [-100, -100, 2, 2, 5]])


def by_definition(student, teacher, temperature):
    """Token by token, class by class: T² Σ p log(p / q)."""
    divergences = []
    for s, t, label in zip(student.flatten(0, 1), teacher.flatten(0, 1), LABELS.flatten(), strict=True):
        if label != -100:
            p, q = (z.exp() / z.exp().sum() for z in (t / temperature, s / temperature))
            divergences.append(sum(p[k] * (p[k] / q[k]).log() for k in range(7)))
    return temperature**2 * sum(divergences) / len(divergences)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 10.0])
def test_the_soft_loss_is_its_definition(temperature):
    student, teacher = logits(0), logits(1)
    loss = soft_loss(student, teacher, LABELS, temperature)
    torch.testing.assert_close(loss, by_definition(student, teacher, temperature))


def test_the_joint_loss_weighs_both_and_the_teacher_gets_no_gradient():
    student, teacher = logits(0).requires_grad_(), logits(1).requires_grad_()
    loss = distillation_loss(student, teacher, LABELS, 3.0, 0.25)
    hard = F.cross_entropy(student.flatten(0, 1), LABELS.flatten())
    torch.testing.assert_close(loss, 0.25 * soft_loss(student, teacher, LABELS, 3.0) + 0.75 * hard)
    loss.backward()
    assert teacher.grad is None
    assert student.grad[LABELS == -100].eq(0).all()
