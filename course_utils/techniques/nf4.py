"""Weights in 4 bits: NF4, with its scales in 8 bits (Dettmers et al. 2023, QLoRA).

A block of 64 weights has a scale, its largest absolute value, and each weight becomes the place of the nearest of 16 numbers
times that scale. *Double quantization*: of the scales, less their mean, a block of 256 has a scale of its own.
"""

from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from course_utils.optim.codebook import dynamic_codebook
from course_utils.optim.low_bit import pack_nibbles, unpack_nibbles
from course_utils.optim.quantization import dequantize, nearest, quantize

BLOCK, SECOND_BLOCK = 64, 256
# The share of a normal distribution below the largest number, as in the authors' code.
_LARGEST = 0.9677083


@cache
def normal_codebook() -> Float[Tensor, " 16"]:
    """The 16 numbers (16,), float32: quantiles of a normal distribution, over the largest; 7 are below 0 and 8 above."""
    above, below = (torch.linspace(_LARGEST, 0.5, n)[:-1].double() for n in (9, 8))
    numbers = torch.cat([-torch.special.ndtri(below), torch.zeros(1), torch.special.ndtri(above).flip(0)]).float()
    return numbers / numbers.max()


@dataclass(frozen=True)
class NF4:
    """A weight of `shape`: `codes` two to a byte, `scales` a byte for each block, their `mean`, and a float32 in `second` for
    each block of scales.
    """

    codes: UInt8[Tensor, " bytes"]
    scales: UInt8[Tensor, " blocks"]
    mean: Float[Tensor, ""]
    second: Float[Tensor, " second_blocks"]
    shape: torch.Size
    dtype: torch.dtype

    @classmethod
    def from_weight(cls, weight: Float[Tensor, "..."]) -> "NF4":
        """`weight`, quantized; raises `RuntimeError` unless `BLOCK` divides the number of its elements."""
        blocks = weight.detach().float().reshape(-1, BLOCK)
        scales = blocks.abs().amax(1)
        codes = nearest(blocks * (1 / scales.clamp(min=1e-38))[:, None], normal_codebook())
        mean = scales.mean()
        scale_codes, second = quantize(scales - mean, dynamic_codebook(), SECOND_BLOCK)
        return cls(pack_nibbles(codes), scale_codes, mean, second, weight.shape, weight.dtype)

    def dequantize(self) -> Tensor:
        """The weight that the codes stand for."""
        codes = unpack_nibbles(self.codes, self.shape.numel())
        scales = dequantize(self.scales, self.second, dynamic_codebook(), SECOND_BLOCK) + self.mean
        return dequantize(codes, scales, normal_codebook(), BLOCK).view(self.shape).to(self.dtype)


class _Product(torch.autograd.Function):
    """x Wᵀ, of which backward needs W, not x: W is frozen. It is made anew there, so that no wide weight is kept."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Float[Tensor, "*tokens inputs"], weight: NF4) -> Float[Tensor, "*tokens outputs"]:
        ctx.weight = weight
        return x @ weight.dequantize().to(x.dtype).T

    @staticmethod
    def backward(ctx: FunctionCtx, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        return grad_output @ ctx.weight.dequantize().to(grad_output.dtype), None


class LinearNF4(nn.Module):
    """A frozen linear layer whose weight is kept in 4 bits."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = NF4.from_weight(linear.weight)
        self.bias = linear.bias

    def forward(self, x: Float[Tensor, "*tokens inputs"]) -> Float[Tensor, "*tokens outputs"]:
        """Products in the type of `x`."""
        product = _Product.apply(x, self.weight)
        return product if self.bias is None else product + self.bias.to(x.dtype)
