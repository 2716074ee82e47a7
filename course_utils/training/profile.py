"""What the steps of a run spend their time on, by `torch.profiler`; and how much of the machine they use."""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from torch.autograd import DeviceType
from torch.profiler import record_function

from course_utils.errors import CourseError
from course_utils.hardware import Machine
from course_utils.memory.trace.phases import observe_phases
from course_utils.settings import set_variable, settings, variables
from course_utils.training.callbacks import Callback
from course_utils.training.history import History
from course_utils.units import format_seconds

if TYPE_CHECKING:
    from course_utils.training.loop import Run

PHASES = ("forward", "backward", "update")
LOADING, ELSEWHERE = "data loader", "elsewhere"


class Profile(Callback):
    """Record `steps` steps with `torch.profiler`, after `skip` that warm up; forward, backward and update are marked.

    The trace is also written to `path` (a `.json` or `.json.gz`, by default among the course's own files), where
    https://ui.perfetto.dev or `chrome://tracing` open it; neither sends it anywhere.
    """

    def __init__(self, steps: int = 6, skip: int = 2, path: Path | str | None = None):
        if steps < 1 or skip < 1:
            raise ValueError(f"steps={steps} and skip={skip} must be at least 1: the first step warms up.")
        self.steps, self.skip = steps, skip
        self.path = Path(path or settings().home / "traces" / "trace.json")
        self._trace: Trace | None = None

    def on_train_begin(self, run: "Run") -> None:
        if not variables("KINETO_LOG_LEVEL"):  # else the profiler's library writes lines of its own into the notebook
            set_variable("KINETO_LOG_LEVEL", "99")
        self._trace, self._open = None, ExitStack()
        plan = torch.profiler.schedule(wait=self.skip - 1, warmup=1, active=self.steps, repeat=1)
        self._profiler = self._open.enter_context(torch.profiler.profile(schedule=plan, on_trace_ready=self._store))
        self._open.enter_context(observe_phases(record_function))

    def after_batch(self, run: "Run") -> None:
        """The profiler's step is the loop's: it begins with the call for its batch."""
        self._profiler.step()

    def on_train_end(self, run: "Run") -> None:
        self._open.close()

    def _store(self, profiler: torch.profiler.profile) -> None:
        self._trace = Trace.from_events(profiler.events())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(self.path))

    def trace(self) -> "Trace":
        """What was recorded; raises `CourseError` where the run ended before that began."""
        if self._trace is None:
            raise CourseError(f"No step was recorded; train for more than {self.skip} steps, or skip fewer.")
        return self._trace


