"""What the steps of a run spend their time on: a callback that records them, and figures that judge the whole."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import record_function

from course_utils.errors import CourseError
from course_utils.hardware import Machine
from course_utils.memory.phases import observed_by
from course_utils.settings import set_variable, settings, variables
from course_utils.training.callbacks import Callback
from course_utils.training.history import History
from course_utils.training.trace import Trace, read_trace


class Profile(Callback):
    """Record `steps` steps with `torch.profiler`, after `skip` that warm up; forward, backward and update are marked.

    The trace is written to `path` (a `.json` or `.json.gz`, by default among the course's own files), where
    https://ui.perfetto.dev or `chrome://tracing` open it; neither sends it anywhere.
    """

    def __init__(self, steps: int = 6, skip: int = 2, path: Path | str | None = None):
        if steps < 1 or skip < 1:
            raise ValueError(f"steps={steps} and skip={skip} must be at least 1: the first step warms up.")
        self.steps, self.skip = steps, skip
        self.path = Path(path or settings().home / "traces" / "trace.json")
        self._written = False

    def on_train_begin(self, run):
        """Begin to watch; nothing is recorded before `skip` steps have passed."""
        if not variables("KINETO_LOG_LEVEL"):
            set_variable(
                "KINETO_LOG_LEVEL", "99"
            )  # else the profiler's library writes lines of its own into the notebook
        self._written, self._open = False, ExitStack()
        plan = torch.profiler.schedule(wait=self.skip - 1, warmup=1, active=self.steps, repeat=1)
        self._profiler = self._open.enter_context(torch.profiler.profile(schedule=plan, on_trace_ready=self._write))
        self._open.enter_context(observed_by(record_function))

    def after_step(self, run):
        """The profiler's step is the loop's: it begins with the call for its batch."""
        self._profiler.step()

    def on_train_end(self, run):
        """Write what has been recorded so far, if it has not been written."""
        self._open.close()

    def trace(self) -> Trace:
        """What was recorded; raises `CourseError` where the run ended before that began."""
        if not self._written:
            raise CourseError(f"No step was recorded; train for more than {self.skip} steps, or skip fewer.")
        return read_trace(self.path)

    def _write(self, profiler: torch.profiler.profile) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(self.path))
        self._written = True


@dataclass(frozen=True)
class Throughput:
    """What a run got done each second, and which share of the machine's best rate of matrix products that is."""

    tokens_per_second: float
    flops_per_second: float
    utilization: float


def throughput(history: History, machine: Machine, dtype: str = "float32", skip: int = 1) -> Throughput:
    """Tokens and floating-point operations a second of a run without its first `skip` steps, on `machine`.

    Operations are those of matrix products in forward and backward, as `History.frame` has them. Raises `CourseError` where
    they were not counted, where no step is left, and where the machine has no rate for `dtype`.
    """
    counted = history.steps[skip:]
    if not counted or "flops" not in counted[0]:
        raise CourseError(f"There are no steps with counted operations after the first {skip}; run train() for longer.")
    if dtype not in machine.flops:
        raise CourseError(f"{machine.name} has no rate for {dtype}; choose one of {', '.join(machine.flops)}.")
    tokens_per_second = history.tokens_per_second(skip)
    flops_per_token = sum(row["flops"] for row in counted) / sum(row["tokens"] for row in counted)
    rate = flops_per_token * tokens_per_second
    return Throughput(tokens_per_second, rate, rate / machine.flops[dtype])
