"""Tensors as 8-bit codes: each code is a number's place in a codebook, and each block of values has a scale of its own."""

from functools import lru_cache
from math import inf

import torch
from jaxtyping import Float, Integer, UInt8
from torch import Tensor
from torch.nn.functional import pad

PAPER_BLOCK = 2048
"""Values that share a scale in the paper (Dettmers et al. 2022, section 2.1)."""
BLOCK = 256
"""Values that share a scale in today's libraries."""


def quantize(
    values: Float[Tensor, "*shape"], codebook: Float[Tensor, " entries"], block_size: int = PAPER_BLOCK
) -> tuple[UInt8[Tensor, "*shape"], Float[Tensor, " blocks"]]:
    """The codes of `values` (uint8, same shape), and the scale of each block, its largest absolute value (float32).

    A block is `block_size` consecutive values of the flattened tensor; the last may be shorter. A block of zeros has scale 0.
    """
    shape, count = values.shape, values.numel()
    values = values.reshape(-1)
    if count % block_size:
        values = pad(values, (0, -count % block_size))
    values = values.view(-1, block_size)
    absmax = values.abs().amax(1).float()
    values = values / torch.where(absmax == 0, 1.0, absmax)[:, None]
    return look_up(values.view(-1)[:count], codebook).view(shape), absmax


def dequantize(
    codes: Integer[Tensor, "*shape"],
    absmax: Float[Tensor, " blocks"],
    codebook: Float[Tensor, " entries"],
    block_size: int = PAPER_BLOCK,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "*shape"]:
    """The values that `codes` stand for, in `dtype`: codebook[code] times the scale of its block.

    `block_size` is that of `quantize`; raises `RuntimeError` where there are fewer scales than blocks.
    """
    values = codebook.index_select(0, codes.reshape(-1).int()).to(dtype)
    return values.mul_(absmax.repeat_interleave(block_size)[: codes.numel()]).view(codes.shape)


def midpoints(codebook: Float[Tensor, " entries"], dtype: torch.dtype = torch.float32) -> Float[Tensor, " entries-1"]:
    """Half-way points of neighboring entries, rounded down to `dtype`: x is nearer to the upper one where x > midpoint.

    (Rounded down, because no x of this dtype lies between the true midpoint and the rounded one.)
    """
    exact = (codebook[1:].double() + codebook[:-1].double()) / 2
    rounded = exact.to(dtype)
    return torch.where(rounded.double() > exact, rounded.nextafter(rounded.new_tensor(-inf)), rounded)


def nearest(values: Float[Tensor, "*shape"], codebook: Float[Tensor, " entries"]) -> UInt8[Tensor, "*shape"]:
    """The code of the entry nearest to each value, uint8; the lower one where two are equally near."""
    return torch.searchsorted(midpoints(codebook, values.dtype), values, out_int32=True).to(torch.uint8)


def stochastic(
    values: Float[Tensor, "*shape"], codebook: Float[Tensor, " entries"], generator: torch.Generator | None = None
) -> UInt8[Tensor, "*shape"]:
    """One of the two entries around each value, the upper one with a chance that makes the mean right; uint8.

    Values beyond the first or last entry get that one.
    """
    upper = torch.searchsorted(codebook, values.clamp(codebook[0], codebook[-1]).contiguous()).clamp(min=1)
    low, high = codebook[upper - 1], codebook[upper]
    chance = torch.rand(values.shape, dtype=values.dtype, device=values.device, generator=generator)
    return (upper - 1 + (chance < (values - low) / (high - low)).long()).to(torch.uint8)


def look_up(values: Float[Tensor, " n"], codebook: Float[Tensor, " entries"]) -> UInt8[Tensor, " n"]:
    """The same as `nearest` for flat `values`, ten times as fast for float32: two look-ups and one comparison.

    A float32's upper 16 bits (sign, exponent, 7 bits of the fraction) name one of 65,536 small intervals. In a coarse enough
    codebook no interval holds more than one midpoint.
    """
    table = lookup_table(codebook) if values.dtype == torch.float32 else None
    if table is None:
        return nearest(values, codebook)
    lowest, midpoint = table
    interval = (values.view(torch.int32) >> 16).add_(2**15)
    above = values > midpoint.index_select(0, interval)
    return lowest.index_select(0, interval).add_(above.view(torch.uint8))


@lru_cache(maxsize=16)
def lookup_table(codebook: Float[Tensor, " entries"]) -> tuple[UInt8[Tensor, " 65536"], Float[Tensor, " 65536"]] | None:
    """For each interval the code of its lowest value, and the midpoint in it; None where one holds several midpoints."""
    upper = torch.arange(-(2**15), 2**15, dtype=torch.int32, device=codebook.device) << 16
    start = upper.view(torch.float32)
    end = (upper | 0xFFFF).view(torch.float32)
    end = torch.where(end.isnan(), start, end)  # beyond infinity there is nothing
    limits = midpoints(codebook)
    lowest = torch.searchsorted(limits, torch.minimum(start, end))
    highest = torch.searchsorted(limits, torch.maximum(start, end))
    if (highest - lowest > 1).any():
        return None
    return lowest.to(torch.uint8), torch.cat([limits, limits.new_tensor([inf])])[lowest]
