"""Adafactor as Hugging Face's Transformers has it: what differs from PyTorch's."""

from collections.abc import Sequence
from math import prod, sqrt

import torch
from torch import Tensor

from course_utils.optim.adafactor import Adafactor, rms


class HFAdafactor(Adafactor):
    """Adafactor with ε₁ in the square, as in the paper, a step size that need not be relative, and on demand momentum.

    With `relative_step` the bound of ρ is `lr`, without it ρ is `lr`. `beta1` adds `exp_avg` to the state, in the
    parameter's shape. Transformers keeps an RMS(θ) besides, and decays by αₜλθ, where this decays by `lr` λθ.
    """

    defaults = {
        **Adafactor.defaults,
        "eps": (1e-30, 1e-3),
        "beta1": None,
        "scale_parameter": True,
        "relative_step": True,
    }
    ranges = {**Adafactor.ranges, "beta1": (0, 1)}

    def new_state(self, parameter: Tensor, group: dict) -> dict:
        """As Adafactor's, and the average of finished steps where β₁ is given."""
        state = super().new_state(parameter, group)
        return state if group["beta1"] is None else {**state, "exp_avg": torch.zeros_like(parameter)}

    def average(self, gradient: Tensor, state: dict, t: float, group: dict) -> None:
        """As Adafactor's, with ε₁ added to g²."""
        super().average(gradient, state, t, group)
        for name in state.keys() & {"variance", "row_var", "col_var"}:
            state[name].add_(group["eps"][0] * t ** group["beta2_decay"])

    def floor(self, gradient: Tensor, group: dict) -> float:
        """0: ε₁ is in the averages."""
        return 0.0

    def step_size(self, parameter: Tensor, t: float, group: dict) -> float:
        """αₜ = max(ε₂, RMS(θ)) ρₜ where the parameter's scale counts, otherwise ρₜ."""
        rho = min(group["lr"], 1 / sqrt(t)) if group["relative_step"] else group["lr"]
        return max(group["eps"][1], rms(parameter)) * rho if group["scale_parameter"] else rho

    def move(self, parameter: Tensor, update: Tensor, factor: float, state: dict, group: dict) -> None:
        """With β₁: m ← β₁ m + (1 − β₁) αₜ Û, then θ ← θ − m. The average is of finished steps, without bias correction."""
        if group["beta1"] is None:
            super().move(parameter, update, factor, state, group)
        else:
            parameter.sub_(state["exp_avg"].lerp_(update.mul_(factor), 1 - group["beta1"]))

    @classmethod
    def state_bytes(cls, shape: Sequence[int], itemsize: int = 4, **options) -> int:
        """As Adafactor's, and with `beta1` the average of finished steps."""
        average = prod(shape) * itemsize if options.get("beta1") is not None else 0
        return super().state_bytes(shape, itemsize) + average
