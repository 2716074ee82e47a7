"""Products of matrices in eight bits, emulated: quantize with a scale for each tensor, multiply in float32, divide.

Micikevicius et al. (2022), *FP8 Formats for Deep Learning*: E4M3 for weights and activations, E5M2 for gradients.
"""

from collections import deque
from math import inf, isfinite

import torch

from course_utils.precision.formats import Format


def fitting_scale(largest: float, number: Format) -> float:
    """The factor that brings `largest` to the largest number of the format; 1 for 0, inf and NaN."""
    return number.largest / largest if 0 < largest < inf else 1.0


class DelayedScale:
    """The scale of one tensor of a model, from the largest values ("amax") of its last `history` uses.

    So a tensor can be quantized while it is computed, without a first pass that only looks for its largest value
    (Transformer Engine's delayed scaling). The first use takes its own. A use with an infinity or a NaN is not remembered.
    """

    def __init__(self, number: Format, history: int = 16):
        self.number, self.largest = number, deque(maxlen=history)

    def next(self, values: torch.Tensor) -> float:
        """The scale for `values`, whose own largest enters the history for later uses."""
        own = values.abs().max().item()
        scale = fitting_scale(max(self.largest, default=own), self.number)
        if isfinite(own):
            self.largest.append(own)
        return scale


def fake_quantize(values: torch.Tensor, number: Format, scale: float) -> torch.Tensor:
    """`values` as they come back from the format: times the scale, rounded, divided. What is too large is clamped.

    In float64 in between: the scale of a tensor of very small values is too large for float32.
    """
    scaled = (values.double() * scale).clamp(-number.largest, number.largest)
    return (number.nearest(scaled) / scale).to(values.dtype)


def matmul(
    a: torch.Tensor, b: torch.Tensor, formats: tuple[Format, Format], scales: tuple[float, float]
) -> torch.Tensor:
    """a @ b with both factors quantized; sums are float32, as in the matrix units of a GPU. (m, k) and (k, n) to (m, n)."""
    return fake_quantize(a, formats[0], scales[0]) @ fake_quantize(b, formats[1], scales[1])
