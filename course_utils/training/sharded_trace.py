"""What each rank did in one step, from its profiler's trace: when it computed, and when which collective was under way."""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from course_utils.memory.allocator import quiet
from course_utils.training.profile import PHASES

_COLLECTIVES = {
    "allgather": "all-gather",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "allreduce": "all-reduce",
    "broadcast": "broadcast",
}
_CALLED, _UNDER_WAY = "c10d::", "gloo:"  # the call on the rank's own thread; the work on a thread of gloo's
_MICROSECOND = 1e-6


@dataclass(frozen=True)
class Activity:
    """`what` a rank did from `start` to `end`, in seconds of a clock that all ranks share.

    A phase ("forward", …) where `computes`, otherwise a collective.
    """

    what: str
    start: float
    end: float
    computes: bool

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


def trace_step(step: Callable[[], object]) -> list[Activity]:
    """Run `step`, whose phases are marked with `torch.profiler.record_function`, and read what it did on this rank."""
    profiler = profile(activities=[ProfilerActivity.CPU])
    with quiet():
        profiler.start()
    step()
    with quiet():
        profiler.stop()
    return read_activities(_exported(profiler))


def read_activities(trace: dict) -> list[Activity]:
    """Computation by phase, neighboring operators joined, and collectives, from a trace as the profiler exports it."""
    zero = trace.get("baseTimeNanoseconds", 0) / 1000
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    return sorted([*_computed(events, zero), *_collectives(events, zero)], key=lambda activity: activity.start)


def overlap(activities: Sequence[Activity]) -> float:
    """The share of the time of collectives in which the rank also computed."""
    sent = [a for a in activities if not a.computes]
    shared = sum(max(0.0, min(a.end, b.end) - max(a.start, b.start)) for a in sent for b in activities if b.computes)
    total = sum(a.seconds for a in sent)
    return min(1.0, shared / total) if total else 0.0


def _computed(events: Sequence[dict], zero: float) -> Iterator[Activity]:
    """Each phase's stretches of operators of torch; `wait` is none, so a gap is idle or Python."""
    marks = [event for event in events if event.get("cat") == "user_annotation" and event["name"] in PHASES]
    operators = sorted((e for e in events if e["name"].startswith("aten::")), key=lambda event: event["ts"])
    for mark in marks:
        inside = [e for e in operators if mark["ts"] <= e["ts"] < mark["ts"] + mark["dur"]]
        for start, end in _joined([(e["ts"], e["ts"] + e["dur"]) for e in inside], gap=150.0):
            yield Activity(mark["name"], (zero + start) * _MICROSECOND, (zero + end) * _MICROSECOND, True)


def _collectives(events: Sequence[dict], zero: float) -> Iterator[Activity]:
    """Gloo does them in the order of the calls, and may name one after another that it is made of."""
    calls = sorted((e for e in events if _kind(e)), key=lambda event: event["ts"])
    works = sorted((e for e in events if e["name"].startswith(_UNDER_WAY)), key=lambda event: event["ts"])
    for call, work in zip(calls, works, strict=False):
        start = (zero + work["ts"]) * _MICROSECOND
        yield Activity(_kind(call), start, start + work["dur"] * _MICROSECOND, False)


def _kind(event: dict) -> str | None:
    name = event["name"]
    if not name.startswith(_CALLED):
        return None
    return next((kind for part, kind in _COLLECTIVES.items() if part in name), None)


def _joined(stretches: Sequence[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    """Stretches in order of their starts, those joined that are less than `gap` apart."""
    joined: list[tuple[float, float]] = []
    for start, end in stretches:
        if joined and start <= joined[-1][1] + gap:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def _exported(profiler: profile) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_text(encoding="utf-8"))
