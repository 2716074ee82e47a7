"""A machine as a few rates, and the seconds in which it does a piece of work."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp, log

from course_utils.errors import CourseError


class NoRateError(CourseError):
    """A machine has no rate for the numbers that a step multiplies."""


@dataclass(frozen=True)
class Curve:
    """A rate that depends on size: `points` are (size, rate), sizes ascending, interpolated in logarithms of both."""

    points: tuple[tuple[float, float], ...]

    def rate_at(self, size: float) -> float:
        """The rate at `size`; beyond the points, the rate of the nearest."""
        right = bisect_left(self.points, (size,))
        if right in (0, len(self.points)):
            return self.points[min(right, len(self.points) - 1)][1]
        (size0, rate0), (size1, rate1) = self.points[right - 1 : right + 1]
        share = log(size / size0) / log(size1 / size0)
        return exp((1 - share) * log(rate0) + share * log(rate1))


ON_HOST = "on the host"


@dataclass(frozen=True)
class Work:
    """What one call of one operator asks of a machine."""

    kernel: str  # the kind of work as a calibration distinguishes it: "mm NT", "convolution", "gelu"
    dtype: str = "float32"
    flops: int = 0  # a multiplication with its addition counts as two
    bytes: int = 0  # read and written, each tensor once
    new: int = 0  # those of the bytes that are written to memory that the operator allocates; 0 in place
    pieces: int = 1  # tensors allocated
    elements: int = 0  # of the largest tensor
    # Of a square matrix as large as a product's second factor or a convolution's filters; of a norm, elements per result.
    side: float = 1.0
    rows: int = 2**20  # of a product's first factor
    reach: int = 0  # bytes moved since the inputs were last touched; if few, a cache may still hold them


@dataclass(frozen=True)
class Rates:
    """Rates by size, finer than a machine's general ones, as a calibration measures them."""

    products: Mapping[tuple[str, str], Curve] = field(default_factory=dict)  # FLOP/s by side, of a kernel and dtype
    row_shares: Mapping[tuple[str, str], Curve] = field(default_factory=dict)  # of the former, by rows
    elements: Mapping[str, Curve] = field(default_factory=dict)  # a second by side, where bytes do not set the pace
    stream: Curve | None = None  # bytes a second by bytes moved
    in_place: Curve | None = None  # the same where an operator allocates nothing
    new_memory: Curve | None = None  # bytes a second by bytes of a new tensor


@dataclass(frozen=True)
class Machine:
    """One accelerator, or one CPU with its memory; `seconds_per_operator`, `asynchronous` and `rates` if it was calibrated."""

    name: str
    source: str  # of the figures
    memory: int  # bytes
    bandwidth: float  # of the memory, bytes a second
    flops: Mapping[str, float]  # FLOP/s of dense matrix products by dtype: "float32" without and "tf32" with TF32
    link: float  # bytes a second to one other device, one way
    link_name: str
    host_link: float  # bytes a second to the host's memory, one way
    seconds_per_operator: float = 0.0  # the cost of a call before it computes anything
    asynchronous: bool = False  # whether the device meanwhile works on the call before
    rates: Rates = Rates()

    def seconds(self, work: Work) -> float:
        """Seconds of one call by the roofline (Williams et al. 2009): the slower of arithmetic and memory, plus the call.

        What touches the host's memory goes at the pace of the link to it, each byte once. Raises `NoRateError` where the
        machine has no rate for the work's dtype.
        """
        if work.kernel == ON_HOST:
            return work.bytes / 2 / self.host_link
        arithmetic = work.flops / self._flop_rate(work) if work.flops else 0.0
        by_element = self.rates.elements.get(work.kernel)
        one_by_one = work.elements / by_element.rate_at(work.side) if by_element else 0.0
        stream = self.rates.stream if work.new else self.rates.in_place
        memory = work.bytes / (stream.rate_at(max(work.bytes, work.reach)) if stream else self.bandwidth)
        new_memory = self.rates.new_memory
        allocation = work.new / new_memory.rate_at(work.new / work.pieces) if new_memory and work.new else 0.0
        duration = allocation + max(arithmetic, one_by_one, memory)
        return max(self.seconds_per_operator, duration) if self.asynchronous else self.seconds_per_operator + duration

    def _flop_rate(self, work: Work) -> float:
        kernel = work.kernel, work.dtype
        if kernel in self.rates.products:
            row_share = self.rates.row_shares.get(kernel)
            return self.rates.products[kernel].rate_at(work.side) * (row_share.rate_at(work.rows) if row_share else 1.0)
        if work.dtype not in self.flops:
            raise NoRateError(
                f"{self.name} has no rate for matrix products in {work.dtype}; choose one of {', '.join(self.flops)}."
            )
        return self.flops[work.dtype]
