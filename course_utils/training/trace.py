"""A trace of `torch.profiler`, read: which operators took the time, and where none ran."""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

import pandas as pd

from course_utils.errors import CourseError
from course_utils.units import format_seconds

PHASES = ("forward", "backward", "update")
LOADING, ELSEWHERE = "data loader", "elsewhere"

# What the profiler writes: categories of its events, and the beginnings of two names.
_MARK, _OPERATOR = "user_annotation", "cpu_op"
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_STEP, _LOADER = "ProfilerStep#", "enumerate(DataLoader)"
_MICROSECOND = 1e-6
_SHORTEST_SHARE = 0.1


@dataclass(frozen=True)
class Span:
    """Something that took from `start` to `end`, in seconds since the first step of the trace began.

    `thread` tells apart what runs side by side; `launch` is the number that an operator shares with the kernels it starts.
    """

    name: str
    start: float
    end: float
    thread: object = None
    launch: int | None = None

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start

    @property
    def middle(self) -> float:
        """Where it lies: the clock's rounding lets neighbors overlap by a nanosecond, so that a start may mislead."""
        return (self.start + self.end) / 2

    def holds(self, moment: float) -> bool:
        """Whether it was going on at `moment`."""
        return self.start <= moment < self.end


@dataclass(frozen=True)
class Gap(Span):
    """A stretch in which the model computed nothing; `where` says what was going on meanwhile.

    That is `"data loader"`, a phase, or `"elsewhere"`: Python between the steps.
    """

    where: str = ELSEWHERE


@dataclass(frozen=True)
class Trace:
    """The spans of a trace by kind, each in order of their starts: steps, phases, calls of the data loader, operators, and
    what a GPU did (`device`, empty where there is none)."""

    steps: tuple[Span, ...]
    phases: tuple[Span, ...]
    loading: tuple[Span, ...]
    operators: tuple[Span, ...]
    device: tuple[Span, ...] = ()

    @property
    def end(self) -> float:
        """Seconds from the beginning of the first step to the end of the last."""
        return self.steps[-1].end

    @cached_property
    def computing(self) -> list[tuple[float, float]]:
        """(start, end) of the stretches in which the model computes; what the data loader computes is not the model's."""
        return _united(self.device or _outside(self.operators, self.loading))

    def gaps(self, shortest: float | None = None) -> tuple[Gap, ...]:
        """Every stretch of at least `shortest` seconds in which the model computes nothing.

        By default that is a tenth of what the median step computes.
        """
        if shortest is None:
            shortest = _SHORTEST_SHARE * median(self._computed(step) for step in self.steps)
        starts, ends = [start for start, _ in self.computing], [end for _, end in self.computing]
        between = zip([0.0, *ends], [*starts, self.end], strict=True)
        inside = ((max(a, 0.0), min(b, self.end)) for a, b in between)
        return tuple(Gap("gap", a, b, where=self._where(a, b)) for a, b in inside if b - a >= max(shortest, 1e-9))

    def operator_seconds(self) -> pd.DataFrame:
        """A row per operator, the slowest first: its calls, and its seconds in each phase and in all (`seconds`).

        Seconds of an operator are its own, without those of operators that it calls. Where a GPU worked they are those of
        the kernels that it started.
        """
        rows = [(name, self._at(moment), seconds) for name, moment, seconds in self._own_seconds()]
        frame = pd.DataFrame(rows, columns=["operator", "phase", "seconds"])
        table = frame.pivot_table(index="operator", columns="phase", values="seconds", aggfunc="sum", fill_value=0.0)
        table = table.reindex(columns=[LOADING, *PHASES, ELSEWHERE], fill_value=0.0)
        table.insert(0, "calls", frame.groupby("operator").size())
        table["seconds"] = frame.groupby("operator")["seconds"].sum()
        return table.rename_axis(columns=None).sort_values("seconds", ascending=False)

    def _own_seconds(self) -> Iterator[tuple[str, float, float]]:
        if not self.device:
            yield from own_seconds(self.operators)
            return
        launched_by = {span.launch: span for span in self.operators if span.launch is not None}
        for work in self.device:
            launcher = launched_by.get(work.launch, work)
            yield launcher.name, launcher.middle, work.seconds

    def _at(self, moment: float) -> str:
        """What goes on at `moment`: decided by time, since the backward pass may have a thread of its own."""
        if any(span.holds(moment) for span in self.loading):
            return LOADING
        return next((span.name for span in self.phases if span.holds(moment)), ELSEWHERE)

    def _where(self, start: float, end: float) -> str:
        """What fills the greater part of a gap."""
        named = [(LOADING, span) for span in self.loading] + [(span.name, span) for span in self.phases]
        shares = defaultdict(float)
        for name, span in named:
            shares[name] += max(0.0, min(end, span.end) - max(start, span.start))
        longest = max(shares, key=shares.get, default=ELSEWHERE)
        return longest if shares[longest] > (end - start) / 2 else ELSEWHERE

    def _computed(self, step: Span) -> float:
        return sum(max(0.0, min(step.end, b) - max(step.start, a)) for a, b in self.computing)


