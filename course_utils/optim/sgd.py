"""Gradient descent, momentum and Nesterov's momentum: each is the one before and a little more.

Symbols: θ parameter, g gradient, b momentum buffer, α learning rate (`lr`), μ `momentum`.
"""

from math import inf

from torch import Tensor

from course_utils.optim.base import Optimizer


class SGD(Optimizer):
    """Stochastic gradient descent (Robbins & Monro 1951)."""

    def update(self, parameter: Tensor, gradient: Tensor, state: dict, group: dict) -> None:
        """θ ← θ − α g."""
        parameter.add_(gradient, alpha=-group["lr"])


class Momentum(SGD):
    """SGD that steps along a buffer of gradients (Polyak 1964).

    As in torch, b is a sum of gradients in which older ones fade by μ, not an average.
    """

    defaults = {**SGD.defaults, "momentum": 0.9}
    ranges = {**SGD.ranges, "momentum": (0, inf)}
    state_names = ("momentum_buffer",)

    def update(self, parameter: Tensor, gradient: Tensor, state: dict, group: dict) -> None:
        """θ ← θ − α b."""
        super().update(parameter, self.update_buffer(gradient, state, group), state, group)

    def update_buffer(self, gradient: Tensor, state: dict, group: dict) -> Tensor:
        """b ← μb + g."""
        return state["momentum_buffer"].mul_(group["momentum"]).add_(gradient)


class Nesterov(Momentum):
    """Momentum that looks a step ahead (Nesterov 1983, in the form of Bengio et al. 2012)."""

    def update(self, parameter: Tensor, gradient: Tensor, state: dict, group: dict) -> None:
        """θ ← θ − α (g + μb)."""
        b = self.update_buffer(gradient, state, group)
        parameter.add_(gradient, alpha=-group["lr"])
        parameter.add_(b, alpha=-group["lr"] * group["momentum"])
