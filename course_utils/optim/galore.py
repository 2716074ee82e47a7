"""AdamW in few directions: both averages are as narrow as a projection of the gradient.

G (m × n, m ≤ n, else transposed) becomes R = Pᵀ G (r × n), with P (m × r), and Adam makes a step N of R. GaLore (Zhao et al.
2024) takes the directions in which G is largest, and moves θ by P N. APOLLO (Zhu et al. 2024) takes random ones, and moves θ by
G itself, each column scaled as Adam scaled that of R.
"""

from collections.abc import Sequence
from math import inf, sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from course_utils.optim.adam import AdamW


class GaLore(AdamW):
    """Matrices whose shorter side is above `rank` are projected, and their steps taken times `scale`; all else is AdamW's.

    P is computed anew every `interval` steps; the averages stay as they were. A `rank` of `inf` projects nothing.
    """

    by_element = False
    defaults = {**AdamW.defaults, "rank": 128, "interval": 200, "scale": 0.25}
    ranges = {**AdamW.ranges, "rank": (1, None), "interval": (1, None), "scale": (0, inf)}

    def new_state(self, parameter: Tensor, group: dict) -> dict:
        """Averages in the projection's shape."""
        if not is_projected(parameter.shape, group["rank"]):
            return super().new_state(parameter, group)
        return super().new_state(parameter.new_empty(group["rank"], max(parameter.shape)), group)

    def update(self, parameter: Tensor, gradient: Tensor, state: dict, group: dict) -> None:
        """AdamW's own, or for a matrix that is projected `update_projected`, on its rows or its columns."""
        if not is_projected(parameter.shape, group["rank"]):
            super().update(parameter, gradient, state, group)
            return
        rows, columns = parameter.shape
        theta, gradient = (t if rows <= columns else t.T for t in (parameter, gradient))
        self.update_projected(theta, gradient, state, group)

    def narrow_step(self, gradient: Float[Tensor, "m n"], state: dict, group: dict) -> tuple[Tensor, Tensor, Tensor]:
        """P, R, and AdamW's step N at a rate of 1, from zeros with the gradient R."""
        projection = self.projection(gradient, state, group)
        narrow = projection.T @ gradient
        step = torch.zeros_like(narrow)
        super().update(step, narrow, state, {**group, "lr": 1.0})
        return projection, narrow, step

    def projection(self, gradient: Float[Tensor, "m n"], state: dict, group: dict) -> Float[Tensor, "m r"]:
        """The `rank` directions in which this step's gradient, or an earlier one's, is largest."""
        if (state["step"] - 1) % group["interval"] == 0:
            directions = torch.linalg.svd(gradient.float(), full_matrices=False)[0]
            state["projection"] = directions[:, : group["rank"]].to(gradient.dtype, copy=True)
        return state["projection"]

    def update_projected(self, theta: Float[Tensor, "m n"], gradient: Tensor, state: dict, group: dict) -> None:
        """θ ← θ + α · scale · P N."""
        projection, _, step = self.narrow_step(gradient, state, group)
        theta.addmm_(projection, step, alpha=group["lr"] * group["scale"])

    @classmethod
    def state_bytes(cls, shape: Sequence[int], itemsize: int = 4, **options) -> int:
        """Bytes of state for one parameter tensor: two narrow averages, the directions, and a 4-byte step counter."""
        rank = options.get("rank", cls.defaults["rank"])
        if not is_projected(shape, rank):
            return super().state_bytes(shape, itemsize)
        return super().state_bytes((rank, max(shape)), itemsize) + rank * min(shape) * itemsize

    @classmethod
    def temporary_bytes(cls, shape: Sequence[int], itemsize: int = 4, **options) -> int:
        """Bytes that the update of one tensor needs for a moment, in a step that keeps its directions: R, N and √v."""
        rank = options.get("rank", cls.defaults["rank"])
        if not is_projected(shape, rank):
            return super().temporary_bytes(shape, itemsize)
        return 3 * super().temporary_bytes((rank, max(shape)), itemsize)


class APOLLO(GaLore):
    """As in the paper, but for its `scale` at rank 1, √128, which is yours to give; `growth` bounds how fast a step may grow."""

    defaults = {**GaLore.defaults, "scale": 1.0, "growth": 1.01}
    ranges = {**GaLore.ranges, "growth": (1, None)}

    def projection(self, gradient: Float[Tensor, "m n"], state: dict, group: dict) -> Float[Tensor, "m r"]:
        """Random numbers, drawn again each time from the parameter's own seed, which changes every `interval` steps."""
        seed = state.setdefault("seed", int(torch.randint(2**31, ())))
        generator = torch.Generator(gradient.device)
        generator.manual_seed(seed + int(state["step"] - 1) // group["interval"])
        shape = len(gradient), group["rank"]
        return torch.randn(shape, generator=generator, device=gradient.device).to(gradient.dtype) / sqrt(group["rank"])

    def update_projected(self, theta: Float[Tensor, "m n"], gradient: Tensor, state: dict, group: dict) -> None:
        """θ ← θ − α · scale · G, each column times how much Adam made of R's; at rank 1 all by one number."""
        projection, narrow, step = self.narrow_step(gradient, state, group)
        columns = 0 if group["rank"] > 1 else (0, 1)
        factors = step.norm(dim=columns, keepdim=True) / narrow.norm(dim=columns, keepdim=True).clamp(min=1e-30)
        factors = factors * self.limit_growth((gradient * factors).norm(), state, group)
        theta.addcmul_(gradient, factors.expand_as(gradient), value=-group["lr"] * group["scale"])

    def limit_growth(self, size: Float[Tensor, ""], state: dict, group: dict) -> Float[Tensor, ""]:
        """The factor on a step of `size`, at most 1, with which it is no more than `growth` times as large as the one before."""
        previous = state.get("size", size)
        largest = torch.where(previous > 0, group["growth"] * previous, size)
        state["size"] = torch.minimum(size, largest)
        return (largest / size.clamp(min=1e-30)).clamp(max=1)

    @classmethod
    def state_bytes(cls, shape: Sequence[int], itemsize: int = 4, **options) -> int:
        """As GaLore's, with one number in place of the directions: the size of the step before."""
        rank = options.get("rank", cls.defaults["rank"])
        if not is_projected(shape, rank):
            return super().state_bytes(shape, itemsize, **options)
        return AdamW.state_bytes((rank, max(shape)), itemsize) + itemsize

    @classmethod
    def temporary_bytes(cls, shape: Sequence[int], itemsize: int = 4, **options) -> int:
        """Bytes that the update of one tensor needs for a moment: P, R, N, and the gradient times its columns' factors."""
        rank = options.get("rank", cls.defaults["rank"])
        if not is_projected(shape, rank):
            return super().temporary_bytes(shape, itemsize, **options)
        narrow, wide = sorted(shape)
        return itemsize * (narrow * rank + 2 * rank * wide + (narrow + 1) * wide)


def is_projected(shape: Sequence[int], rank: float) -> bool:
    """Whether both sides of a matrix are above `rank`."""
    return len(shape) == 2 and min(shape) > rank
