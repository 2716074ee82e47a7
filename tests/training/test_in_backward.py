"""Updates within the backward pass: the same parameters as after it, and never two gradients at once."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from course_utils import memory, models, optim, training
from course_utils.errors import CourseError
from course_utils.training import UpdateInBackward


def model_and_batch(labels=3):
    torch.manual_seed(0)
    model = models.build("distilbert", labels=labels)
    ids = torch.randint(0, 900, (4, 16))
    return model.eval(), {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.arange(4) % labels}


@pytest.mark.parametrize("make_optimizer", [optim.AdamW, lambda p, lr: torch.optim.AdamW(p, lr=lr, foreach=False)])
def test_the_same_steps_as_after_the_backward_pass(make_optimizer):
    model, batch = model_and_batch()
    other = copy.deepcopy(model)
    plain, early = make_optimizer(model.parameters(), lr=1e-2), make_optimizer(other.parameters(), lr=1e-2)
    for _ in range(3):
        loss = training.train_step(model, plain, batch)
        assert torch.equal(loss, training.train_step(other, early, batch, [UpdateInBackward()]))
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    assert all(p.grad is None for p in other.parameters())


class Deep(nn.Module):
    """Sixteen equal matrices, so that what a step needs beside them is small."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(16)))

    def forward(self, input_ids):
        return SimpleNamespace(loss=self.layers(input_ids.float()).square().mean())


def test_two_gradients_at_most_live_at_once():
    model = Deep()
    batch = {"input_ids": torch.ones(1, 64)}
    peaks = []
    optimizer = optim.AdamW(model.parameters())
    for callbacks in ([], [UpdateInBackward()]):
        measured = memory.measure((model, optimizer, batch, callbacks), training.train_step)
        peaks.append(measured.peak - measured.resident)
    matrix = 64 * 64 * 4
    assert peaks[0] >= 16 * matrix
    assert peaks[1] <= 3 * matrix  # a gradient, the update's denominator, and a little


def test_hooks_are_gone_afterwards():
    model, batch = model_and_batch()
    training.train_step(model, optim.AdamW(model.parameters()), batch, [UpdateInBackward()])
    model(**batch).loss.backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("other", [training.ClipGradients(1.0), training.Accumulate(2), training.ScaleLoss()])
def test_what_needs_all_gradients_together_is_refused(other):
    model, batch = model_and_batch()
    with pytest.raises(CourseError, match=f"{type(other).__name__} needs all gradients together"):
        training.train_step(model, optim.AdamW(model.parameters()), batch, [other, UpdateInBackward()])
