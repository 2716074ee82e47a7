"""Predicted seconds a step beside measured ones, on the first two grids; nothing is fitted beyond `calibrate()`.

Three repeats: each goes through all rows, and calibrates the machine anew before every dozen of them, since a processor
that grows warm grows slow. A row's error is the median of the three. Where the repeats themselves differ by a tenth or more,
the row stands in a table of its own, since no prediction can be nearer than the machine is to itself.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from benchmarks.document import write
from benchmarks.grids import FIRST, SECOND, Case
from course_utils import hardware
from course_utils.hardware import Operator, Prediction
from course_utils.memory.step.workload import Workload
from course_utils.memory.trace.dry_run import count_operators
from course_utils.units import format_seconds

_ENOUGH = 1.5  # seconds of measuring one case
_WARM = 5.0
_DOZEN = 12
_STEADY = 0.10
_STEPS, _REPEATS = 3, 3


@dataclass
class Row:
    """One case: its operators, and the predicted and the measured seconds of each repeat."""

    case: Case
    operators: tuple[Operator, ...]
    predicted: list[float] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)

    @property
    def error(self) -> float:
        """The median of the repeats: how much longer a step was said to take than it took, as a share."""
        return statistics.median(p / m - 1 for p, m in zip(self.predicted, self.measured, strict=True))

    @property
    def spread(self) -> float:
        """The share by which the slowest repeat is slower than the fastest."""
        return max(self.measured) / min(self.measured) - 1

    @property
    def opaque(self) -> str:
        """Operators that cannot be looked into."""
        return ", ".join(Prediction(hardware.machine("T4"), self.operators).opaque)


def measured_seconds(case: Case) -> float:
    """Median over three steps, fewer where they are slow, after two that warm up (the first creates the optimizer's state)."""
    workload = Workload(case.config, case.recipe)
    parts = workload.build()
    seconds = [_seconds(workload, parts) for _ in range(2)]
    while len(seconds) < _STEPS + 2 and (len(seconds) < 3 or sum(seconds[2:]) < _ENOUGH):
        seconds.append(_seconds(workload, parts))
    return statistics.median(seconds[2:])


def _seconds(workload: Workload, parts: tuple) -> float:
    start = time.perf_counter()
    workload.step(*parts)
    return time.perf_counter() - start


def counted(case: Case) -> Row:
    workload = Workload(case.config, case.recipe)
    return Row(case, count_operators(workload.build, workload.step))


def warm_up() -> None:
    """Keep the processor busy until it has the clock that it can keep."""
    factor, begin = torch.ones(1000, 1000), time.perf_counter()
    while time.perf_counter() - begin < _WARM:
        torch.mm(factor, factor)


def repeat(rows: list[Row]) -> Iterator[Row]:
    """Predict and measure each row once more."""
    for first in range(0, len(rows), _DOZEN):
        warm_up()
        machine = hardware.calibrate(exchange=False, refresh=True)
        for row in rows[first : first + _DOZEN]:
            row.predicted.append(Prediction(machine, row.operators).seconds)
            row.measured.append(measured_seconds(row.case))
            yield row


def report(rows: list[Row]) -> str:
    """Markdown: the steady rows, the worst first, and the others."""
    steady = sorted((row for row in rows if row.spread < _STEADY), key=lambda row: -abs(row.error))
    others = sorted((row for row in rows if row.spread >= _STEADY), key=lambda row: -row.spread)
    errors = [abs(row.error) for row in steady]
    all_errors = statistics.median(abs(row.error) for row in rows)
    parts = [f"Median error of all {len(rows)} rows {all_errors:.1%}."]
    if steady:
        summary = f"Of the {len(steady)} whose repeats differ by less than {_STEADY:.0%}: median {statistics.median(errors):.1%}"
        parts.append(f"{summary}, largest {max(errors):.1%}.\n\n{_table(steady)}")
    if others:
        parts.append(f"The {len(others)} whose repeats differ by more, the least steady first:\n\n{_table(others)}")
    return "\n\n".join(parts)


def _table(rows: list[Row]) -> str:
    lines = [
        "| configuration | predicted | measured | error | repeats differ by | opaque operators |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        times = " | ".join(format_seconds(statistics.median(some)) for some in (row.predicted, row.measured))
        lines.append(f"| {row.case.name} | {times} | {row.error:+.1%} | {row.spread:.0%} | {row.opaque} |")
    return "\n".join(lines)


def main():
    """Count all, then repeat."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--write", action="store_true", help="put the table into docs/accuracy.md")
    options = parser.parse_args()
    if options.write and options.only:
        parser.error("--write replaces the table of all cases; leave --only out")
    cases = [case for case in FIRST + SECOND if options.only.lower() in case.name.lower()]
    if not cases:
        parser.error(f"no case of the grid has {options.only!r} in its name")
    rows = [counted(case) for case in cases]
    for number in range(_REPEATS):
        for row in repeat(rows):
            error = row.predicted[-1] / row.measured[-1] - 1
            print(f"{number + 1}: {error:+.1%} {row.case.name}", file=sys.stderr, flush=True)
    text = report(rows)
    print(text)
    if options.write:
        write("seconds.py", text)


if __name__ == "__main__":
    main()
