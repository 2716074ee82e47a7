"""Predicted and measured peaks on both grids, worst rows first; `--write` puts the tables into docs/accuracy.md."""

import argparse
import json
import statistics
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.document import write
from benchmarks.grids import FIRST, SECOND, Case
from course_utils.memory import Workload, dry_run, estimate, measure
from course_utils.memory.optimizers import COSTS
from course_utils.units import MiB

WAYS = {"meter": "Meter", "dry_run": "dry_run", "estimate": "estimate"}


@dataclass(frozen=True)
class Row:
    """Bytes at the peak of one case: the allocator's, and what each way says. `operator` was at work at the peak."""

    grid: str
    name: str
    measured: int
    meter: int
    dry_run: int
    estimate: int
    operator: str
    opaque: bool

    def error(self, way: str) -> float:
        """Share of the measured bytes by which a way is off; negative where it says too little."""
        return getattr(self, way) / self.measured - 1

    @property
    def worst(self) -> float:
        """The largest error of the three."""
        return max(abs(self.error(way)) for way in WAYS)


def run(grid: str, case: Case) -> Row:
    """Measure and predict one case."""
    work = Workload(case.config, case.recipe)
    model, optimizer, batches = work.build()
    measured = measure(lambda: work.step(model, optimizer, batches), model, optimizer, timed=0)
    predicted, pencil = dry_run(work.build, work.step), estimate(case.config, case.recipe)
    return Row(
        grid,
        case.name,
        measured.peak,
        measured.usage.peak,
        predicted.peak,
        pencil.peak,
        measured.operator,
        is_opaque(case),
    )


def is_opaque(case: Case) -> bool:
    """Whether the update happens inside operators that no dispatch mode sees into: bitsandbytes' step."""
    return bool(COSTS[case.recipe.optimizer].opaque)


def tables(rows: list[Row]) -> str:
    """Markdown: a summary, then the rows of each grid and those of the opaque update, worst first."""
    parts = [_summary(rows)]
    for title, chosen in _groups(rows).items():
        parts.append(f"### {title}\n\n" + _table(sorted(chosen, key=lambda row: -row.worst)))
    return "\n\n".join(parts)


def _groups(rows: Iterable[Row]) -> dict[str, list[Row]]:
    groups = {"First grid": [], "Second grid": [], "Opaque update": []}
    for row in rows:
        groups["Opaque update" if row.opaque else f"{row.grid} grid"].append(row)
    return groups


def _summary(rows: list[Row]) -> str:
    lines = [
        "| | rows | " + " | ".join(f"{way}: median, largest" for way in WAYS.values()) + " |",
        "|---|---|---|---|---|",
    ]
    for title, chosen in _groups(rows).items():
        if chosen:
            errors = {way: [abs(row.error(way)) for row in chosen] for way in WAYS}
            cells = " | ".join(f"{statistics.median(e):.2%}, {max(e):.2%}" for e in errors.values())
            lines.append(f"| {title} | {len(chosen)} | {cells} |")
    return "\n".join(lines)


def _table(rows: list[Row]) -> str:
    lines = [
        "| configuration | measured, MiB | meter | dry run | estimate | at the peak |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        errors = " | ".join(f"{row.error(way):+.2%}" for way in WAYS)
        lines.append(f"| {row.name} | {row.measured / MiB:,.1f} | {errors} | {row.operator} |")
    return "\n".join(lines)


def main():
    """Run the cases; with `--keep FILE` finished rows are kept there, and an interrupted run goes on where it stood."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    arguments = parser.parse_args()
    if arguments.write and arguments.only:
        parser.error("--write replaces the tables of all cases; leave --only out")
    rows = _kept(arguments.keep)
    done = {(row.grid, row.name) for row in rows}
    for grid, cases in {"First": FIRST, "Second": SECOND}.items():
        for case in cases:
            if (grid, case.name) not in done and arguments.only in case.name:
                rows.append(run(grid, case))
                print(f"{rows[-1].worst:.2%} {case.name}", file=sys.stderr, flush=True)
                if arguments.keep:
                    arguments.keep.write_text(json.dumps([asdict(row) for row in rows]), encoding="utf-8")
    print(tables(rows))
    if arguments.write:
        write("memory.py", tables(rows))


def _kept(path: Path | None) -> list[Row]:
    return [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))] if path and path.exists() else []


if __name__ == "__main__":
    main()
