"""Products of matrices in eight bits, emulated: quantize with a scale for each tensor, multiply in float32, divide.

Micikevicius et al. (2022), *FP8 Formats for Deep Learning*: E4M3 for weights and activations, E5M2 for gradients.
"""

from collections import deque
from math import inf, isfinite

import torch

from course_utils.errors import CourseError
from course_utils.precision.formats import Format


def fitting_scale(largest: float, number: Format, margin: int = 0) -> float:
    """The factor that brings `largest` to the largest number of the format, less `margin` powers of two; 1 for 0, inf and NaN."""
    return number.largest / largest / 2**margin if 0 < largest < inf else 1.0


class DelayedScale:
    """The scale of one tensor of a model, from the largest values ("amax") of its last `history` uses.

    So a tensor can be quantized while it is computed, without a first pass that only looks for its largest value.
    Transformer Engine calls this delayed scaling. The first use has no history and takes its own. A use with an infinity or
    a NaN does not enter the history, else every scale would be 0 until it has left.
    """

    def __init__(self, number: Format, history: int = 16, margin: int = 0):
        if history < 1:
            raise CourseError(f"history={history}: the scale needs the largest value of at least 1 use.")
        self.number, self.margin, self.largest = number, margin, deque(maxlen=history)

    def next(self, values: torch.Tensor) -> float:
        """The scale for `values`, whose own largest enters the history for later uses."""
        own = values.abs().max().item()
        scale = fitting_scale(max(self.largest, default=own), self.number, self.margin)
        if isfinite(own):
            self.largest.append(own)
        return scale


def quantized(values: torch.Tensor, number: Format, scale: float) -> torch.Tensor:
    """`values` as they come back from the format: times the scale, rounded (the largest where too large), divided.

    In float64 in between: the scale of a tensor of very small values is too large for float32.
    """
    return (number.nearest(values.double() * scale, saturate=True) / scale).to(values.dtype)


def product(
    a: torch.Tensor, b: torch.Tensor, formats: tuple[Format, Format], scales: tuple[float, float]
) -> torch.Tensor:
    """a @ b with both factors quantized; sums are float32, as in the matrix units of a GPU. (m, k) and (k, n) to (m, n)."""
    left, right = (quantized(x, number, scale) for x, number, scale in zip((a, b), formats, scales, strict=True))
    return left @ right


def relative_error(approximate: torch.Tensor, exact: torch.Tensor) -> float:
    """|approximate − exact| / |exact|, 2-norms over all elements."""
    return ((approximate - exact).norm() / exact.norm()).item()