def read_trace(path: Path | str) -> Trace:
    """Read the file that `export_chrome_trace` wrote (`.json` or `.json.gz`); phases are marks named as `PHASES`.

    Raises `CourseError` where there is no such file, where it is not whole, and where it has no steps: `profiler.step()` was
    never called.
    """
    events = [event for event in _events(Path(path)) if event.get("ph") == "X"]
    begins = [event["ts"] for event in events if _is_step(event)]
    if not begins:
        raise CourseError(f"{Path(path).name} has no steps; call profiler.step() after each, under a schedule.")
    zero = min(begins)

    def spans(keep) -> tuple[Span, ...]:
        return tuple(sorted((_span(event, zero) for event in events if keep(event)), key=lambda span: span.start))

    phases = spans(lambda event: event.get("cat") == _MARK and event["name"] in PHASES)
    return Trace(
        steps=_begun(spans(_is_step), phases),
        phases=phases,
        loading=spans(lambda event: event.get("cat") == _MARK and event["name"].startswith(_LOADER)),
        operators=spans(lambda event: event.get("cat") == _OPERATOR),
        device=spans(lambda event: event.get("cat") in _DEVICE),
    )


def own_seconds(operators: Iterable[Span]) -> Iterator[tuple[str, float, float]]:
    """(name, middle, seconds without those of the operators it calls) of each; it calls those of its thread in its time."""
    open_, inner = defaultdict(list), defaultdict(float)
    ordered = sorted(operators, key=lambda span: (span.start, -span.end))
    for number, span in enumerate(ordered):
        callers = open_[span.thread]
        while callers and ordered[callers[-1]].end <= span.middle:
            callers.pop()
        if callers:
            inner[callers[-1]] += span.seconds
        callers.append(number)
    for number, span in enumerate(ordered):
        yield span.name, span.middle, max(0.0, span.seconds - inner[number])


def verdict(trace: Trace, gaps: Iterable[Gap]) -> str:
    """In one sentence, how long the model waited for its data loader."""
    stalls = [gap for gap in gaps if gap.where == LOADING]
    if not stalls:
        return f"The model never waited for its data loader in {len(trace.steps)} steps."
    waited, longest = sum(gap.seconds for gap in stalls), max(gap.seconds for gap in stalls)
    times = "once" if len(stalls) == 1 else f"{len(stalls)} times"
    return (
        f"The model waited for its data loader {times} in {len(trace.steps)} steps, up to {format_seconds(longest)}, "
        f"together {format_seconds(waited)}: {waited / trace.end:.0%} of the time."
    )


def _events(path: Path) -> list[dict]:
    if not path.is_file():
        raise CourseError(f"There is no trace at {path}; record one first, where there is room and you may write.")
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            return json.load(file)["traceEvents"]
    except (ValueError, EOFError, KeyError) as error:  # the profiler's library writes on a full disk without an error
        raise CourseError(
            f"{path.name} holds no whole trace; see that the disk has room, and record it again."
        ) from error


def _is_step(event: dict) -> bool:
    return event.get("cat") == _MARK and event["name"].startswith(_STEP)


def _begun(steps: tuple[Span, ...], phases: tuple[Span, ...]) -> tuple[Span, ...]:
    """Without the last mark of a run that ended early: it stands for a step that never came."""
    return tuple(step for step in steps if any(step.holds(phase.middle) for phase in phases)) or steps


def _span(event: dict, zero: float) -> Span:
    start, launch = (event["ts"] - zero) * _MICROSECOND, event.get("args", {}).get("External id")
    end = start + event["dur"] * _MICROSECOND
    return Span(event["name"], start, end, (event.get("pid"), event.get("tid")), launch)


def _outside(spans: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """Those of `spans` that lie in none of `others`."""
    return [span for span in spans if not any(other.holds(span.middle) for other in others)]


def _united(spans: Iterable[Span]) -> list[tuple[float, float]]:
    """The stretches in which at least one of `spans` runs, in order."""
    united: list[tuple[float, float]] = []
    for span in sorted(spans, key=lambda span: span.start):
        if united and span.start <= united[-1][1]:
            united[-1] = (united[-1][0], max(united[-1][1], span.end))
        else:
            united.append((span.start, span.end))
    return united
