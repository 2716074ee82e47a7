"""Adafactor: Adam's second average from the means of its rows and columns, and no first average.

Symbols as in `adam`, and: R and C the averages of the row and column means of g² (`row_var`, `col_var`), ρ the relative step
size, d the threshold of clipping (`d`), ε₁ and ε₂ (`eps`), τ the exponent of β₂'s schedule (`beta2_decay`).
"""

from collections.abc import Sequence
from math import inf, prod, sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from course_utils.optim.adam import AdamW


class Adafactor(AdamW):
    """Adafactor (Shazeer & Stern 2018, Algorithms 4 and 5), with the arguments and the state of torch's.

    State per parameter tensor: `step`; for a matrix `row_var` and `col_var`, for a vector or a number `variance`. More than two
    dimensions are a stack of matrices. The paper keeps sums of rows and columns, the libraries keep means: V̂ is the same.
    """

    by_element = False
    defaults = {"lr": 1e-2, "beta2_decay": -0.8, "eps": (None, 1e-3), "d": 1.0, "weight_decay": 0.0}
    ranges = {**AdamW.ranges, "beta2_decay": (-inf, 0), "d": (0, None)}

    def new_state(self, parameter: Tensor, group: dict) -> dict:
        """Zero statistics; which ones is decided by the number of dimensions alone."""
        if parameter.ndim < 2:
            return {"step": torch.zeros(()), "variance": torch.zeros_like(parameter)}
        *stack, rows, columns = parameter.shape
        row_var = parameter.new_zeros(*stack, rows, 1)
        col_var = parameter.new_zeros(*stack, 1, columns)
        return {"step": torch.zeros(()), "row_var": row_var, "col_var": col_var}

    def decay(self, parameter: Tensor, gradient: Tensor, group: dict) -> Tensor:
        """The gradient as it is: α depends on θ before the decay, so `update` decays."""
        return gradient

    def update(self, parameter: Tensor, gradient: Tensor, state: dict, group: dict) -> None:
        """θ ← θ − αₜ U / max(1, RMS(U) / d), after θ has decayed."""
        t = float(state["step"])
        self.average(gradient, state, t, group)
        update = self.normalize(gradient, state, group)
        alpha = self.step_size(parameter, t, group)
        super().decay(parameter, gradient, group)
        self.move(parameter, update, alpha / self.clipping(update, group["d"]), state, group)

    def average(self, gradient: Tensor, state: dict, t: float, group: dict) -> None:
        """Rₜ = β₂ₜ Rₜ₋₁ + (1 − β₂ₜ) mean of each row of g², Cₜ alike; of a vector all of v is kept. 1 − β₂ₜ = t^τ."""
        share = t ** group["beta2_decay"]
        if "variance" in state:
            state["variance"].mul_(1 - share).addcmul_(gradient, gradient, value=share)
        else:
            state["row_var"].lerp_(mean_of_squares(gradient, -1), share)
            state["col_var"].lerp_(mean_of_squares(gradient, -2), share)

    def normalize(self, gradient: Tensor, state: dict, group: dict) -> Tensor:
        """U = g / √V̂, with V̂ = R C / mean(R) for a matrix and V̂ = v for a vector; mean(R) and √V̂ are at least ε₁.

        They are at least the dtype's smallest number in any case: where all gradients were 0, U must be 0, and not 0 / 0.
        """
        floor = self.floor(gradient, group)
        tiny = torch.finfo(gradient.dtype).tiny
        if "variance" in state:
            estimate = state["variance"].clamp(min=max(floor**2, tiny))
        else:
            estimate = rank_one(state["row_var"], state["col_var"], max(floor, tiny)).clamp_(min=max(floor**2, tiny))
        return estimate.rsqrt_().mul_(gradient)

    def floor(self, gradient: Tensor, group: dict) -> float:
        """ε₁; where none is given the dtype's own, 1.2e-7 in 32 bits."""
        eps1 = group["eps"][0]
        return torch.finfo(gradient.dtype).eps if eps1 is None else eps1

    def clipping(self, update: Tensor, d: float) -> float:
        """max(1, RMS(U) / d), by which U is divided: one number for the whole tensor, so that its direction stays."""
        return max(1.0, rms(update) / d)

    def step_size(self, parameter: Tensor, t: float, group: dict) -> float:
        """αₜ = max(ε₂, RMS(θ)) ρₜ, with ρₜ = min(lr, 1 / √t)."""
        return max(group["eps"][1], rms(parameter)) * min(group["lr"], 1 / sqrt(t))

    def move(self, parameter: Tensor, update: Tensor, factor: float, state: dict, group: dict) -> None:
        """θ ← θ − αₜ Û, with αₜ and the clipping in one factor."""
        parameter.sub_(update, alpha=factor)

    @classmethod
    def state_bytes(cls, shape: Sequence[int], itemsize: int = 4, **options) -> int:
        """Bytes of state for one parameter tensor: rows and columns, or a vector's elements, and a 4-byte step counter."""
        elements = prod(shape[:-1]) + prod(shape[:-2]) * shape[-1] if len(shape) > 1 else prod(shape)
        return elements * itemsize + 4

    @classmethod
    def temporary_bytes(cls, shape: Sequence[int], itemsize: int = 4, **options) -> int:
        """Bytes that one update needs for a moment: U, and for a matrix R / mean(R) beside it."""
        return (prod(shape) + (prod(shape[:-1]) if len(shape) > 1 else 0)) * itemsize


def mean_of_squares(gradient: Float[Tensor, "*stack n m"], dim: int) -> Float[Tensor, "*stack _ _"]:
    """The means of g² over `dim`, which stays with size 1; g² itself is never in memory."""
    return torch.linalg.vector_norm(gradient, dim=dim, keepdim=True).square_().div_(gradient.size(dim))


def rank_one(
    rows: Float[Tensor, "*stack n 1"], columns: Float[Tensor, "*stack 1 m"], floor: float = 0.0
) -> Float[Tensor, "*stack n m"]:
    """V̂ᵢⱼ = Rᵢ Cⱼ / mean(R), from R (…, n, 1) and C (…, 1, m); no mean counts as smaller than `floor`.

    mean(R) is the mean of the whole matrix, and so is mean(C). With sums in place of means it is the same matrix; sums and
    means mixed are wrong by a factor. Divided before multiplied, so that small numbers do not vanish on the way.
    """
    return (rows / rows.mean(-2, keepdim=True).clamp_(min=floor)) @ columns


def rms(values: Tensor) -> float:
    """The root of the mean of the squares; 0 where there are no values."""
    return values.norm().item() / sqrt(max(1, values.numel()))
