"""A trace of `torch.profiler`, read: which operators took the time, and where none ran."""

import gzip
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from course_utils.errors import CourseError
from course_utils.units import format_seconds

PHASES = ("forward", "backward", "update")
LOADING, ELSEWHERE = "data loader", "elsewhere"


@dataclass(frozen=True)
class Trace:
    """What ran when: `spans` has a row for each, with its `kind`, `name`, `start`, `end`, `thread` and `launch`.

    Kinds are "step", "data loader", "phase", "operator" and "device" (what a GPU did). Times are seconds since the first step
    began. `launch` is the number that an operator shares with the kernels it starts.
    """

    spans: pd.DataFrame

    def of(self, kind: str) -> pd.DataFrame:
        """The spans of one kind, in order of their starts."""
        return self.spans[self.spans["kind"] == kind].sort_values(["start", "end"], ascending=[True, False])

    @property
    def end(self) -> float:
        """Seconds from the beginning of the first step to the end of the last."""
        return float(self.of("step")["end"].max())

    def computing(self) -> pd.DataFrame:
        """`start` and `end` of the stretches in which the model computes; the data loader's operators are not the model's."""
        spans = self.of("device")
        if spans.empty:
            operators = self.of("operator")
            spans = operators[self._running_at(_middles(operators)) != LOADING]
        begins_stretch = spans["start"] > spans["end"].cummax().shift()
        return spans.groupby(begins_stretch.cumsum()).agg(start=("start", "min"), end=("end", "max"))

    def gaps(self, shortest: float | None = None) -> pd.DataFrame:
        """`start`, `end`, `seconds` and `where` of each stretch of at least `shortest` seconds without computing.

        By default `shortest` is a tenth of what the median step computes. `where` is what went on for more than half of the
        stretch: "data loader", a phase, or "elsewhere", Python between the steps.
        """
        busy = self.computing()
        if shortest is None:
            computed = [_overlap(busy, step.start, step.end).sum() for step in self.of("step").itertuples()]
            shortest = 0.1 * np.median(computed)
        gaps = pd.DataFrame({"start": [0.0, *busy["end"]], "end": [*busy["start"], self.end]}).clip(0.0, self.end)
        gaps["seconds"] = gaps["end"] - gaps["start"]
        gaps = gaps[gaps["seconds"] >= max(shortest, 1e-9)].reset_index(drop=True)
        return gaps.assign(where=[self._running_most(gap.start, gap.end) for gap in gaps.itertuples()])

    def operator_seconds(self) -> pd.DataFrame:
        """A row per operator, the slowest first: its calls, and its seconds in each phase and in all (`seconds`).

        Seconds of an operator are its own, without those of operators that it calls. If a GPU worked they are those of the
        kernels that it started.
        """
        operators, device = self.of("operator"), self.of("device")
        if device.empty:
            rows = operators.assign(seconds=own_seconds(operators))
        else:
            launchers = operators.dropna(subset=["launch"]).drop_duplicates("launch", keep="last").set_index("launch")
            known = device["launch"].isin(launchers.index)
            rows = device.assign(seconds=device["end"] - device["start"])
            for column in ("name", "start", "end"):
                rows.loc[known, column] = launchers.loc[device["launch"][known], column].to_numpy()
        rows = rows.assign(phase=self._running_at(_middles(rows)))
        table = rows.pivot_table(index="name", columns="phase", values="seconds", aggfunc="sum", fill_value=0.0)
        table = table.reindex(columns=[LOADING, *PHASES, ELSEWHERE], fill_value=0.0)
        table.insert(0, "calls", rows.groupby("name").size())
        table["seconds"] = rows.groupby("name")["seconds"].sum()
        return table.rename_axis(index="operator", columns=None).sort_values("seconds", ascending=False)

    @cached_property
    def _marks(self) -> pd.DataFrame:
        return pd.concat([self.of(LOADING), self.of("phase")])

    def _running_at(self, moments: np.ndarray) -> np.ndarray:
        """What goes on at each moment: decided by time, since the backward pass may have a thread of its own."""
        marks = self._marks
        inside = (marks["start"].to_numpy() <= moments[:, None]) & (moments[:, None] < marks["end"].to_numpy())
        first = np.column_stack([inside, np.ones(len(moments), dtype=bool)]).argmax(axis=1)
        return np.array([*marks["name"], ELSEWHERE])[first]

    def _running_most(self, start: float, end: float) -> str:
        marks = self._marks
        shares = _overlap(marks, start, end).groupby(marks["name"]).sum()
        return shares.idxmax() if len(shares) and shares.max() > (end - start) / 2 else ELSEWHERE


