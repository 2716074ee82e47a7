"""Adam and AdamW. They differ in one method: where weight decay enters.

Symbols, here and in every chapter: θ parameter, g gradient, m and v moving averages of g and g², t step, α learning rate
(`lr`), β₁ and β₂ (`betas`), ε (`eps`), λ (`weight_decay`).
"""

from math import inf, sqrt

from torch import Tensor

from course_utils.optim.base import Optimizer


class Adam(Optimizer):
    """Adam (Kingma & Ba 2015, Algorithm 1): momentum's buffer as an average, RMSProp's v, and both corrected for their start."""

    defaults = {**Optimizer.defaults, "betas": (0.9, 0.999), "eps": 1e-8}
    ranges = {**Optimizer.ranges, "betas": (0, 1), "eps": (0, inf)}
    state_names = ("step", "exp_avg", "exp_avg_sq")
    temporaries = 1  # the denominator

    def update(self, parameter: Tensor, gradient: Tensor, state: dict, group: dict) -> None:
        """θ ← θ − α m̂ / (√v̂ + ε), with m̂ = m / (1 − β₁ᵗ) and v̂ = v / (1 − β₂ᵗ)."""
        beta1, beta2 = group["betas"]
        m, v = state["exp_avg"], state["exp_avg_sq"]
        t = float(state["step"])
        m.lerp_(gradient, 1 - beta1)
        v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        denominator = v.sqrt().div_(sqrt(1 - beta2**t)).add_(group["eps"])
        parameter.addcdiv_(m, denominator, value=-group["lr"] / (1 - beta1**t))


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, Algorithm 2), default λ = 0.01 as in torch.

    As in torch, the decay is αλθ: the paper multiplies λ by the schedule's factor only, torch by the whole learning rate.
    """

    defaults = {**Adam.defaults, "weight_decay": 1e-2}

    def decay(self, parameter: Tensor, gradient: Tensor, group: dict) -> Tensor:
        """θ ← θ − αλθ, beside the gradient: neither average ever sees it."""
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        return gradient
