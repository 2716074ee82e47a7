"""Who takes which step: in a plain loop, in the course's, and after the watch has ended."""

import pytest
import torch
from torch import nn

from course_utils import training
from course_utils.training.four_steps import four_steps


def batches():
    return [{"x": torch.ones(2, 3)} for _ in range(2)]


def test_a_plain_loop_takes_the_steps_in_its_order():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with four_steps(model) as log:
        for batch in batches():
            optimizer.zero_grad()
            model(batch["x"]).sum().backward()
            optimizer.step()
    assert [step.name for step in log] == 2 * ["reset", "forward", "backward", "update"]
    assert {step.caller.rpartition(".")[2] for step in log} == {"test_a_plain_loop_takes_the_steps_in_its_order"}


def test_the_modules_own_reset_counts_and_nothing_is_left_behind():
    model = nn.Linear(3, 1)
    before = torch.autograd.backward, torch.optim.Optimizer.zero_grad, nn.Module.zero_grad
    with pytest.raises(ZeroDivisionError), four_steps(model) as log:  # noqa: PT012 it must fail after the call
        model.zero_grad()
        raise ZeroDivisionError
    assert [step.name for step in log] == ["reset"]
    assert before == (torch.autograd.backward, torch.optim.Optimizer.zero_grad, nn.Module.zero_grad)
    model(torch.ones(1, 3)).sum().backward()
    torch.optim.SGD(model.parameters()).step()
    assert len(log) == 1


def test_the_courses_loop_is_seen_through():
    class Model(nn.Linear):
        def forward(self, input_ids):
            return type("Output", (), {"loss": super().forward(input_ids).sum()})

    model = Model(3, 1)
    with four_steps(model) as log:
        training.train_step(model, torch.optim.SGD(model.parameters()), {"input_ids": torch.ones(2, 3)})
    assert [step.name for step in log] == ["forward", "backward", "update", "reset"]
    assert {step.caller.rpartition(".")[0] for step in log} == {"course_utils.training.loop.Run"}