@dataclass(frozen=True)
class Trace:
    """What ran when: `spans` has a row for each, with its `kind`, `name`, `start`, `end` and its `own` seconds.

    Kinds are "step", "data loader", "phase", "operator" and "device" (what a GPU did). Times are seconds since the first step
    began. An operator's own seconds are without those of operators that it calls; if a GPU worked, they are those of the
    kernels that it started.
    """

    spans: pd.DataFrame

    @classmethod
    def from_events(cls, events: Iterable[torch.autograd.profiler_util.FunctionEvent]) -> "Trace":
        """The trace of the profiler's events, whose times are in microseconds; steps that the run did not reach are left out."""
        events = list(events)
        on_gpu = any(event.device_type != DeviceType.CPU for event in events)
        rows = []
        for event in events:
            kind, name = "operator", event.name
            if event.device_type != DeviceType.CPU:
                kind = None if event.is_user_annotation else "device"
            elif event.is_user_annotation:
                kind = {"ProfilerStep*": "step"}.get(name, "phase" if name in PHASES else None)
                if name.startswith("enumerate(DataLoader)"):
                    kind = name = LOADING
            self_time = event.self_device_time_total if on_gpu else event.self_cpu_time_total
            rows.append((kind, name, event.time_range.start, event.time_range.end, self_time))
        spans = pd.DataFrame(rows, columns=["kind", "name", "start", "end", "own"]).dropna(subset="kind")
        spans[["start", "end", "own"]] /= 1e6
        steps, phases = spans[spans["kind"] == "step"], spans[spans["kind"] == "phase"]
        is_empty = [not phases["start"].between(step.start, step.end).any() for step in steps.itertuples()]
        spans = spans.drop(steps.index[is_empty])
        spans[["start", "end"]] -= steps["start"].min()
        return cls(spans)

    def spans_of(self, kind: str) -> pd.DataFrame:
        """The spans of one kind, in order of their starts."""
        return self.spans[self.spans["kind"] == kind].sort_values("start")

    @property
    def end(self) -> float:
        """Seconds from the beginning of the first step to the end of the last."""
        return float(self.spans_of("step")["end"].max())

    def computing_spans(self) -> pd.DataFrame:
        """`start` and `end` of the stretches in which the model computes; the data loader's operators are not the model's."""
        spans = self.spans_of("device")
        if spans.empty:
            spans = self.spans_of("operator")
            spans = spans[self._running_in_the_middle(spans) != LOADING]
        begins_stretch = spans["start"] > spans["end"].cummax().shift()
        return spans.groupby(begins_stretch.cumsum()).agg(start=("start", "min"), end=("end", "max"))

    def gaps(self, shortest: float | None = None) -> pd.DataFrame:
        """`start`, `end`, `seconds` and `where` of each stretch of at least `shortest` seconds without computing.

        By default `shortest` is a tenth of what a step computes, in the mean. `where` is what goes on in the middle of the
        stretch: "data loader", a phase, or "elsewhere", Python between the steps.
        """
        busy = self.computing_spans()
        if shortest is None:
            shortest = 0.1 * (busy["end"] - busy["start"]).sum() / len(self.spans_of("step"))
        gaps = pd.DataFrame({"start": [0.0, *busy["end"]], "end": [*busy["start"], self.end]}).clip(0.0, self.end)
        gaps["seconds"] = gaps["end"] - gaps["start"]
        gaps = gaps[gaps["seconds"] >= max(shortest, 1e-9)].reset_index(drop=True)
        return gaps.assign(where=self._running_in_the_middle(gaps))

    def operator_seconds(self) -> pd.DataFrame:
        """A row per operator, the slowest first: its calls, and its own seconds in each phase and in all (`seconds`)."""
        operators = self.spans_of("operator")
        operators = operators.assign(phase=self._running_in_the_middle(operators))
        table = operators.pivot_table(index="name", columns="phase", values="own", aggfunc="sum", fill_value=0.0)
        table = table.reindex(columns=[LOADING, *PHASES, ELSEWHERE], fill_value=0.0)
        table.insert(0, "calls", operators.groupby("name").size())
        table["seconds"] = operators.groupby("name")["own"].sum()
        table = table[table["seconds"] > 0].rename_axis(index="operator", columns=None)
        return table.sort_values("seconds", ascending=False)

    def verdict(self) -> str:
        """A sentence on how long the model waited for its data loader."""
        steps, gaps = len(self.spans_of("step")), self.gaps()
        waits = gaps.loc[gaps["where"] == LOADING, "seconds"]
        if waits.empty:
            return f"The model never waited for its data loader in {steps} steps."
        times = "once" if len(waits) == 1 else f"{len(waits)} times"
        return (
            f"The model waited for its data loader {times} in {steps} steps, up to {format_seconds(waits.max())}, "
            f"together {format_seconds(waits.sum())}: {waits.sum() / self.end:.0%} of the time."
        )

    def _running_in_the_middle(self, spans: pd.DataFrame) -> np.ndarray:
        """What goes on at the middle of each span: decided by time, since the backward pass may have a thread of its own."""
        marks = pd.concat([self.spans_of(LOADING), self.spans_of("phase")])
        middles = ((spans["start"] + spans["end"]) / 2).to_numpy()[:, None]
        is_inside = (marks["start"].to_numpy() <= middles) & (middles < marks["end"].to_numpy())
        first = np.column_stack([is_inside, np.ones(len(spans), dtype=bool)]).argmax(axis=1)
        return np.array([*marks["name"], ELSEWHERE])[first]


@dataclass(frozen=True)
class Throughput:
    """Rates of a run, and their share of the machine's best rate of matrix products."""

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
    if dtype not in machine.flop_rates:
        raise CourseError(f"{machine.name} has no rate for {dtype}; choose one of {', '.join(machine.flop_rates)}.")
    tokens_per_second = history.tokens_per_second(skip)
    flops_per_token = sum(row["flops"] for row in counted) / sum(row["tokens"] for row in counted)
    rate = flops_per_token * tokens_per_second
    return Throughput(tokens_per_second, rate, rate / machine.flop_rates[dtype])
