"""AdaGrad and RMSProp: a step size for each parameter, from the squares of the gradients that it has had.

Symbols: θ parameter, g gradient, v the sum or the average of g², α learning rate (`lr`), β what stays of v (`alpha`),
ε (`eps`). The step counter is kept, as in torch, and nothing here reads it.
"""

from math import inf

from torch import Tensor

from course_utils.optim.base import Optimizer


class AdaGrad(Optimizer):
    """AdaGrad with its diagonal matrix (Duchi, Hazan & Singer 2011, Figure 1): v is a sum."""

    defaults = {**Optimizer.defaults, "lr": 1e-2, "eps": 1e-10}
    ranges = {**Optimizer.ranges, "eps": (0, inf)}
    state_names = ("step", "sum")
    temporaries = 1  # the denominator

    def update(self, parameter: Tensor, gradient: Tensor, state: dict, group: dict) -> None:
        """θ ← θ − α g / (√v + ε)."""
        v = self.accumulate(gradient, state, group)
        denominator = v.sqrt().add_(group["eps"])
        parameter.addcdiv_(gradient, denominator, value=-group["lr"])

    def accumulate(self, gradient: Tensor, state: dict, group: dict) -> Tensor:
        """v ← v + g²."""
        v = state["sum"]
        return v.addcmul_(gradient, gradient)


class RMSProp(AdaGrad):
    """AdaGrad whose sum has become an average, so that it forgets (Tieleman & Hinton 2012, lecture 6.5)."""

    defaults = {**AdaGrad.defaults, "alpha": 0.99, "eps": 1e-8}
    ranges = {**AdaGrad.ranges, "alpha": (0, 1)}
    state_names = ("step", "square_avg")

    def accumulate(self, gradient: Tensor, state: dict, group: dict) -> Tensor:
        """v ← βv + (1 − β)g²."""
        v = state["square_avg"]
        beta = group["alpha"]
        return v.mul_(beta).addcmul_(gradient, gradient, value=1 - beta)
