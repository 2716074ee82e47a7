"""Predicted seconds a step beside measured ones, on the two grids, the worst first; nothing is fitted beyond `calibrate()`."""

import argparse
import statistics
import time

import pandas as pd

from benchmarks.grids import FIRST, SECOND, Case
from course_utils import hardware
from course_utils.memory.seconds import Prediction, predict_seconds
from course_utils.memory.workload import Workload
from course_utils.units import format_seconds


def measured_seconds(case: Case, steps: int) -> float:
    """Median over `steps` steps after two that warm up: the second one is the first with the optimizer's state there."""
    workload = Workload(case.config, case.recipe)
    built = workload.build()
    seconds = []
    for _ in range(steps + 2):
        start = time.perf_counter()
        workload.step(*built)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:])


def predicted(case: Case, machine: hardware.Machine) -> Prediction:
    workload = Workload(case.config, case.recipe)
    return predict_seconds(workload.build, workload.step, machine)


def row(case: Case, machine: hardware.Machine, steps: int) -> dict:
    prediction, measured = predicted(case, machine), measured_seconds(case, steps)
    return {
        "case": case.name,
        "predicted": prediction.seconds,
        "measured": measured,
        "error": prediction.seconds / measured - 1,
        "opaque": ", ".join(prediction.opaque),
    }


def table(rows: list[dict]) -> pd.DataFrame:
    """The rows, those whose prediction is furthest off first."""
    return pd.DataFrame(rows).sort_values("error", key=abs, ascending=False, ignore_index=True)


def report(frame: pd.DataFrame) -> None:
    """Print the table, and the median of the absolute errors with and without operators that cannot be looked into."""
    shown = frame.assign(
        predicted=frame["predicted"].map(format_seconds),
        measured=frame["measured"].map(format_seconds),
        error=frame["error"].map("{:+.1%}".format),
    )
    print(shown.to_string(index=False))
    transparent = frame.loc[frame["opaque"] == "", "error"].abs()
    print(f"Median error of all {len(frame)}: {frame['error'].abs().median():.1%}", end="; ")
    print(f"of the {len(transparent)} without opaque operators: {transparent.median():.1%}")


def chosen(grid: str, pattern: str) -> list[Case]:
    cases = {"first": FIRST, "second": SECOND, "both": FIRST + SECOND}[grid]
    return [case for case in cases if pattern.lower() in case.name.lower()]


def main():
    """Calibrate, predict, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grid", choices=("first", "second", "both"), default="both")
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    cases = chosen(options.grid, options.only)
    if not cases:
        parser.error(f"no case of the grid has {options.only!r} in its name")
    start = time.perf_counter()
    machine = hardware.calibrate(exchange=False)
    print(f"Calibrated in {format_seconds(time.perf_counter() - start)}: {machine.name}, {machine.source}")
    report(table([row(case, machine, options.steps) for case in cases]))


if __name__ == "__main__":
    main()
