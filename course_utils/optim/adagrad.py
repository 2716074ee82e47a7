"""AdaGrad: a step size for each parameter, from all the gradients it has had.

Symbols: θ parameter, g gradient, v sum of g², t step, α learning rate (`lr`), ε (`eps`), λ (`weight_decay`).
"""

from math import prod

import torch

from course_utils.optim.base import Optimizer, _require


class AdaGrad(Optimizer):
    """AdaGrad with its diagonal matrix (Duchi, Hazan & Singer 2011, Figure 1), arguments as torch's `Adagrad`.

    State per parameter tensor: `step` (one float32 on the CPU) and `sum` (v) in the parameter's shape and dtype, which
    starts at the constructor's `initial_accumulator_value` in every group, as in torch. Raises `ValueError` for
    hyper-parameters out of range, in any group.
    """

    def __init__(
        self,
        params,
        lr=1e-2,
        lr_decay=0.0,
        weight_decay=0.0,
        initial_accumulator_value=0.0,
        eps=1e-10,
        *,
        maximize=False,
    ):
        defaults = {"lr": lr, "lr_decay": lr_decay, "weight_decay": weight_decay, "eps": eps, "maximize": maximize}
        super().__init__(params, {**defaults, "initial_accumulator_value": initial_accumulator_value})

    @staticmethod
    def state_bytes(shape: tuple[int, ...], itemsize: int = 4) -> int:
        """Bytes of state for one parameter tensor: v and a 4-byte step counter."""
        return prod(shape) * itemsize + 4

    @staticmethod
    def temporary_bytes(shape: tuple[int, ...], itemsize: int = 4, weight_decay: float = 0.0, maximize=False) -> int:
        """Bytes that the update of one parameter tensor needs for a moment.

        They are the denominator √v + ε, the gradient with λθ where there is decay, the negated one under `maximize`.
        """
        return (1 + (weight_decay > 0) + maximize) * prod(shape) * itemsize

    def new_state(self, parameter):
        """The sum at its first value, in the parameter's memory layout, and a step counter as torch keeps it."""
        first = self.defaults["initial_accumulator_value"]
        return {"step": torch.zeros((), dtype=torch.float32), "sum": torch.full_like(parameter, first)}

    def update(self, parameter, gradient, state, group):
        """θ ← θ − α g / (√v + ε), with v ← v + g²."""
        v = state["sum"]
        gradient = self.decay(parameter, gradient, group)
        state["step"] += 1
        v.addcmul_(gradient, gradient)
        denominator = v.sqrt().add_(group["eps"])
        parameter.addcdiv_(gradient, denominator, value=-self.rate(state, group))

    def rate(self, state: dict, group: dict) -> float:
        """α / (1 + (t − 1) `lr_decay`)."""
        return group["lr"] / (1 + (state["step"].item() - 1) * group["lr_decay"])

    def check(self, group):
        """As `Optimizer.check`; ε, `lr_decay` and the sum's first value not negative."""
        super().check(group)
        for name in ("eps", "lr_decay", "initial_accumulator_value"):
            _require(group[name] >= 0, name, group[name], "at least 0")

    def __setstate__(self, state):
        """Take over a state of torch's Adagrad too."""
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("maximize", False)
