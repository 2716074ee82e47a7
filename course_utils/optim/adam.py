"""Adam and AdamW. They differ in one method: where weight decay enters.

Symbols, here and in every chapter: θ parameter, g gradient, m and v moving averages of g and g², t step, α learning rate
(`lr`), β₁ and β₂ (`betas`), ε (`eps`), λ (`weight_decay`).
"""

from math import prod, sqrt

import torch

from course_utils.optim.base import Optimizer, _require


class Adam(Optimizer):
    """Adam (Kingma & Ba 2015, Algorithm 1); `weight_decay` is an L2 term λθ added to the gradient.

    State per parameter tensor: `step` (one float32 on the CPU), `exp_avg` (m) and `exp_avg_sq` (v), both in the parameter's
    shape and dtype. Raises `ValueError` for hyper-parameters out of range, in any group.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, *, maximize=False):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults)

    @staticmethod
    def state_bytes(shape: tuple[int, ...], itemsize: int = 4) -> int:
        """Bytes of state for one parameter tensor: m, v and a 4-byte step counter."""
        return 2 * prod(shape) * itemsize + 4

    @staticmethod
    def temporary_bytes(shape: tuple[int, ...], itemsize: int = 4, weight_decay: float = 0.0, maximize=False) -> int:
        """Bytes that the update of one parameter tensor needs for a moment.

        They are the denominator √v̂ + ε, the gradient with λθ where there is decay, the negated one under `maximize`.
        """
        return (1 + (weight_decay > 0) + maximize) * prod(shape) * itemsize

    def new_state(self, parameter):
        """Zero averages in the parameter's memory layout, and a step counter as torch keeps it."""
        return {
            "step": torch.zeros((), dtype=torch.float32),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }

    def update(self, parameter, gradient, state, group):
        """θ ← θ − α m̂ / (√v̂ + ε), with m̂ = m / (1 − β₁ᵗ) and v̂ = v / (1 − β₂ᵗ)."""
        (beta1, beta2), m, v = group["betas"], state["exp_avg"], state["exp_avg_sq"]
        gradient = self.decay(parameter, gradient, group)
        state["step"] += 1
        t = state["step"].item()
        m.lerp_(gradient, 1 - beta1)
        v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        denominator = v.sqrt().div_(sqrt(1 - beta2**t)).add_(group["eps"])
        parameter.addcdiv_(m, denominator, value=-group["lr"] / (1 - beta1**t))

    def check(self, group):
        """As `Optimizer.check`, and β₁, β₂ in [0, 1), ε not negative."""
        super().check(group)
        _require(group["eps"] >= 0, "eps", group["eps"], "at least 0")
        _require(len(group["betas"]) == 2, "betas", group["betas"], "a pair")
        for i, beta in enumerate(group["betas"]):
            _require(0 <= beta < 1, f"betas[{i}]", beta, "in [0, 1)")

    def __setstate__(self, state):
        """Take over a state of torch's Adam too; what this class does not do is refused (`ValueError`)."""
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("maximize", False)
            if group.get("amsgrad"):
                raise ValueError(
                    "This state was saved with amsgrad=True, which this optimizer does not have; continue with torch's."
                )


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, Algorithm 2), default λ = 0.01 as in torch.

    As in torch, the decay is αλθ: the paper multiplies λ by the schedule's factor only, torch by the whole learning rate.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, *, maximize=False):
        super().__init__(params, lr, betas, eps, weight_decay, maximize=maximize)

    @staticmethod
    def temporary_bytes(shape: tuple[int, ...], itemsize: int = 4, weight_decay: float = 0.0, maximize=False) -> int:
        """As Adam's, but decoupled decay works in place and needs nothing."""
        return (1 + maximize) * prod(shape) * itemsize

    def decay(self, parameter, gradient, group):
        """θ ← θ − αλθ, beside the gradient: neither average ever sees it."""
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        return gradient
