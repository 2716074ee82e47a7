"""What an optimizer needs for a moment, by the allocator."""

import torch

from course_utils import memory


def scratch_of(optimizer: torch.optim.Optimizer, model: torch.nn.Linear) -> int:
    """Bytes that an update of `model` takes beyond what stays, in a step that is not the first."""

    def step():
        model.weight.grad = torch.ones_like(model.weight)
        with memory.phase("update"):
            optimizer.step()

    measured = memory.measure((model, optimizer), step, timed=0)
    return measured.by_phase["update"] - measured.resident
