"""An optimizer by hand beside a library's, with the same gradients and a reload on the way; its bytes of state and of scratch."""

import copy

import torch

from course_utils import memory


def parameters_of(groups):
    return [p for group in groups for p in group["params"]]


def run_beside(ours, theirs, generator, *, steps, reload_at, decades):
    """Give both optimizers the same gradients, and let ours go on from its saved state after step `reload_at`; returns ours.

    Gradients are as many `decades` above and below 1; about one in five is missing, some are zero, the others in places.
    """
    for step in range(steps):
        for p, q in zip(parameters_of(ours.param_groups), parameters_of(theirs.param_groups), strict=True):
            p.grad = draw_gradient(p.shape, decades, generator)
            q.grad = None if p.grad is None else p.grad.clone()
        before = [None if p.grad is None else p.grad.clone() for p in parameters_of(ours.param_groups)]
        ours.step()
        theirs.step()
        if step == reload_at:
            saved = copy.deepcopy(ours.state_dict())
            ours = type(ours)([{"params": group["params"]} for group in ours.param_groups])
            ours.load_state_dict(saved)
        for p, gradient in zip(parameters_of(ours.param_groups), before, strict=True):
            assert (p.grad is None) if gradient is None else torch.equal(p.grad, gradient)
    return ours


def draw_gradient(shape, decades, generator):
    scale = 10.0 ** torch.randint(-decades, decades + 1, (), generator=generator)
    kind = torch.rand((), generator=generator)
    gradient = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    is_zero = (torch.rand(shape, generator=generator) < 0.1) | (kind > 0.9)
    return None if kind < 0.2 else gradient.masked_fill(is_zero, 0.0)


def state_bytes_of(make_optimizer, parameter):
    """Bytes of a parameter's state after one update, without codebooks, which all parameters share."""
    optimizer, parameter.grad = make_optimizer([parameter]), torch.ones_like(parameter)
    optimizer.step()
    state = optimizer.state[parameter].items()
    return sum(value.nbytes for name, value in state if isinstance(value, torch.Tensor) and "qmap" not in name)


def scratch_of(optimizer: torch.optim.Optimizer, model: torch.nn.Linear) -> int:
    """Bytes that an update of `model` takes beyond what stays, in a step that is not the first, by the allocator."""

    def step():
        model.weight.grad = torch.ones_like(model.weight)
        with memory.phase("update"):
            optimizer.step()

    measured = memory.measure((model, optimizer), step, timed=0)
    return measured.by_phase["update"] - measured.resident
