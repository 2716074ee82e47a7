"""Gradient checkpointing by hand, twice (Chen et al. 2016, section 4).

Both ways keep the inputs of a function, drop what it computes, and run it again in backward. `checkpoint` adds a node with a
backward of its own to the graph. `checkpoint_by_hooks` leaves the graph as it is and replaces what its nodes save.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.autograd.graph import saved_tensors_hooks


def checkpoint(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """`function(*inputs)`, of which only the inputs are kept; at least one of them must require a gradient."""
    return Checkpoint.apply(function, *inputs)


class Checkpoint(torch.autograd.Function):
    """Re-entrant: its backward runs a second backward pass inside the first."""

    @staticmethod
    def forward(ctx: FunctionCtx, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        ctx.function = function
        ctx.state = ForwardState(inputs[0].device)
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx: FunctionCtx, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        inputs = [detach(tensor) for tensor in ctx.saved_tensors]
        with ctx.state.restored():
            output = ctx.function(*inputs)
        output.backward(grad_output)  # fills .grad of the inputs and of the parameters inside
        return None, *(tensor.grad for tensor in inputs)


def checkpoint_by_hooks(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """`function(*inputs)`, of which only the inputs are kept; the graph is the same as without a checkpoint."""
    second_run = SecondRun(function, inputs)
    with saved_tensors_hooks(second_run.pack, second_run.unpack):
        return function(*inputs)


class SecondRun:
    """Hooks on what the graph of `function(*inputs)` saves: numbers, and in backward the tensors of a second run for them."""

    def __init__(self, function: Callable[..., Tensor], inputs: tuple[Tensor, ...]):
        self.function = function
        self.state = ForwardState(inputs[0].device)
        # Kept, because before PyTorch 2.13 its node dies with it.
        self.anchor = SaveInputs.apply(torch.empty(0, requires_grad=True), *inputs)
        self.count = 0
        self.tensors: dict[int, Tensor] = {}

    def pack(self, tensor: Tensor) -> int:
        """In forward a node saves a number instead of the tensor."""
        self.count += 1
        return self.count - 1

    def unpack(self, number: int) -> Tensor:
        """In backward the node asks for its tensor; the first one that asks starts the second run."""
        if number not in self.tensors:
            self.recompute()
        return self.tensors.pop(number)

    def recompute(self) -> None:
        """Run the function again, until all that its nodes saved is there."""
        self.tensors = {}
        inputs = [detach(tensor) for tensor in self.anchor.grad_fn.saved_tensors]
        with self.state.restored(), saved_tensors_hooks(self.keep, lambda tensor: tensor), suppress(EarlyStop):
            self.function(*inputs)

    def keep(self, tensor: Tensor) -> None:
        """In the second run, where nodes save the same tensors in the same order, keep each under its number."""
        self.tensors[len(self.tensors)] = tensor.detach()
        if len(self.tensors) == self.count:
            raise EarlyStop


class EarlyStop(Exception):  # noqa: N818 not an error
    """All that backward needs is there again; the rest of the function need not run."""


class SaveInputs(torch.autograd.Function):
    """A node that only saves the inputs, so that a checkpoint around this one drops them too."""

    @staticmethod
    def forward(ctx: FunctionCtx, start: Tensor, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs)
        return start.clone()


class ForwardState:
    """The random state and autocast of this moment, so that the second run computes what the first one did."""

    def __init__(self, device: torch.device):
        self.kind = device.type
        self.gpus = [device] if device.type != "cpu" else []
        self.on_device = torch.get_device_module(device)
        self.random = torch.get_rng_state(), [self.on_device.get_rng_state(gpu) for gpu in self.gpus]
        dtype = torch.get_autocast_dtype(self.kind)
        self.autocast = torch.autocast(self.kind, dtype, torch.is_autocast_enabled(self.kind))

    @contextmanager
    def restored(self) -> Iterator[None]:
        """A context with that state and gradients on; afterwards random numbers go on as if nothing had run."""
        with torch.random.fork_rng(self.gpus, device_type=self.kind), self.autocast, torch.enable_grad():
            torch.set_rng_state(self.random[0])
            for gpu, state in zip(self.gpus, self.random[1], strict=True):
                self.on_device.set_rng_state(state, gpu)
            yield


def detach(tensor: Tensor) -> Tensor:
    """The same tensor as a leaf of a new graph."""
    return tensor.detach().requires_grad_(tensor.requires_grad)
