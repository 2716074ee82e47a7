"""Gradient descent, momentum and Nesterov's momentum: three updates of which each is the one before and a little more.

Symbols: θ parameter, g gradient, b momentum buffer, α learning rate (`lr`), μ `momentum`, τ `dampening`, λ `weight_decay`.
"""

from math import prod

import torch

from course_utils.optim.base import Optimizer, _require


class SGD(Optimizer):
    """Stochastic gradient descent (Robbins & Monro 1951), on demand with momentum (Polyak 1964) or Nesterov's (1983).

    As in torch, b is a sum of gradients in which older ones fade by μ, not an average: b ← μb + (1 − τ)g. State per
    parameter tensor: nothing, or with momentum `momentum_buffer` (b) in the parameter's shape and dtype. Raises `ValueError`
    for hyper-parameters out of range, in any group.
    """

    def __init__(
        self, params, lr=1e-3, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False, *, maximize=False
    ):
        defaults = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "nesterov": nesterov, "maximize": maximize})

    @staticmethod
    def state_bytes(shape: tuple[int, ...], itemsize: int = 4, momentum: float = 0.0) -> int:
        """Bytes of state for one parameter tensor: none, or with momentum those of b."""
        return prod(shape) * itemsize if momentum else 0

    @staticmethod
    def temporary_bytes(shape: tuple[int, ...], itemsize: int = 4, weight_decay: float = 0.0, maximize=False) -> int:
        """Bytes that the update of one parameter tensor needs for a moment, from the second step on.

        They are the gradient with λθ where there is decay, and the negated one under `maximize`; the update needs none.
        """
        return ((weight_decay > 0) + maximize) * prod(shape) * itemsize

    def new_state(self, parameter):
        """Nothing: b is born from the first gradient."""
        return {}

    def update(self, parameter, gradient, state, group):
        """One of the three updates below, as the group asks for it."""
        gradient = self.decay(parameter, gradient, group)
        if not group["momentum"]:
            self.descend(parameter, gradient, state, group)
        elif not group["nesterov"]:
            self.roll(parameter, gradient, state, group)
        else:
            self.look_ahead(parameter, gradient, state, group)

    def descend(self, parameter, gradient, state, group):
        """Gradient descent: θ ← θ − α g."""
        parameter.add_(gradient, alpha=-group["lr"])

    def roll(self, parameter, gradient, state, group):
        """Momentum: b ← μb + (1 − τ)g, then θ ← θ − α b."""
        b = self.gather(gradient, state, group)
        parameter.add_(b, alpha=-group["lr"])

    def look_ahead(self, parameter, gradient, state, group):
        """Nesterov's momentum: b as before, then θ ← θ − α (g + μb)."""
        b = self.gather(gradient, state, group)
        parameter.add_(gradient, alpha=-group["lr"])
        parameter.add_(b, alpha=-group["lr"] * group["momentum"])

    def gather(self, gradient: torch.Tensor, state: dict, group: dict) -> torch.Tensor:
        """b ← μb + (1 − τ)g; the first b is the first gradient, whatever τ is."""
        b = state.get("momentum_buffer")
        if b is None:
            state["momentum_buffer"] = b = gradient.clone()
        else:
            b.mul_(group["momentum"]).add_(gradient, alpha=1 - group["dampening"])
        return b

    def check(self, group):
        """As `Optimizer.check`; μ not negative, and for Nesterov's momentum μ > 0 and τ = 0."""
        super().check(group)
        _require(group["momentum"] >= 0, "momentum", group["momentum"], "at least 0")
        if group["nesterov"]:
            _require(group["momentum"] > 0, "momentum", group["momentum"], "above 0 with nesterov=True")
            _require(group["dampening"] == 0, "dampening", group["dampening"], "0 with nesterov=True")

    def __setstate__(self, state):
        """Take over a state of torch's SGD too."""
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("nesterov", False)
            group.setdefault("maximize", False)
