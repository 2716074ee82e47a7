"""A machine as a few rates, which give the seconds that it needs for a piece of work."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp, log

from course_utils.errors import CourseError


class NoRateError(CourseError):
    """Raised if a machine has no rate for products in a step's dtype."""


@dataclass(frozen=True)
class Curve:
    """A rate that depends on size: `points` are (size, rate), sizes ascending, interpolated in logarithms of both."""

    points: tuple[tuple[float, float], ...]

    def rate_at(self, size: float) -> float:
        """The rate at `size`; outside the range of the points, the rate of the nearest."""
        right = bisect_left(self.points, (size,))
        if right in (0, len(self.points)):
            return self.points[min(right, len(self.points) - 1)][1]
        (size0, rate0), (size1, rate1) = self.points[right - 1 : right + 1]
        share = log(size / size0) / log(size1 / size0)
        return exp((1 - share) * log(rate0) + share * log(rate1))


HOST_KERNEL = "on the host"


@dataclass(frozen=True)
class Work:
    """The work of one call of an operator."""

    kernel: str  # the kind of work that a calibration times: "mm NT", "convolution", "gelu"
    dtype: str = "float32"
    flops: int = 0  # a multiplication with its addition counts as two
    bytes: int = 0  # read and written, each tensor once
    new_bytes: int = 0  # those of `bytes` that go into memory that the operator allocates; 0 in place
    new_tensors: int = 1  # the number of tensors allocated
    elements: int = 0  # of the largest tensor
    # Products: the square root of the second factor's elements; convolutions: that of the filters'; norms: elements per result.
    size: float = 1.0
    rows: int = 2**20  # of a product's first factor
    reach: int = 0  # bytes moved since the inputs were last used; if there are few, a cache may still hold the inputs


@dataclass(frozen=True)
class Rates:
    """Rates by kernel and size, which a calibration measures, in place of a machine's general ones."""

    products: Mapping[tuple[str, str], Curve] = field(default_factory=dict)  # by kernel and dtype: FLOP/s by size
    row_shares: Mapping[tuple[str, str], Curve] = field(default_factory=dict)  # the same: shares of these by rows
    elements: Mapping[str, Curve] = field(default_factory=dict)  # by kernel: elements a second by size
    stream: Curve | None = None  # bytes a second by bytes moved
    in_place: Curve | None = None  # the same where an operator allocates nothing
    new_memory: Curve | None = None  # bytes a second by bytes of a new tensor


@dataclass(frozen=True)
class Machine:
    """One accelerator, or one CPU with its memory. The last three fields are only known of a calibrated machine."""

    name: str
    source: str  # of the figures
    memory: int  # bytes
    bandwidth: float  # of the memory, bytes a second
    flop_rates: Mapping[str, float]  # FLOP/s of dense matrix products by dtype: "float32" without and "tf32" with TF32
    link: float  # bytes a second to one other device, one way
    link_name: str
    host_link: float  # bytes a second to the host's memory, one way
    seconds_per_operator: float = 0.0  # the cost of a call before it computes anything
    asynchronous: bool = False  # whether the device works on one call during the next one's cost
    rates: Rates = Rates()

    def seconds(self, work: Work) -> float:
        """Seconds of one call by the roofline (Williams et al. 2009): the slower of arithmetic and memory, and the call's cost.

        Work on the host's memory is as slow as the link to it, which each byte crosses once. Raises `NoRateError` if the machine
        has no rate for products in the work's dtype.
        """
        if work.kernel == HOST_KERNEL:
            return work.bytes / 2 / self.host_link
        arithmetic = work.flops / self._flop_rate(work) if work.flops else 0.0
        by_element = self.rates.elements.get(work.kernel)
        one_by_one = work.elements / by_element.rate_at(work.size) if by_element else 0.0
        stream = self.rates.stream if work.new_bytes else self.rates.in_place
        memory = work.bytes / (stream.rate_at(max(work.bytes, work.reach)) if stream else self.bandwidth)
        new_memory = self.rates.new_memory
        allocation = 0.0
        if new_memory and work.new_bytes:
            allocation = work.new_bytes / new_memory.rate_at(work.new_bytes / work.new_tensors)
        duration = allocation + max(arithmetic, one_by_one, memory)
        return max(self.seconds_per_operator, duration) if self.asynchronous else self.seconds_per_operator + duration

    def _flop_rate(self, work: Work) -> float:
        kernel = work.kernel, work.dtype
        if kernel in self.rates.products:
            row_share = self.rates.row_shares.get(kernel)
            return self.rates.products[kernel].rate_at(work.size) * (row_share.rate_at(work.rows) if row_share else 1.0)
        if work.dtype not in self.flop_rates:
            raise NoRateError(
                f"{self.name} has no rate for matrix products in {work.dtype}; choose one of {', '.join(self.flop_rates)}."
            )
        return self.flop_rates[work.dtype]
