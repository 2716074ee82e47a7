"""Several optimizers as one: the same as each alone, for a schedule, a state and a reload too."""

import copy

import pytest
import torch
from torch import nn

from course_utils import memory, models
from course_utils.optim import Adam, AdamW, ChainedOptimizer, hidden_matrices


def parameters():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(3, 2, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2)]


def give_gradients(*lists, seed):
    generator = torch.Generator().manual_seed(seed)
    for _, *parameters_of_all in zip(range(2), *lists, strict=True):
        gradient = torch.randn(3, 2, generator=generator, dtype=torch.float64)
        for p in parameters_of_all:
            p.grad = gradient.clone()


def make_chained(ps):
    return ChainedOptimizer(Adam(ps[:1], lr=0.1), AdamW(ps[1:], lr=0.2, weight_decay=0.5))


def test_chained_they_step_as_each_does_alone():
    """Under a schedule, and over a reload."""
    ours, first, second = parameters(), parameters(), parameters()
    chained = make_chained(ours)
    separate = [Adam(first[:1], lr=0.1), AdamW(second[1:], lr=0.2, weight_decay=0.5)]
    schedules = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in (chained, *separate)]
    for step in range(4):
        give_gradients(ours, first, second, seed=step)
        for optimizer_or_schedule in (chained, *separate, *schedules):
            optimizer_or_schedule.step()
        assert torch.equal(ours[0], first[0])
        assert torch.equal(ours[1], second[1])
    assert [state["step"].item() for state in chained.state.values()] == [4, 4]
    assert memory.optimizer_state_size(chained).elements == 2 * 13
    copies = [p.detach().clone().requires_grad_() for p in ours]
    reloaded = make_chained(copies)
    reloaded.load_state_dict(copy.deepcopy(chained.state_dict()))
    give_gradients(ours, copies, seed=9)
    chained.step()
    reloaded.step()
    assert all(map(torch.equal, ours, copies))
    assert [group["lr"] for group in reloaded.param_groups] == [group["lr"] for group in chained.param_groups]


def test_a_closure_is_called_once_with_gradients_on():
    ours, calls = parameters(), []

    def closure():
        calls.append(torch.is_grad_enabled())
        loss = sum(p.square().sum() for p in ours)
        loss.backward()
        return loss

    assert make_chained(ours).step(closure) > 0
    assert calls == [True]


@pytest.mark.parametrize("name", ["distilbert", "gpt2", "llama"])
def test_hidden_matrices_are_neither_input_nor_output(name):
    model = models.build(name, **({"labels": 3} if name == "distilbert" else {}))
    hidden, others = hidden_matrices(model)
    assert {p.ndim for p in hidden} == {2}
    assert len(hidden) + len(others) == len(list(model.parameters()))
    excluded = {id(p) for p in others}
    assert all(id(m.weight) in excluded for m in model.modules() if isinstance(m, nn.Embedding))
    output = model.classifier if name == "distilbert" else model.lm_head
    assert id(output.weight) in excluded


def test_frozen_and_shared_matrices_are_left_out_and_counted_once():
    first, last = nn.Linear(4, 4), nn.Linear(4, 2)
    frozen = nn.Linear(4, 4).requires_grad_(False)
    model = nn.Sequential(first, frozen, nn.Sequential(first), last)
    hidden, others = hidden_matrices(model)
    assert [id(p) for p in hidden] == [id(first.weight)]
    assert len(others) == 3
