"""A step of sharded training on paper: what computes, what is sent, what memory is taken, for equal units and a steady wire."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

COMPUTE, WIRE = "compute", "wire"
STATE = 2.0  # AdamW's two averages, in sizes of the parameters
_BACKWARD = 2.0  # times as long as forward


@dataclass(frozen=True)
class Job:
    """Work in one lane: `what` ("forward", "all-gather", …) of which `unit`, from `start` to `end`.

    Times are in forward passes of the whole model.
    """

    lane: str
    what: str
    unit: int
    start: float
    end: float


@dataclass
class Schedule:
    """The jobs of a step, and the memory of a rank as (time, sizes of the parameters) where it changes."""

    jobs: list[Job] = field(default_factory=list)
    changes: list[tuple[float, float]] = field(default_factory=list)

    @property
    def end(self) -> float:
        """When the step is over."""
        return max(job.end for job in self.jobs)

    @property
    def curve(self) -> tuple[list[float], list[float]]:
        """Times and the memory from each of them on."""
        totals, total = {}, 0.0
        for time, change in sorted((round(time, 9), change) for time, change in self.changes):
            total += change
            totals[time] = total  # what ends when something else begins has made room for it
        return list(totals), list(totals.values())

    @property
    def peak(self) -> float:
        """The most memory, in sizes of the parameters."""
        return max(self.curve[1])

    @property
    def waiting(self) -> float:
        """The share of the step in which nothing is computed."""
        return 1 - sum(job.end - job.start for job in self.jobs if job.lane == COMPUTE) / self.end

    def add(self, lane: str, what: str, unit: int, ready: float, seconds: float) -> float:
        """A job that begins when it is `ready` and its lane is free; returns when it ends."""
        start = max([ready, *(job.end for job in self.jobs if job.lane == lane)])
        self.jobs.append(Job(lane, what, unit, start, start + seconds))
        return start + seconds

    def hold(self, start: float, size: float, end: float | None = None) -> None:
        """Memory of `size` from `start` to `end`, or to the end of the step and beyond."""
        self.changes.append((start, size))
        if end is not None:
            self.changes.append((end, -size))


def sharded_schedule(
    stage: int, ranks: int, units: int, wire: float = 1.0, latency: float = 0.01, prefetch: bool = True,
    activations: float = 0.5,
) -> Schedule:  # fmt: skip
    """The step of `units` equal units under ZeRO `stage` 0 to 3 on `ranks`; times in forward passes, memory in parameters.

    `wire` is what sending the parameters to another rank takes, `latency` what each collective takes on top.
    With `prefetch` the gather of the next unit begins with the computation of this one, without it only after it.
    `activations` are those of the whole model. Stage 2 gathers before forward, as FSDP that does not reshard after it.
    """
    around = wire * (ranks - 1) / ranks / units + latency * (ranks > 1)
    plan = _Plan(Schedule(), stage, ranks, units, around, prefetch, activations)
    plan.schedule.hold(0.0, (1 / ranks if stage >= 2 else 1) + (STATE / ranks if stage else STATE))
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
    gathered_at: dict[int, float] = field(default_factory=dict)

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
        end = self.schedule.add(COMPUTE, "update", 0, self.schedule.end, 0.1 / (self.ranks if self.stage else 1))
        if self.stage == 1 and self.ranks > 1:
            self.schedule.add(WIRE, "all-gather", 0, end, self.around * self.units)

    def _pass(
        self, order: Iterable[int], what: str, seconds: float, gather: bool
    ) -> Iterator[tuple[int, float, float]]:
        """(unit, start, end) of each unit's computation, with the gathers before them where they are wanted."""
        order, now = list(order), self._computed()
        ready = self._gather(order[0], now) if gather else now
        for unit, following in zip(order, [*order[1:], None], strict=True):
            end = self.schedule.add(COMPUTE, what, unit, ready, seconds)
            start, ready = end - seconds, end
            # Before the reduction that the caller adds: what is asked for first is sent first.
            if gather and self.prefetch and following is not None:
                ready = self._gather(following, start)
            yield unit, start, end
            if gather and not self.prefetch and following is not None:
                ready = self._gather(following, end)

    def _computed(self) -> float:
        return max((job.end for job in self.schedule.jobs if job.lane == COMPUTE), default=0.0)

    def _gather(self, unit: int, ready: float) -> float:
        end = self.schedule.add(WIRE, "all-gather", unit, ready, self.around)
        self.gathered_at[unit] = end - self.around
        return end

    def _free(self, unit: int, time: float) -> None:
        if unit in self.gathered_at:
            self.schedule.hold(self.gathered_at.pop(unit), 1 / self.units, time)

    def _reduce(self, unit: int, start: float, end: float) -> None:
        """The whole gradient of a unit is there from its backward on; what is kept of it stays."""
        self._free(unit, end)
        done = end
        if self.ranks > 1:
            what, times = ("reduce-scatter", 1) if self.stage >= 2 else ("all-reduce", 2)
            done = self.schedule.add(WIRE, what, unit, end, times * self.around)
        self.schedule.hold(start, 1 / self.units, done)
        self.schedule.hold(done, 1 / self.units / (self.ranks if self.stage >= 2 else 1))
