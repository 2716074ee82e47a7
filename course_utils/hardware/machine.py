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

    def at(self, size: float) -> float:
        """The rate at `size`; beyond the points, the rate of the nearest."""
        right = bisect_left(self.points, (size,))
        if right in (0, len(self.points)):
            return self.points[min(right, len(self.points) - 1)][1]
        (size0, rate0), (size1, rate1) = self.points[right - 1 : right + 1]
        share = log(size / size0) / log(size1 / size0)
        return exp((1 - share) * log(rate0) + share * log(rate1))


ON_HOST, BY_ROWS = "on the host", ", by rows"


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
class Machine:
    """One accelerator, or one CPU with its memory.

    The last three fields are known of calibrated machines only. `measured` has finer rates: FLOP/s by side under the name of
    kernel and dtype, and with `BY_ROWS` the share of that which few rows reach; elements a second under the kernel's name alone,
    where bytes do not set the pace; bytes a second by bytes moved (`"stream"`, `"stream in place"`) or newly allocated.
    """

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
    measured: Mapping[str, Curve] = field(default_factory=dict)

    def seconds(self, work: Work) -> float:
        """Seconds of one call by the roofline (Williams et al. 2009): the slower of arithmetic and memory, plus the call.

        What touches the host's memory goes at the pace of the link to it, each byte once. Raises `NoRateError` where the
        machine has no rate for the work's dtype.
        """
        if work.kernel == ON_HOST:
            return work.bytes / 2 / self.host_link
        arithmetic = work.flops / self._flop_rate(work) if work.flops else 0.0
        one_by_one = work.elements / self.measured[work.kernel].at(work.side) if work.kernel in self.measured else 0.0
        stream, new = self.measured.get("stream" if work.new else "stream in place"), self.measured.get("new memory")
        memory = work.bytes / (stream.at(max(work.bytes, work.reach)) if stream else self.bandwidth)
        allocation = work.new / new.at(work.new / work.pieces) if new and work.new else 0.0
        doing = allocation + max(arithmetic, one_by_one, memory)
        return max(self.seconds_per_operator, doing) if self.asynchronous else self.seconds_per_operator + doing

    def _flop_rate(self, work: Work) -> float:
        measured = self.measured.get(f"{work.kernel} {work.dtype}")
        if measured is not None:
            by_rows = self.measured.get(f"{work.kernel} {work.dtype}{BY_ROWS}")
            return measured.at(work.side) * (by_rows.at(work.rows) if by_rows else 1.0)
        if work.dtype not in self.flops:
            raise NoRateError(
                f"{self.name} has no rate for matrix products in {work.dtype}; choose one of {', '.join(self.flops)}."
            )
        return self.flops[work.dtype]
