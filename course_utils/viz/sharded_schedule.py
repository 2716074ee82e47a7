"""A step of sharded training on paper: what computes, what is sent, what memory is taken, for equal units and a steady wire."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

COMPUTE, WIRE = "compute", "wire"
STATE = 2.0  # AdamW's two averages, in sizes of the parameters
_BACKWARD = 2.0  # times as long as forward
_AT_ONCE = 1e-6


@dataclass(frozen=True)
class Job:
    """Work of `rank`, 0 for the first and 1 for the last, in one lane: `what` ("forward", "all-gather", …) of which `unit`.

    It takes from `start` to `end`, in forward passes of the whole model.
    """

    rank: int
    lane: str
    what: str
    unit: int
    start: float
    end: float


@dataclass
class Schedule:
    """The jobs of a step, and the memory of the first rank as (time, sizes of the parameters) where it changes.

    `paces` are how many times as long the ranks compute; times that differ by rank come as an array of their length.
    """

    paces: np.ndarray
    jobs: list[Job] = field(default_factory=list)
    changes: list[tuple[float, float]] = field(default_factory=list)

    @property
    def end(self) -> float:
        """When the step is over."""
        return max(job.end for job in self.jobs)

    @property
    def curve(self) -> tuple[list[float], list[float]]:
        """Times and the memory from each of them on."""
        totals, total, last = {}, 0.0, -1.0
        for time, change in sorted(self.changes):
            total += change
            last = time if time - last > _AT_ONCE else last
            totals[last] = total  # what ends when something else begins has made room for it
        return list(totals), list(totals.values())

    @property
    def peak(self) -> float:
        """The most memory, in sizes of the parameters."""
        return max(self.curve[1])

    @property
    def waiting(self) -> float:
        """The share of the step in which the first rank computes nothing."""
        return 1 - sum(job.end - job.start for job in self.jobs if (job.rank, job.lane) == (0, COMPUTE)) / self.end

    def free(self, lane: str) -> np.ndarray:
        """When each rank's lane has no more work."""
        ends = [[job.end for job in self.jobs if (job.rank, job.lane) == (rank, lane)] for rank in self._ranks]
        return np.array([max(times, default=0.0) for times in ends])

    def compute(self, what: str, unit: int, ready: np.ndarray, seconds: float) -> tuple[np.ndarray, np.ndarray]:
        """Each rank begins when it is ready and its lane is free; returns when each began and when each is done."""
        start = np.maximum(ready, self.free(COMPUTE))
        return start, self._add(COMPUTE, what, unit, start, start + seconds * self.paces)

    def send(self, what: str, unit: int, ready: np.ndarray, seconds: float) -> tuple[np.ndarray, np.ndarray]:
        """As `compute`; a collective begins when the last rank is ready for it."""
        start = np.full(len(self.paces), max(ready.max(), self.free(WIRE).max()))
        return start, self._add(WIRE, what, unit, start, start + seconds)

    @property
    def _ranks(self) -> range:
        return range(len(self.paces))

    def _add(self, lane: str, what: str, unit: int, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        self.jobs += [Job(rank, lane, what, unit, float(start[rank]), float(end[rank])) for rank in self._ranks]
        return end

    def hold(self, start: np.ndarray, size: float, end: np.ndarray | None = None) -> None:
        """Memory of `size` from `start` to `end`, or to the end of the step and beyond."""
        self.changes.append((float(start[0]), size))
        if end is not None:
            self.changes.append((float(end[0]), -size))


def sharded_schedule(
    stage: int, ranks: int, units: int, wire: float = 1.0, latency: float = 0.01, prefetch: bool = True,
    activations: float = 0.5, slowest: float = 1.0,
) -> Schedule:  # fmt: skip
    """The step of `units` equal units under ZeRO `stage` 0 to 3 on `ranks`; times in forward passes, memory in parameters.

    `wire` is what sending the parameters to another rank takes, `latency` what each collective takes on top.
    With `prefetch` the gather of the next unit begins with the computation of this one, without it only after it.
    `activations` are those of the whole model. Stage 2 gathers before forward, as FSDP that does not reshard after it.
    The first and the last rank are followed; the last computes `slowest` times as long as all others.
    """
    around = wire * (ranks - 1) / ranks / units + latency * (ranks > 1)
    paces = np.array([1.0, slowest][:ranks])
    plan = _Plan(Schedule(paces), stage, ranks, units, around, prefetch, activations)
    plan.schedule.hold(np.zeros(len(paces)), (1 / ranks if stage >= 2 else 1) + (STATE / ranks if stage else STATE))
    plan.forward()
    plan.backward()
    plan.update()
    return plan.schedule


@dataclass
class _Plan:
    schedule: Schedule
    stage: int
    ranks: int
    units: int
    around: float
    prefetch: bool
    activations: float
    gathered_at: dict[int, np.ndarray] = field(default_factory=dict)

    @property
    def _gathers(self) -> bool:
        return self.stage >= 2 and self.ranks > 1

    def forward(self) -> None:
        for unit, start, end in self._pass(range(self.units), "forward", 1 / self.units, gather=self._gathers):
            self.schedule.hold(start, self.activations / self.units, None)
            if self.stage == 3:
                self._free(unit, end)

    def backward(self) -> None:
        order = range(self.units - 1, -1, -1)
        for unit, start, end in self._pass(
            order, "backward", _BACKWARD / self.units, gather=self.stage == 3 and self._gathers
        ):
            self.schedule.hold(end, -self.activations / self.units)
            self._reduce(unit, start, end)

    def update(self) -> None:
        ready = np.maximum(self.schedule.free(COMPUTE), self.schedule.free(WIRE))
        _, end = self.schedule.compute("update", 0, ready, 0.1 / (self.ranks if self.stage else 1))
        if self.stage == 1 and self.ranks > 1:
            self.schedule.send("all-gather", 0, end, self.around * self.units)

    def _pass(
        self, order: Iterable[int], what: str, seconds: float, gather: bool
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """(unit, start, end) of each unit's computation, with the gathers before them where they are wanted."""
        order, now = list(order), self.schedule.free(COMPUTE)
        ready = self._gather(order[0], now) if gather else now
        for unit, following in zip(order, [*order[1:], None], strict=True):
            start, end = self.schedule.compute(what, unit, ready, seconds)
            ready = end
            # Before the reduction that the caller adds: what is asked for first is sent first.
            if gather and self.prefetch and following is not None:
                ready = self._gather(following, start)
            yield unit, start, end
            if gather and not self.prefetch and following is not None:
                ready = self._gather(following, end)

    def _gather(self, unit: int, ready: np.ndarray) -> np.ndarray:
        self.gathered_at[unit], end = self.schedule.send("all-gather", unit, ready, self.around)
        return end

    def _free(self, unit: int, time: np.ndarray) -> None:
        if unit in self.gathered_at:
            self.schedule.hold(self.gathered_at.pop(unit), 1 / self.units, time)

    def _reduce(self, unit: int, start: np.ndarray, end: np.ndarray) -> None:
        """The whole gradient of a unit is there from its backward on; what is kept of it stays."""
        self._free(unit, end)
        done = end
        if self.ranks > 1:
            what, times = ("reduce-scatter", 1) if self.stage >= 2 else ("all-reduce", 2)
            _, done = self.schedule.send(what, unit, end, times * self.around)
        self.schedule.hold(start, 1 / self.units, done)
        self.schedule.hold(done, 1 / self.units / (self.ranks if self.stage >= 2 else 1))
