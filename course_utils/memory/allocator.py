"""The allocator's own account of a step: it knows nothing of kinds, and misses nothing."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from course_utils.errors import CourseError

_MARK, _MEASURED = "course phase: ", "course measured run"
_NO_OPERATORS = ("autograd::", "torch::autograd::", "Optimizer.")  # spans that the profiler names beside the operators


@dataclass(frozen=True)
class Account:
    """Bytes above what was in use when the measured run began: the peak, and the peak inside each phase.

    `at_start` is what was in use then of all that was allocated since the recording began.
    `operator` is the one at work at the peak, where the witness knows it.
    """

    above_start: int
    at_start: int
    by_phase: dict[str, int]
    witness: str
    operator: str = ""


class CudaAllocator:
    """Reads `torch.cuda.max_memory_allocated` as each phase ends; the allocator has one high-water mark, so it is reset."""

    witness = "CUDA's caching allocator"

    def __init__(self, device: torch.device):
        self.device, self._phase, self._peaks = device, None, {}

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Around the measured run."""
        torch.cuda.synchronize(self.device)
        self._start = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        yield
        self.begin_phase(None)

    def begin_phase(self, name: str | None) -> None:
        """A phase begins, and so the one before it ends; what comes before the first belongs to none."""
        peak = torch.cuda.max_memory_allocated(self.device) - self._start
        self._peaks[self._phase] = max(self._peaks.get(self._phase, 0), peak)
        torch.cuda.reset_peak_memory_stats(self.device)
        self._phase = name

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Around all runs; this allocator always keeps its books."""
        torch.cuda.synchronize(self.device)
        self._before = torch.cuda.memory_allocated(self.device)
        yield

    def account(self) -> Account:
        """The account, after the measured run."""
        by_phase = {phase: peak for phase, peak in self._peaks.items() if phase is not None}
        return Account(max(self._peaks.values()), self._start - self._before, by_phase, self.witness)


class CpuAllocator:
    """Reads the profiler's record of every allocation and release, from its public trace."""

    witness = "the CPU allocator's events"

    def __init__(self):
        self._span: record_function | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Around all runs: a release is only recorded when its allocation was."""
        if torch.autograd._profiler_enabled():  # a second one ends the first, and inside itself the process
            raise CourseError("Another profiler is running, or another measurement; end it before measuring.")
        profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        with quiet():
            profiler.start()
        try:
            with _without_its_remark():
                yield
        finally:
            self.begin_phase(None)
            with quiet():
                profiler.stop()
        self._events = _trace(profiler)

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Around the measured run."""
        with record_function(_MEASURED):
            yield
            self.begin_phase(None)

    def begin_phase(self, name: str | None) -> None:
        """A phase begins, and so the one before it ends."""
        if self._span is not None:
            self._span.__exit__(None, None, None)
        self._span = None if name is None else record_function(_MARK + name)
        if self._span is not None:
            self._span.__enter__()

    def account(self) -> Account:
        """The account, after the recording."""
        totals = _running_totals(self._events)
        ((start, end, _),) = _spans(self._events, _MEASURED)
        at_start, by_phase = _total_at(totals, start), {}
        for begin, finish, name in _spans(self._events, _MARK):
            if start <= begin <= end:
                by_phase[name] = max(by_phase.get(name, 0), _highest(totals, begin, finish) - at_start)
        highest = _highest(totals, start, end)
        when = next(when for when, total in totals if total == highest and (when >= start or total == at_start))
        return Account(highest - at_start, at_start, by_phase, self.witness, _operator_at(self._events, when))


def allocator_of(device: torch.device) -> CpuAllocator | CudaAllocator:
    """The witness for memory on `device`."""
    return CudaAllocator(device) if device.type == "cuda" else CpuAllocator()


def _trace(profiler: profile) -> list[dict]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


@contextmanager
def quiet() -> Iterator[None]:
    """Keep back what the profiler's library writes to the process's error stream when it starts and stops."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def _without_its_remark() -> Iterator[None]:
    """Keep back what the profiler says of every thousandth release of memory that is older than it; all else is passed on."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            said.seek(0)
            rest = b"".join(line for line in said if b"before the profiling started" not in line)
            if rest.strip():
                os.write(2, rest)


def _running_totals(events: list[dict]) -> list[tuple[float, int]]:
    """(time, bytes allocated since the recording began), in order of time."""
    on_cpu = (e for e in events if e.get("name") == "[memory]" and e["args"]["Device Type"] == 0)
    changes = sorted(((e["ts"], e["args"]["Bytes"]) for e in on_cpu), key=lambda change: change[0])
    totals = accumulate((size for _, size in changes), initial=0)
    return list(zip([float("-inf"), *(time for time, _ in changes)], totals, strict=True))


def _spans(events: list[dict], mark: str) -> list[tuple[float, float, str]]:
    marks = (e for e in events if e.get("ph") == "X" and e.get("name", "").startswith(mark))
    return sorted((e["ts"], e["ts"] + e["dur"], e["name"].removeprefix(mark)) for e in marks)


def _operator_at(events: list[dict], time: float) -> str:
    """The operator at work at `time`, the outermost: the one that Python or autograd called."""
    operators = (e for e in events if e.get("cat") == "cpu_op" and not e["name"].startswith(_NO_OPERATORS))
    at_work = (e for e in operators if e["ts"] <= time <= e["ts"] + e["dur"])
    return min(at_work, key=lambda event: event["ts"], default={"name": ""})["name"]


def _total_at(totals: list[tuple[float, int]], time: float) -> int:
    return [total for when, total in totals if when <= time][-1]


def _highest(totals: list[tuple[float, int]], start: float, end: float) -> int:
    return max([_total_at(totals, start), *(total for when, total in totals if start < when <= end)])
