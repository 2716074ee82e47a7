"""Products of matrices in eight and in four bits, emulated: quantize with scales, multiply in float32, divide.

Micikevicius et al. (2022), *FP8 Formats for Deep Learning*, for one scale a tensor: E4M3 for weights and activations, E5M2 for
gradients. Transformer Engine's documentation of MXFP8 and NVFP4 for one scale a block.
"""

from collections.abc import Callable
from math import inf

import torch
from jaxtyping import Float
from torch import Tensor

from course_utils.precision.formats import Format


def fitting_scale(largest: float, fmt: Format) -> float:
    """The factor that brings `largest` to the largest number of the format; 1 for 0, inf and NaN."""
    return fmt.largest / largest if 0 < largest < inf else 1.0


def fake_quantize(values: Float[Tensor, "*shape"], fmt: Format, scale: float | None = None) -> Float[Tensor, "*shape"]:
    """`values` as they come back from the format: times the scale, rounded, divided. What is too large is clamped.

    By default the scale is the one that fits the largest value ("amax"). In float64 in between: the scale of a tensor of very
    small values is too large for float32.
    """
    scale = fitting_scale(values.abs().max().item(), fmt) if scale is None else scale
    scaled = (values.double() * scale).clamp(-fmt.largest, fmt.largest)
    return (fmt.nearest(scaled) / scale).to(values.dtype)


def fake_quantize_blocks(
    values: Float[Tensor, "*shape"], fmt: Format, size: int, steps: Format | None = None
) -> Float[Tensor, "*shape"]:
    """`fake_quantize` with a scale for each `size` neighbors in a row, which makes their largest the format's largest.

    A scale is stored in eight bits. MXFP8 rounds it to a power of two, so that nothing is clamped. NVFP4 rounds it to a number of
    `steps`, which is E4M3, in units of one scale of the whole tensor. Raises `RuntimeError` unless `size` divides a row.
    """
    blocks = values.double().unflatten(-1, (-1, size))
    unit = blocks.abs().amax(-1, keepdim=True) / fmt.largest  # what a 1 of the format stands for
    if steps is None:
        unit = unit.log2().ceil().exp2()
    else:
        tensor_scale = unit.max() / steps.largest
        unit = steps.nearest(unit / tensor_scale) * tensor_scale
    unit = torch.where(unit > 0, unit, 0.0)  # 0 of a block of zeros, and where the scale itself is rounded to 0
    scaled = torch.where(unit > 0, blocks / unit, 0.0).clamp(-fmt.largest, fmt.largest)
    return (fmt.nearest(scaled) * unit).flatten(-2).to(values.dtype)


def matmul(
    a: Float[Tensor, "m k"], b: Float[Tensor, "k n"], *quantize: Callable[[Tensor], Tensor]
) -> Float[Tensor, "m n"]:
    """a @ b with both factors quantized, by one function or by one each.

    Both get the axis that is summed over last, along which blocks run. Sums are float32, as in the matrix units of a GPU.
    """
    return quantize[0](a) @ quantize[-1](b.mT).mT
