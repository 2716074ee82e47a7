"""Tensors as 8-bit integers: each integer is a place in a code book, and each block of values has a scale of its own.

A *code book* is a sorted list of up to 256 numbers between -1 and 1. To quantize a block is to divide it by its largest
absolute value (`absmax`) and to keep, for every value, the place of the nearest number in the book.
"""

from functools import cache, cached_property
from math import inf

import torch

PAPER_BLOCK, BLOCK = 2048, 256
"""Values that share a scale: in the paper (Dettmers et al. 2022, section 2.1), and in today's libraries."""


def value_of_bits(bits: str, signed: bool = True, max_exponent_bits: int = 7) -> float:
    """The number that a pattern such as "10010110" stands for in the dynamic data type (Dettmers et al. 2022, section 1.3).

    Where `signed`, the first bit is the sign. The number of zeros that follow, z, sets the scale 10⁻ᶻ; a 1 ends them; the
    bits that are left count equal steps from 0.1 to 1, each read as its middle. All zeros are 0, and the pattern that
    would be a second zero is 1. With fewer than 7 exponent bits, that many zeros need no 1 after them.
    """
    sign, rest = (-1 if bits[0] == "1" else 1, bits[1:]) if signed else (1, bits)
    exponent_bits = min(max_exponent_bits, len(bits) - 1)
    zeros = min(len(rest) - len(rest.lstrip("0")), exponent_bits)
    if zeros < exponent_bits:
        fraction = rest[zeros + 1 :]
        return sign * _middle(int(fraction or "0", 2), 2 ** len(fraction), zeros)
    return _value_without_end(int(rest[zeros:] or "0", 2), len(rest) - zeros, zeros, sign, signed)


def _value_without_end(number: int, bits: int, zeros: int, sign: int, signed: bool) -> float:
    """Where all exponent bits are zero: 0, 1 in place of a second zero, and equal steps if bits are left for them."""
    last = 0 if signed else 1  # an unsigned book has no second zero; its lowest other pattern is the 1
    if number == 0:
        return 1.0 if sign < 0 else 0.0
    if number == last:
        return 1.0
    return sign * _middle(number - last - 1, 2**bits - 1 - last, zeros)


def _middle(step: int, steps: int, zeros: int) -> float:
    """The middle of one of `steps` equal steps from 0.1 to 1, times 10⁻ᶻ, in 32-bit floats as the book is stored."""
    ends = torch.linspace(0.1, 1, steps + 1, dtype=torch.float32)[step : step + 2]
    return (10.0**-zeros * (ends[:1] + ends[1:]) / 2).item()


@cache
def dynamic_codes(signed: bool = True, total_bits: int = 8, max_exponent_bits: int = 7) -> torch.Tensor:
    """The dynamic code book: the values of all patterns of `total_bits` bits, sorted, float32 (2^total_bits,).

    Signed for Adam's first average, unsigned for the second, which is never negative: the sign's bit goes to the fraction.
    Raises `ValueError` for fewer than 3 or more than 8 bits. The tensor is made once and shared: do not change it.
    """
    _check_bits(total_bits)
    if not 1 <= max_exponent_bits < 8:
        raise ValueError(f"max_exponent_bits={max_exponent_bits} is out of range: it must be from 1 to 7.")
    patterns = [f"{number:0{total_bits}b}" for number in range(2**total_bits)]
    return torch.tensor(sorted(value_of_bits(bits, signed, max_exponent_bits) for bits in patterns))


@cache
def linear_codes(signed: bool = True, total_bits: int = 8) -> torch.Tensor:
    """Equal steps from -1 (unsigned: 0) to 1, float32. A signed book has one entry less, so that 0 is among them."""
    _check_bits(total_bits)
    steps = 2 ** (total_bits - 1) - 1 if signed else 2**total_bits - 1
    return torch.arange(-steps if signed else 0, steps + 1) / steps


def _check_bits(total_bits: int) -> None:
    if not 3 <= total_bits <= 8:
        raise ValueError(f"total_bits={total_bits} is out of range: a code is an 8-bit integer, so use 3 to 8.")