def read_trace(path: Path | str) -> Trace:
    """Read the file that `export_chrome_trace` wrote (`.json` or `.json.gz`); phases are marks named as `PHASES`.

    Raises `CourseError` if there is no such file, if it is not whole, and if it has no steps: `profiler.step()` was never
    called.
    """
    path = Path(path)
    if not path.is_file():
        raise CourseError(f"There is no trace at {path}; record one first, where there is room and you may write.")
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    except (ValueError, EOFError, KeyError) as error:  # the profiler's library writes on a full disk without an error
        raise CourseError(
            f"{path.name} holds no whole trace; see that the disk has room, and record it again."
        ) from error
    rows = [_span(event) for event in events if event.get("ph") == "X"]
    spans = pd.DataFrame(rows, columns=["kind", "name", "start", "end", "thread", "launch"]).dropna(subset=["kind"])
    steps, phases = spans[spans["kind"] == "step"], _middles(spans[spans["kind"] == "phase"])
    if steps.empty:
        raise CourseError(f"{path.name} has no steps; call profiler.step() after each, under a schedule.")
    is_empty = [not ((step.start <= phases) & (phases < step.end)).any() for step in steps.itertuples()]
    if not all(is_empty):  # a run that ended early leaves a mark for a step that never came
        spans = spans.drop(steps.index[is_empty])
    spans[["start", "end"]] = (spans[["start", "end"]] - steps["start"].min()) / 1e6
    return Trace(spans)


def own_seconds(operators: pd.DataFrame) -> np.ndarray:
    """Seconds of each operator without those of the operators it calls: those of its thread in its time.

    `operators` are in order of their starts, the longer one first.
    """
    ends, middles = operators["end"].to_numpy(), _middles(operators)
    seconds = ends - operators["start"].to_numpy()
    own, callers = seconds.copy(), {}
    for number, thread in enumerate(operators["thread"]):
        stack = callers.setdefault(thread, [])
        while stack and ends[stack[-1]] <= middles[number]:
            stack.pop()
        if stack:
            own[stack[-1]] -= seconds[number]
        stack.append(number)
    return own.clip(min=0.0)


def verdict(trace: Trace, gaps: pd.DataFrame) -> str:
    """In one sentence, how long the model waited for its data loader."""
    steps, waits = len(trace.of("step")), gaps.loc[gaps["where"] == LOADING, "seconds"]
    if waits.empty:
        return f"The model never waited for its data loader in {steps} steps."
    times = "once" if len(waits) == 1 else f"{len(waits)} times"
    return (
        f"The model waited for its data loader {times} in {steps} steps, up to {format_seconds(waits.max())}, "
        f"together {format_seconds(waits.sum())}: {waits.sum() / trace.end:.0%} of the time."
    )


def _span(event: dict) -> tuple:
    """Kind (None if it is of no use), name, start, end, thread and launch of an event as the profiler writes it."""
    name, category = event["name"], event.get("cat")
    kind = {"cpu_op": "operator", "kernel": "device", "gpu_memcpy": "device", "gpu_memset": "device"}.get(category)
    if category == "user_annotation":
        if name.startswith("ProfilerStep#"):
            kind = "step"
        elif name.startswith("enumerate(DataLoader)"):
            kind = name = LOADING
        elif name in PHASES:
            kind = "phase"
    thread = f"{event.get('pid')} {event.get('tid')}"
    return kind, name, event["ts"], event["ts"] + event["dur"], thread, event.get("args", {}).get("External id")


def _middles(spans: pd.DataFrame) -> np.ndarray:
    """Where each lies: the clock's rounding lets neighbors overlap by a nanosecond, so that a start may mislead."""
    return ((spans["start"] + spans["end"]) / 2).to_numpy()


def _overlap(spans: pd.DataFrame, start: float, end: float) -> pd.Series:
    """How much of each lies between `start` and `end`."""
    return (spans["end"].clip(upper=end) - spans["start"].clip(lower=start)).clip(lower=0.0)
