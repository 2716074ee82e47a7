"""Floating-point formats bit by bit: what a pattern means, and rounding to a format by arithmetic alone.

A number is (−1)^sign · 1.mantissa · 2^(exponent − bias); with an exponent field of zeros it is *subnormal*,
(−1)^sign · 0.mantissa · 2^(1 − bias). IEEE 754-2019, section 3.4; Micikevicius et al. (2022), table 1, for eight bits.
"""

from dataclasses import dataclass
from math import copysign, frexp, inf, isinf, isnan, ldexp, nan

import torch

from course_utils.errors import CourseError


@dataclass(frozen=True)
class Format:
    """A sign, `exponent_bits` and `mantissa_bits`. Without `infinities` the largest exponent holds numbers too.

    Then the pattern of all ones is the only NaN, as in E4M3 (Micikevicius et al. 2022, section 3).
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    infinities: bool = True

    @property
    def bits(self) -> int:
        """Bits of a number, its sign included."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        """What is subtracted from the exponent field."""
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def lowest_exponent(self) -> int:
        """The power of two of the smallest normal number, and of all subnormal ones."""
        return 1 - self.bias

    @property
    def largest(self) -> float:
        """The largest finite number."""
        special = 2**self.mantissa_bits if self.infinities else 1
        return self.value(2 ** (self.bits - 1) - 1 - special)

    @property
    def smallest_normal(self) -> float:
        """Below it, numbers lose mantissa bits."""
        return ldexp(1.0, self.lowest_exponent)

    @property
    def smallest_subnormal(self) -> float:
        """The smallest number above 0; half of it and less is rounded to 0."""
        return ldexp(1.0, self.lowest_exponent - self.mantissa_bits)

    def fields(self, pattern: int) -> tuple[int, int, int]:
        """Sign, exponent field and mantissa field of a bit pattern. Raises `CourseError` for one that is too long."""
        if not 0 <= pattern < 2**self.bits:
            raise CourseError(f"{pattern} is no pattern of {self.bits} bits; {self.name} has 0 to {2**self.bits - 1}.")
        rest, mantissa = divmod(pattern, 2**self.mantissa_bits)
        sign, exponent = divmod(rest, 2**self.exponent_bits)
        return sign, exponent, mantissa

    def value(self, pattern: int) -> float:
        """The number that a bit pattern stands for."""
        sign, exponent, mantissa = self.fields(pattern)
        fraction = ldexp(mantissa, -self.mantissa_bits)
        if self._is_special(exponent, mantissa):
            size = inf if self.infinities and mantissa == 0 else nan
        elif exponent == 0:
            size = ldexp(fraction, self.lowest_exponent)
        else:
            size = ldexp(1 + fraction, exponent - self.bias)
        return -size if sign else size

    def pattern(self, value: float) -> int:
        """The bit pattern of `value`, rounded to nearest; NaN has many, and this is one."""
        value = self.nearest(torch.tensor(value, dtype=torch.float64)).item()
        sign = int(copysign(1.0, value) < 0) << (self.bits - 1)
        top = (2**self.exponent_bits - 1) << self.mantissa_bits
        if isnan(value):
            return sign | top | (2**self.mantissa_bits - 1)
        return sign | (top if isinf(value) else self._pattern_of_size(abs(value)))

    def spacing(self, value: float) -> float:
        """The distance to the next larger number of the format (in size) at `value`: one *ulp*, unit in the last place."""
        exponent = frexp(value)[1] - 1 if value else self.lowest_exponent
        return ldexp(1.0, max(exponent, self.lowest_exponent) - self.mantissa_bits)

    def spacings(self, values: torch.Tensor) -> torch.Tensor:
        """`spacing` of each element, float64."""
        exponents = torch.frexp(values.double())[1] - 1
        exponents = torch.where(values == 0, self.lowest_exponent, exponents).clamp(min=self.lowest_exponent)
        return torch.ldexp(torch.ones_like(values, dtype=torch.float64), exponents - self.mantissa_bits)

    def nearest(self, values: torch.Tensor, saturate: bool = False) -> torch.Tensor:
        """Each element rounded to the nearest number of the format, to the even one of two, in its own dtype.

        Beyond the largest it becomes infinite (NaN where the format has no infinities), or the largest where `saturate`.
        """
        spacings = self.spacings(values)
        return self._within_range((values.double() / spacings).round() * spacings, saturate).to(values.dtype)

    def by_chance(
        self, values: torch.Tensor, generator: torch.Generator | None = None, saturate: bool = False
    ) -> torch.Tensor:
        """Each element rounded to one of its two neighbors by chance, so that the mean is right: *stochastic rounding*.

        The upper is taken with a chance equal to the share of the way that lies below it (Gupta et al. 2015).
        """
        spacings = self.spacings(values)
        draws = torch.rand(values.shape, generator=generator, device=values.device, dtype=torch.float64)
        rounded = (values.double() / spacings + draws).floor() * spacings
        return self._within_range(rounded, saturate).to(values.dtype)

    def _is_special(self, exponent: int, mantissa: int) -> bool:
        at_top = exponent == 2**self.exponent_bits - 1
        return at_top and (self.infinities or mantissa == 2**self.mantissa_bits - 1)

    def _pattern_of_size(self, size: float) -> int:
        """Patterns of one sign are ordered as their numbers: count spacings within a power of two, and powers of two."""
        spacing = self.spacing(size)
        power = frexp(spacing)[1] - 1 + self.mantissa_bits - self.lowest_exponent
        return int(size / spacing) + (power << self.mantissa_bits)

    def _within_range(self, values: torch.Tensor, saturate: bool) -> torch.Tensor:
        if saturate:
            return values.clamp(-self.largest, self.largest)
        beyond = torch.full_like(values, inf if self.infinities else nan).copysign(values)
        return torch.where(values.abs() > self.largest, beyond, values)


FORMATS = {
    each.name: each
    for each in (
        Format("fp32", 8, 23),
        Format("tf32", 8, 10),
        Format("bf16", 8, 7),
        Format("fp16", 5, 10),
        Format("fp8 e4m3", 4, 3, infinities=False),
        Format("fp8 e5m2", 5, 2),
    )
}
"""By name. tf32 is no format of memory: matrix units of GPUs round float32 factors to it."""


def in_decimal(value: float) -> str:
    """`value` as sign, mantissa and a power of ten: "+1.25 · 10^-1"."""
    mantissa, exponent = f"{value:+.6e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')} · 10^{int(exponent)}"


def in_binary(value: float) -> str:
    """`value` as sign, mantissa and a power of two: "+1.0 · 2^-3"."""
    mantissa, exponent = frexp(value)
    return f"{2 * mantissa:+} · 2^{exponent - 1}" if value else "+0.0"
