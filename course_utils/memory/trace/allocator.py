"""The allocator's own account of a step, which includes every byte and says nothing about what the bytes are for."""

import os
import tempfile
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from course_utils.errors import CourseError

_PHASE_MARK, _RUN_MARK = "course phase: ", "course measured run"
_NO_OPERATORS = ("autograd::", "torch::autograd::")  # names that the profiler records beside those of operators
_USER_SCOPE = 7


@dataclass(frozen=True)
class Account:
    """Bytes that the allocator counted in the measured run."""

    above_start: int  # at the peak, in addition to what was in use when the run began
    at_start: int  # in use when the run began, of all that was allocated since the recording began
    by_phase: dict[str, int]  # at the peak inside each phase, in addition to what was in use when the run began
    witness: str  # which allocator counted, and how it was read
    operator: str = ""  # the one that ran at the peak, if the witness knows it
    # Bytes in use at the end, less `at_start`. Too many if a thread of gloo's released some, which the profiler does not see.
    left: int = 0


class _Span(NamedTuple):
    start: int  # in nanoseconds, as `end`
    end: int
    name: str
    scope: int


class CudaAllocator:
    """Reads `torch.cuda.max_memory_allocated` at the end of each phase and resets it, since CUDA keeps a single maximum."""

    witness = "CUDA's caching allocator"

    def __init__(self, device: torch.device):
        self.device = device
        self._phase: str | None = None
        self._peaks: dict[str | None, int] = {}

    @contextmanager
    def measured(self) -> Iterator[None]:
        """A context around the step whose peaks count."""
        torch.cuda.synchronize(self.device)
        self._start = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        yield
        self.begin_phase(None)

    def begin_phase(self, name: str | None) -> None:
        """End the current phase and begin that of this name; None begins a stretch that belongs to no phase."""
        peak = torch.cuda.max_memory_allocated(self.device) - self._start
        self._peaks[self._phase] = max(self._peaks.get(self._phase, 0), peak)
        torch.cuda.reset_peak_memory_stats(self.device)
        self._phase = name

    @contextmanager
    def recording(self) -> Iterator[None]:
        """A context around all runs. Nothing is switched on, since this allocator always counts."""
        torch.cuda.synchronize(self.device)
        self._before = torch.cuda.memory_allocated(self.device)
        yield

    def account(self) -> Account:
        """The account, after the measured run."""
        by_phase = {phase: peak for phase, peak in self._peaks.items() if phase is not None}
        return Account(max(self._peaks.values()), self._start - self._before, by_phase, self.witness)


class CpuAllocator:
    """Reads the profiler's record of every allocation and release."""

    witness = "the CPU allocator's events"

    def __init__(self):
        self._span = ExitStack()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """A context around all runs, since the profiler records only releases of memory whose allocation it has recorded.

        Raises `CourseError` inside another profiler.
        """
        # A second profiler ends the first, and one inside itself ends the process.
        if torch.autograd._profiler_enabled():
            raise CourseError("Another profiler is running, or another measurement; end it before measuring.")
        profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        with quiet():
            profiler.start()
        try:
            # The profiler warns at every thousandth release of memory that is older than the recording.
            with quiet(b"before the profiling started"):
                yield
        finally:
            self.begin_phase(None)
            with quiet():
                profiler.stop()
        self._changes, self._spans = [], []
        for event in profiler.profiler.kineto_results.events():
            start, name = event.start_ns(), event.name()
            if name != "[memory]":
                self._spans.append(_Span(start, start + event.duration_ns(), name, event.scope()))
            elif event.device_type() == DeviceType.CPU:
                self._changes.append((start, event.nbytes()))

    @contextmanager
    def measured(self) -> Iterator[None]:
        """A context around the step whose peaks count."""
        with record_function(_RUN_MARK):
            yield
            self.begin_phase(None)

    def begin_phase(self, name: str | None) -> None:
        """End the current phase and begin that of this name; None begins no other."""
        self._span.close()
        if name is not None:
            self._span.enter_context(record_function(_PHASE_MARK + name))

    def account(self) -> Account:
        """The account, after the recording."""
        self._changes.sort(key=lambda change: change[0])
        times = [when for when, _ in self._changes]
        totals = [0, *accumulate(size for _, size in self._changes)]

        def highest(start: int, end: int) -> tuple[int, int]:
            """The largest number of bytes in use from `start` to `end`, both included, and the time at which it was reached."""
            first, last = bisect_right(times, start), bisect_right(times, end)
            index = max(range(first, last + 1), key=totals.__getitem__)
            return totals[index], times[index - 1] if index > first else start

        ((start, end, _),) = self._find_marked(_RUN_MARK)
        at_start, _ = highest(start, start)
        peak, when = highest(start, end)
        by_phase: dict[str, int] = {}
        for begin, finish, name in self._find_marked(_PHASE_MARK):
            if start <= begin <= end:
                by_phase[name] = max(by_phase.get(name, 0), highest(begin, finish)[0] - at_start)
        left = highest(end, end)[0] - at_start
        return Account(peak - at_start, at_start, by_phase, self.witness, self._operator_at(when), left)

    def _find_marked(self, mark: str) -> list[tuple[int, int, str]]:
        spans = (span for span in self._spans if span.name.startswith(mark))
        return sorted((span.start, span.end, span.name.removeprefix(mark)) for span in spans)

    def _operator_at(self, time: int) -> str:
        """The outermost operator that ran at `time`, which Python or autograd called; empty if there was none."""
        running = [span for span in self._spans if span.start <= time <= span.end and span.scope != _USER_SCOPE]
        names = (span.name for span in sorted(running, key=lambda span: span.start))
        return next((name for name in names if not name.startswith(_NO_OPERATORS)), "")


def allocator_of(device: torch.device) -> CpuAllocator | CudaAllocator:
    """The allocator that counts memory on `device`."""
    return CudaAllocator(device) if device.type == "cuda" else CpuAllocator()


@contextmanager
def quiet(only: bytes = b"") -> Iterator[None]:
    """Suppress what is written to the process's error stream, by C++ too: all of it, or only lines that contain `only`."""
    stream = os.dup(2)
    with tempfile.TemporaryFile() as output:
        os.dup2(output.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stream, 2)
            output.seek(0)
            os.write(2, b"".join(line for line in output if only not in line))
            os.close(stream)
