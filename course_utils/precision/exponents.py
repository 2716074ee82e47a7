"""How large the gradients of a model are, as powers of two, and what a format loses of them."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from course_utils.precision.formats import Format


def gradients_of(model: nn.Module, objective: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """Every gradient that a backward pass of `objective()` computes at a linear layer: of its output and of its parameters.

    Those of the outputs are what autocast computes in a narrow type. A layer whose output needs no gradient has none.
    Nothing is left in the parameters.
    """
    found: list[torch.Tensor] = []

    def keep(module, inputs, output):
        if output.requires_grad:
            output.register_hook(lambda gradient: found.append(gradient.detach()))

    hooks = [module.register_forward_hook(keep) for module in model.modules() if isinstance(module, nn.Linear)]
    try:
        model.zero_grad()
        objective().backward()
    finally:
        for hook in hooks:
            hook.remove()
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    parameters = nn.ModuleList(layers).parameters()  # a weight that two layers share comes once
    found += [p.grad.clone() for p in parameters if p.grad is not None]
    model.zero_grad()
    return found


def exponent_counts(tensors: Iterable[torch.Tensor]) -> Counter:
    """How many elements have |x| in [2ᵉ, 2ᵉ⁺¹), by e; zeros, infinities and NaN are not counted."""
    counts: Counter = Counter()
    for tensor in tensors:
        values = tensor.double()
        exponents = torch.frexp(values[values.isfinite() & (values != 0)])[1] - 1
        levels, numbers = exponents.unique(return_counts=True)
        counts.update(dict(zip(levels.tolist(), numbers.tolist(), strict=True)))
    return counts


@dataclass(frozen=True)
class Loss:
    """Shares of the numbers that were neither 0 nor infinite: become 0, lose mantissa bits, become too large."""

    vanished: float
    subnormal: float
    overflowed: float


def loss_in(tensors: Iterable[torch.Tensor], number: Format, scale: float = 1.0) -> Loss:
    """What rounding `scale` times each tensor to the format loses."""
    total = vanished = subnormal = overflowed = 0
    for tensor in tensors:
        values = tensor.double()
        values = values[values.isfinite() & (values != 0)] * scale
        rounded = number.nearest(values)
        total += values.numel()
        vanished += (rounded == 0).sum().item()
        subnormal += ((rounded != 0) & (rounded.abs() < number.smallest_normal)).sum().item()
        overflowed += (~rounded.isfinite()).sum().item()
    return Loss(vanished / total, subnormal / total, overflowed / total) if total else Loss(0.0, 0.0, 0.0)
