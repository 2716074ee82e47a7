"""AdamW in few of a gradient's directions (GaLore, Zhao et al. 2024): both averages are as narrow as the projection.

G (m × n, m ≤ n, else transposed) becomes R = Pᵀ G (r × n), Adam makes a step N of R, and θ takes P N. P (m × r) holds the r
directions in which G is largest, found anew every `interval` steps; the averages stay as they were.
"""

import torch

from course_utils.optim.adam import AdamW


class GaLore(AdamW):
    """Matrices whose shorter side is above `rank` are projected, and their steps taken times `scale`; all else is AdamW's."""

    defaults = {**AdamW.defaults, "rank": 128, "interval": 200, "scale": 0.25}

    def new_state(self, parameter, group):
        """Averages in the projection's shape."""
        if parameter.dim() != 2 or min(parameter.shape) <= group["rank"]:
            return super().new_state(parameter, group)
        narrow = parameter.new_empty(group["rank"], max(parameter.shape))
        projection = parameter.new_empty(min(parameter.shape), group["rank"])
        return {**super().new_state(narrow, group), "projection": projection}

    def update(self, parameter, gradient, state, group):
        """θ ← θ + scale · P N, where N is what AdamW would add to a tensor of zeros with the gradient R."""
        if "projection" not in state:
            super().update(parameter, gradient, state, group)
            return
        rows, columns = parameter.shape
        theta, gradient = (t if rows <= columns else t.T for t in (parameter, gradient))
        if (state["step"] - 1) % group["interval"] == 0:
            directions = torch.linalg.svd(gradient.float(), full_matrices=False)[0]
            state["projection"].copy_(directions[:, : group["rank"]])
        narrow = state["projection"].T @ gradient
        step = torch.zeros_like(narrow)
        super().update(step, narrow, state, group)
        theta.addmm_(state["projection"], step, alpha=group["scale"])

    @classmethod
    def state_bytes(cls, shape, itemsize=4, rank=128):
        """Bytes of state for one parameter tensor."""
        if len(shape) != 2 or min(shape) <= rank:
            return super().state_bytes(shape, itemsize)
        return super().state_bytes((rank, max(shape)), itemsize) + rank * min(shape) * itemsize
