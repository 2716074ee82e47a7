"""The largest amount of memory in use in each phase of a step, from the allocator's own record."""

import gc
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import pandas as pd
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from course_utils.errors import CourseError
from course_utils.memory.phases import observed_by
from course_utils.memory.storage import distinct_bytes

_MARK, _SECOND = "course phase: ", "second run"


@dataclass(frozen=True)
class Peaks:
    """Bytes: `resident` before the step begins, and the peak inside each phase. `witness` says who counted."""

    resident: int
    by_phase: dict[str, int]
    witness: str

    @property
    def peak(self) -> int:
        """The peak of the whole step."""
        return max(self.by_phase.values())

    @property
    def peak_phase(self) -> str:
        """The phase in which the peak was."""
        return max(self.by_phase, key=self.by_phase.get)

    def frame(self) -> pd.DataFrame:
        """A row per phase: peak in bytes, and above what was resident."""
        frame = pd.DataFrame({"peak": self.by_phase})
        return frame.assign(above_resident=frame["peak"] - self.resident)


def peak_by_phase(step: Callable[[], object], model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict) -> Peaks:
    """Peak memory of `step()` in each `memory.phase` it passes through, in a run that has already begun.

    `step` runs twice: once so that optimizer state is born, once measured; it really trains. Gradients left from before
    are dropped first. `batch` is the dict of tensors that `step` trains on; with `model` and `optimizer` it makes up what
    is there before; what else the process holds is not counted. On CUDA the caching allocator counts
    (`max_memory_allocated`), on the CPU the profiler's record of every allocation and release. Raises `CourseError` when
    `step` passes through no phase.
    """
    model.zero_grad(set_to_none=True)
    device = next(model.parameters()).device
    ours = distinct_bytes(t for t in _tensors_before(model, optimizer, batch) if t.device == device)
    peaks = _peaks_on_cuda(step, device, ours) if device.type == "cuda" else _peaks_on_cpu(step, ours)
    if not peaks.by_phase:
        raise CourseError("The step passed through no phase; wrap its parts in `with memory.phase(name):`.")
    return peaks


def _peaks_on_cuda(step: Callable, device: torch.device, ours: int) -> Peaks:
    others = torch.cuda.memory_allocated(device) - ours
    step()
    resident, by_phase = torch.cuda.memory_allocated(device), {}
    with observed_by(_cuda_observer(device, by_phase)):
        step()
    return Peaks(
        resident - others, {name: peak - others for name, peak in by_phase.items()}, "CUDA's caching allocator"
    )


def _cuda_observer(device: torch.device, by_phase: dict[str, int]) -> Callable:
    """The allocator has one high-water mark; phases that contain others carry theirs over each time it is reset."""
    open_peaks: list[int] = []

    def carry() -> None:
        if open_peaks:
            open_peaks[-1] = max(open_peaks[-1], torch.cuda.max_memory_allocated(device))
        torch.cuda.reset_peak_memory_stats(device)

    @contextmanager
    def count(name: str) -> Iterator[None]:
        carry()
        open_peaks.append(0)
        yield
        carry()
        peak = open_peaks.pop()
        by_phase[name] = max(by_phase.get(name, 0), peak)
        if open_peaks:
            open_peaks[-1] = max(open_peaks[-1], peak)

    return count


def _peaks_on_cpu(step: Callable, ours: int) -> Peaks:
    events = _trace_of_two(step)
    totals = _running_totals(ours, events)
    measured_from = next(start for start, _, name in _spans(events) if name == _SECOND)
    by_phase: dict[str, int] = {}
    for start, end, name in _spans(events):
        if start >= measured_from and name != _SECOND:
            by_phase[name] = max(by_phase.get(name, 0), _highest(totals, start, end))
    return Peaks(_total_at(totals, measured_from), by_phase, "the CPU allocator's events")


def _tensors_before(model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()
    yield from (value for value in batch.values() if isinstance(value, torch.Tensor))
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def _trace_of_two(step: Callable) -> list[dict]:
    """Both runs are traced, since a release is only seen when its allocation was; events of the profiler's public trace."""
    gc.collect()  # a cycle collected half-way would release memory whose allocation was not seen
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with _quiet():
        profiler.start()
    try:
        step()
        with _record(_SECOND), observed_by(_record):
            step()
    finally:
        with _quiet():
            profiler.stop()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what the profiler's library writes to the process's error stream when it starts and stops."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _running_totals(before: int, events: list[dict]) -> list[tuple[float, int]]:
    """(time, bytes in use from then on), in order of time."""
    on_cpu = (e for e in events if e.get("name") == "[memory]" and e["args"]["Device Type"] == 0)
    changes = sorted(((e["ts"], e["args"]["Bytes"]) for e in on_cpu), key=lambda change: change[0])
    totals = accumulate((size for _, size in changes), initial=before)
    return list(zip([float("-inf"), *(time for time, _ in changes)], totals, strict=True))


def _spans(events: list[dict]) -> list[tuple[float, float, str]]:
    marks = (e for e in events if e.get("ph") == "X" and e.get("name", "").startswith(_MARK))
    return sorted((e["ts"], e["ts"] + e["dur"], e["name"].removeprefix(_MARK)) for e in marks)


def _total_at(totals: list[tuple[float, int]], time: float) -> int:
    return [total for when, total in totals if when <= time][-1]


def _highest(totals: list[tuple[float, int]], start: float, end: float) -> int:
    return max([_total_at(totals, start), *(total for when, total in totals if start < when <= end)])


def _record(name: str) -> record_function:
    return record_function(_MARK + name)
