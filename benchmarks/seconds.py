"""Predicted seconds a step beside measured ones, on the two grids, the worst first; nothing is fitted beyond `calibrate()`."""

import argparse
import statistics
import sys
import time

import pandas as pd

from benchmarks.document import write
from benchmarks.grids import FIRST, SECOND, Case
from course_utils import hardware
from course_utils.memory.seconds import Prediction, predict_seconds
from course_utils.memory.workload import Workload
from course_utils.units import format_seconds

_ENOUGH = 5.0  # seconds of measuring one case


def measured_seconds(case: Case, steps: int) -> float:
    """Median over `steps` steps, fewer where they are slow, after two that warm up (the first bears the optimizer's state)."""
    workload = Workload(case.config, case.recipe)
    built = workload.build()
    seconds = [_seconds(workload, built) for _ in range(2)]
    while len(seconds) < steps + 2 and (len(seconds) < 3 or sum(seconds[2:]) < _ENOUGH):
        seconds.append(_seconds(workload, built))
    return statistics.median(seconds[2:])


def _seconds(workload: Workload, built: tuple) -> float:
    start = time.perf_counter()
    workload.step(*built)
    return time.perf_counter() - start


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


def report(frame: pd.DataFrame) -> str:
    """Markdown: the median of the absolute errors with and without operators that cannot be looked into, and the rows."""
    transparent = frame.loc[frame["opaque"] == "", "error"].abs()
    lines = [
        f"Median error of all {len(frame)} rows {frame['error'].abs().median():.1%}; "
        f"of the {len(transparent)} without opaque operators {transparent.median():.1%}.",
        "",
        "| configuration | predicted | measured | error | opaque operators |",
        "|---|---:|---:|---:|---|",
    ]
    for _, row in frame.iterrows():
        times = f"{format_seconds(row['predicted'])} | {format_seconds(row['measured'])}"
        lines.append(f"| {row['case']} | {times} | {row['error']:+.1%} | {row['opaque']} |")
    return "\n".join(lines)


def drift(before: hardware.Machine, after: hardware.Machine) -> float:
    """Median of the rates of the second calibration, as a multiple of the first's."""
    rates = ((before.measured[name].points, curve.points) for name, curve in after.measured.items())
    return statistics.median(b / a for first, second in rates for (_, a), (_, b) in zip(first, second, strict=True))


def chosen(grid: str, pattern: str) -> list[Case]:
    cases = {"first": FIRST, "second": SECOND, "both": FIRST + SECOND}[grid]
    return [case for case in cases if pattern.lower() in case.name.lower()]


def main():
    """Calibrate, predict, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grid", choices=("first", "second", "both"), default="both")
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="put the table into docs/accuracy.md")
    options = parser.parse_args()
    if options.write and (options.only or options.grid != "both"):
        parser.error("--write replaces the table of all cases; leave --only and --grid out")
    cases = chosen(options.grid, options.only)
    if not cases:
        parser.error(f"no case of the grid has {options.only!r} in its name")
    start = time.perf_counter()
    machine = hardware.calibrate(exchange=False)
    print(f"Calibrated in {format_seconds(time.perf_counter() - start)}: {machine.name}, {machine.source}", flush=True)
    text = report(table([_shown(row(case, machine, options.steps)) for case in cases]))
    ratio = drift(machine, hardware.calibrate(exchange=False, again=True))
    text += f"\n\nCalibrated again afterwards, the machine's rates were {ratio:.2f} times what they had been."
    print(text)
    if options.write:
        write("seconds.py", text)


def _shown(result: dict) -> dict:
    print(f"{result['error']:+.1%} {result['case']}", file=sys.stderr, flush=True)
    return result


if __name__ == "__main__":
    main()