def midpoints(codes: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Half-way points of neighboring entries, rounded down to `dtype`: x is nearer to the upper one where x > midpoint.

    (Rounded down, because no x of this dtype lies between the true midpoint and the rounded one.)
    """
    true = (codes[1:].double() + codes[:-1].double()) / 2
    rounded = true.to(dtype)
    return torch.where(rounded.double() > true, rounded.nextafter(rounded.new_tensor(-inf)), rounded)


def nearest(values: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """The place of the entry nearest to each value, uint8; the lower one where two are equally near."""
    return torch.searchsorted(midpoints(codes, values.dtype), values, out_int32=True).to(torch.uint8)


def stochastic(values: torch.Tensor, codes: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """One of the two entries around each value, the upper one with a chance that makes the mean right; uint8.

    Values beyond the first or last entry get that one.
    """
    upper = torch.searchsorted(codes, values.clamp(codes[0], codes[-1]).contiguous()).clamp(min=1)
    low, high = codes[upper - 1], codes[upper]
    chance = torch.rand(values.shape, dtype=values.dtype, device=values.device, generator=generator)
    return (upper - 1 + (chance < (values - low) / (high - low)).long()).to(torch.uint8)


class CodeBook:
    """A code book made ready for speed: `nearest` without a search, where the book allows it.

    A float32's upper 16 bits (sign, exponent, 7 bits of the fraction) name one of 65,536 small intervals. In a coarse enough
    book no interval holds more than one midpoint, so two look-ups and one comparison find the nearest entry exactly.
    """

    def __init__(self, codes: torch.Tensor):
        self.codes = codes

    def decode(self, places: torch.Tensor) -> torch.Tensor:
        """The entries at `places` (flat, uint8), float32."""
        return self.codes.index_select(0, places.int())

    def nearest(self, values: torch.Tensor) -> torch.Tensor:
        """As the function `nearest`, for flat `values`; those in float32 are looked up."""
        if values.dtype != torch.float32 or self._table is None:
            return nearest(values, self.codes)
        interval = (values.view(torch.int32) >> 16).add_(2**15)
        lowest, threshold = self._table
        above = values > threshold.index_select(0, interval)
        return lowest.index_select(0, interval).add_(above)

    @cached_property
    def _table(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Per interval the place of its lowest value, and the midpoint in it; None where one holds several midpoints."""
        least, most = _ends_of_intervals(self.codes.device)
        between = midpoints(self.codes)
        first, last = (torch.searchsorted(between, ends) for ends in (least, most))
        if (last - first > 1).any():
            return None
        threshold = torch.cat([between, between.new_tensor([inf])])[first]
        return first.to(torch.uint8), threshold


def _ends_of_intervals(device) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the largest float32 with each choice of upper 16 bits, ordered by them as a signed integer from -2¹⁵."""
    upper = torch.arange(-(2**15), 2**15, dtype=torch.int32, device=device) << 16
    ends = upper.view(torch.float32), (upper | 0xFFFF).view(torch.float32)
    negative = upper < 0
    least, most = torch.where(negative, ends[1], ends[0]), torch.where(negative, ends[0], ends[1])
    return least.nan_to_num(inf), most.nan_to_num(inf)


@cache
def dynamic_book(signed: bool, device: torch.device) -> CodeBook:
    """The dynamic code book on `device`: one for all tensors of all optimizers."""
    return CodeBook(dynamic_codes(signed).to(device))


def quantize(
    values: torch.Tensor, codes: torch.Tensor, block_size: int = PAPER_BLOCK
) -> tuple[torch.Tensor, torch.Tensor]:
    """`values` as places in the book `codes` (uint8, same shape), and the scale of each block (float32).

    A block is `block_size` consecutive values of the flattened tensor; the last may be shorter.
    Raises `ValueError` for a block of no values and `TypeError` for values that are not floating-point.
    """
    if block_size < 1:
        raise ValueError(f"block_size={block_size} is out of range: it must be at least 1.")
    if not values.is_floating_point():
        raise TypeError(f"quantize needs floating-point values, not {values.dtype}; convert them first.")
    flat = values.reshape(-1).to(_wide(values.dtype), copy=True)
    places = torch.empty(values.shape, dtype=torch.uint8, device=values.device)
    absmax = torch.empty(block_count(flat.numel(), block_size), device=values.device)
    pack(flat, CodeBook(codes), places.view(-1), absmax, block_size)
    return places, absmax


def dequantize(
    places: torch.Tensor,
    absmax: torch.Tensor,
    codes: torch.Tensor,
    block_size: int = PAPER_BLOCK,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """The values that `places` and `absmax` stand for, in `dtype`: codes[place] times the scale of its block."""
    return unpack(places.reshape(-1), absmax, CodeBook(codes), block_size, dtype).view(places.shape)


def pack(flat: torch.Tensor, book: CodeBook, places: torch.Tensor, absmax: torch.Tensor, block_size: int) -> None:
    """Quantize `flat` into `places` and `absmax`; `flat` is used up (scaled in place). A block of zeros has the scale 0."""
    for rows, scales in _rows(flat, absmax, block_size):
        scales.copy_(rows.abs().amax(1))
        rows.div_(torch.where(scales == 0, 1.0, scales)[:, None])
    places.copy_(book.nearest(flat))


def unpack(
    places: torch.Tensor, absmax: torch.Tensor, book: CodeBook, block_size: int, dtype=torch.float32
) -> torch.Tensor:
    """The values of flat `places` in `dtype`: the inverse of `pack`, but for rounding."""
    flat = book.decode(places).to(dtype)
    for rows, scales in _rows(flat, absmax, block_size):
        rows.mul_(scales[:, None])
    return flat


def block_count(elements: int, block_size: int = BLOCK) -> int:
    """Blocks of `elements` values, the last of which may be shorter."""
    return -(-elements // block_size)


def _rows(flat: torch.Tensor, absmax: torch.Tensor, block_size: int):
    """Views of `flat` with a block a row, beside their scales: the whole blocks, then the shorter one if there is one."""
    blocks = flat.numel() // block_size
    whole = blocks * block_size
    if blocks:
        yield flat[:whole].view(blocks, block_size), absmax[:blocks]
    if whole < flat.numel():
        yield flat[whole:].view(1, -1), absmax[blocks:]


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that values are computed in: at least 32 bits."""
    return torch.promote_types(dtype, torch.float32)
