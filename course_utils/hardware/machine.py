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
    """A rate that depends on size: `points` are (size, rate), sizes ascending; between them both are read off in logarithms."""

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
    """What one call of one operator asks of a machine.

    `flops` counts a multiplication with its addition as two. `bytes` are read and written, each tensor once; `new` of them
    are written to memory that the operator allocates (none: it works in place), in `pieces`. `elements` is the size of the
    largest tensor. `kernel` names the kind of work as a calibration tells them apart (`"mm NT"`, `"convolution"`, `"gelu"`), and
    `side` is the side in elements of a square matrix as large as a product's second factor or a convolution's filters; of a
    norm it is the number of elements behind each result. `rows` are those of a product's first factor.
    `reach` says how many bytes were moved since what is read was touched before: what of it a cache may still hold.
    """

    kernel: str
    dtype: str = "float32"
    flops: int = 0
    bytes: int = 0
    new: int = 0
    pieces: int = 1
    elements: int = 0
    side: float = 1.0
    rows: int = 2**20
    reach: int = 0


@dataclass(frozen=True)
class Machine:
    """One device.

    `memory` in bytes; `bandwidth` of that memory in bytes a second; `flops`: dense matrix products in FLOP/s by dtype
    (`"float32"` without and `"tf32"` with TF32); `link`: bytes a second to one other device, one way, over `link_name`;
    `host_link` the same to the host's memory. `source` says where the figures come from.

    The other fields are known of calibrated machines only. `seconds_per_operator`: what calling one costs before it computes
    anything; `asynchronous`: meanwhile the device works on the one before. `measured`: finer rates. By the names of kernel and
    dtype, for what has FLOPs, FLOP/s over the side, and with `BY_ROWS` which share of that is reached with few rows; by the
    kernel's name alone elements a second, where bytes do not set the pace. `"stream"` and `"stream in place"` are bytes a second
    over the bytes moved, `"new memory"` over those allocated.
    """

    name: str
    source: str
    memory: int
    bandwidth: float
    flops: Mapping[str, float]
    link: float
    link_name: str
    host_link: float
    seconds_per_operator: float = 0.0
    asynchronous: bool = False
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
