"""Codebooks: sorted lists of 2ⁿ numbers between -1 and 1, which n bits can stand for."""

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor


def value_of_bits(bits: str, signed: bool = True, max_exponent_bits: int = 7) -> float:
    """The number that a pattern such as "10010110" stands for in the dynamic data type (Dettmers et al. 2022, 1.3 and 2.2).

    Where `signed`, the first bit is the sign. The number of zeros that follow, z, sets the scale 10⁻ᶻ; a 1 ends them; the
    bits that are left count equal steps from 0.1 to 1, each read as its middle. All zeros are 0. One pattern is 1, so that
    the largest value is exact: "10000000" where `signed`, which would be a second zero, else "00000001". With fewer than
    7 exponent bits, that many zeros need no 1 after them.
    """
    sign, rest = (-1 if bits[0] == "1" else 1, bits[1:]) if signed else (1, bits)
    exponent_bits = min(max_exponent_bits, len(bits) - 1)
    zeros = min(len(rest) - len(rest.lstrip("0")), exponent_bits)
    if zeros < exponent_bits:
        fraction = rest[zeros + 1 :]
        return sign * _middle(int(fraction or "0", 2), 2 ** len(fraction), zeros)
    number = int(rest[zeros:] or "0", 2)
    last = 0 if signed else 1  # an unsigned book has no second zero
    if number == 0:
        return 1.0 if sign < 0 else 0.0
    if number == last:
        return 1.0
    return sign * _middle(number - last - 1, 2 ** (len(rest) - zeros) - 1 - last, zeros)


def _middle(step: int, steps: int, zeros: int) -> float:
    """The middle of one of `steps` equal steps from 0.1 to 1, times 10⁻ᶻ, in 32-bit floats as the codebook is stored."""
    ends = torch.linspace(0.1, 1, steps + 1, dtype=torch.float32)[step : step + 2]
    return (10.0**-zeros * (ends[:1] + ends[1:]) / 2).item()


@cache
def dynamic_codebook(
    signed: bool = True, total_bits: int = 8, max_exponent_bits: int = 7, device: torch.device | str = "cpu"
) -> Float[Tensor, " entries"]:
    """The dynamic codebook: the values of all patterns of `total_bits` bits, sorted, float32 (2^total_bits,).

    Signed for Adam's first average, unsigned for the second, which is never negative: the sign's bit goes to the fraction.
    The tensor is made once and shared: do not change it.
    """
    patterns = [f"{number:0{total_bits}b}" for number in range(2**total_bits)]
    return torch.tensor(sorted(value_of_bits(bits, signed, max_exponent_bits) for bits in patterns), device=device)


@cache
def linear_codebook(signed: bool = True, total_bits: int = 8) -> Float[Tensor, " entries"]:
    """Equal steps from -1 (unsigned: 0) to 1, float32. A signed one has one entry less, so that 0 is among them."""
    steps = 2 ** (total_bits - 1) - 1 if signed else 2**total_bits - 1
    return torch.arange(-steps if signed else 0, steps + 1) / steps
