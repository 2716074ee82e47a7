"""Floating-point formats: what a bit pattern means, and rounding to a format by arithmetic alone.

A number is (−1)^sign · 1.mantissa · 2^(exponent − bias). With an exponent field of zeros it is *subnormal*,
(−1)^sign · 0.mantissa · 2^(1 − bias), as in IEEE 754.
"""

from dataclasses import dataclass
from math import copysign, inf, isinf, isnan, ldexp, log2, nan

import torch
from jaxtyping import Float, Float64
from torch import Tensor


@dataclass(frozen=True)
class Format:
    """A format; without `infinities` only all ones are NaN, as in E4M3, and without `nan` they are a number too, as in E2M1."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    infinities: bool = True
    nan: bool = True

    @property
    def bits(self) -> int:
        """Bits of a number, its sign included."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        """What is subtracted from the exponent field."""
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def largest(self) -> float:
        """The largest finite number."""
        all_ones = 2 ** (self.bits - 1) - 1
        return self.value(all_ones - (2**self.mantissa_bits if self.infinities else int(self.nan)))

    @property
    def smallest_normal(self) -> float:
        """Below it, numbers lose mantissa bits."""
        return ldexp(1.0, 1 - self.bias)

    @property
    def smallest_subnormal(self) -> float:
        """The smallest number above 0; half of it and less is rounded to 0."""
        return self.value(1)

    def fields(self, pattern: int) -> tuple[int, int, int]:
        """Sign, exponent field and mantissa field of a bit pattern."""
        rest, mantissa = divmod(pattern, 2**self.mantissa_bits)
        return *divmod(rest, 2**self.exponent_bits), mantissa

    def value(self, pattern: int) -> float:
        """The number that a bit pattern stands for."""
        sign, exponent, mantissa = self.fields(pattern)
        fraction = mantissa / 2**self.mantissa_bits
        is_top = exponent == 2**self.exponent_bits - 1
        if is_top and self.infinities:
            size = nan if mantissa else inf
        elif is_top and self.nan and mantissa == 2**self.mantissa_bits - 1:
            size = nan
        elif exponent == 0:
            size = ldexp(fraction, 1 - self.bias)
        else:
            size = ldexp(1 + fraction, exponent - self.bias)
        return -size if sign else size

    def pattern(self, value: float) -> int:
        """The bit pattern of `value`, rounded to nearest; NaN has many, and this is one."""
        value = self.nearest(torch.tensor(value, dtype=torch.float64)).item()
        sign = int(copysign(1.0, value) < 0) << (self.bits - 1)
        if isnan(value):
            return sign | (2 ** (self.bits - 1) - 1)
        if isinf(value):
            return sign | ((2**self.exponent_bits - 1) << self.mantissa_bits)
        # Patterns are ordered as their numbers: 2^mantissa_bits for each power of two, one for each spacing in it.
        powers = int(log2(self.spacing(value) / self.smallest_subnormal))
        return sign | ((powers << self.mantissa_bits) + int(abs(value) / self.spacing(value)))

    def spacing(self, value: float) -> float:
        """The distance from `value` to its neighbor away from 0: one *ulp*, unit in the last place."""
        return self.spacings(torch.tensor(value, dtype=torch.float64)).item()

    def spacings(self, values: Float[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
        """`spacing` for each element."""
        exponents = torch.frexp(values.double().abs().clamp(min=self.smallest_normal))[1] - 1
        return torch.ldexp(torch.ones_like(values, dtype=torch.float64), exponents - self.mantissa_bits)

    def nearest(self, values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Each element rounded to the nearest number of the format, to the even one of two, in its own dtype."""
        spacings = self.spacings(values)
        return self._overflow((values.double() / spacings).round() * spacings).to(values.dtype)

    def stochastic(
        self, values: Float[Tensor, "*shape"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "*shape"]:
        """Each element rounded up or down at random, up as often as keeps the mean: *stochastic rounding*."""
        spacings = self.spacings(values)
        draws = torch.rand(values.shape, generator=generator, device=values.device, dtype=torch.float64)
        return self._overflow((values.double() / spacings + draws).floor() * spacings).to(values.dtype)

    def _overflow(self, rounded: Tensor) -> Tensor:
        """What is larger than the largest number becomes infinite, or NaN where there is no infinity, or the largest."""
        overflow_value = inf if self.infinities else nan if self.nan else self.largest
        return torch.where(rounded.abs() > self.largest, overflow_value * rounded.sign(), rounded)


FORMATS = {
    fmt.name: fmt
    for fmt in (
        Format("fp32", 8, 23),
        Format("tf32", 8, 10),
        Format("bf16", 8, 7),
        Format("fp16", 5, 10),
        Format("fp8 e4m3", 4, 3, infinities=False),
        Format("fp8 e5m2", 5, 2),
        Format("fp4 e2m1", 2, 1, infinities=False, nan=False),
    )
}
