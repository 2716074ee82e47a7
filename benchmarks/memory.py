"""Predicted and measured peaks on the three grids, worst rows first; `--write` puts the tables into docs/accuracy.md.

The truth is the allocator's own events, recorded from before the model is built. The estimate is asked for two other sizes first,
so that its answer is formulas; where it is a dry run of just this step all the same, the row says so.
"""

import argparse
import gc
import json
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.document import write
from benchmarks.grids import FIRST, SECOND, Case
from benchmarks.third_grid import THIRD
from course_utils.errors import CourseError
from course_utils.memory import Estimate, Workload, dry_run, estimate, measure
from course_utils.memory.trace.allocator import quiet
from course_utils.memory.trace.log import Log
from course_utils.units import MiB

GRIDS = {"First": FIRST, "Second": SECOND, "Third": THIRD}
METHODS = {"measure": "measure", "meter": "Meter", "dry_run": "dry_run", "estimate": "estimate"}
OPAQUE, SCRATCH = "bitsandbytes' update", "oneDNN's scratch space"
_STEP = "the second step"


@dataclass(frozen=True)
class Row:
    """Bytes at the peak of one case: the allocator's, and what each method says; `refusals` where one refuses.

    `group` is the table it belongs to, `source` says how the estimate is known, `operator` was at work at the peak.
    """

    group: str
    grid: str
    name: str
    allocator: int
    peaks: dict[str, int]
    source: str
    operator: str
    refusals: dict[str, str] = field(default_factory=dict)

    def error(self, method: str) -> float:
        """Share of the allocator's bytes by which a method is off; negative where it says too little."""
        return self.peaks[method] / self.allocator - 1

    @property
    def worst(self) -> float:
        """The largest error of all methods that answer."""
        return max(abs(self.error(method)) for method in self.peaks)


def run(grid: str, case: Case) -> Row:
    """Measure and predict one case."""
    workload, refusals = Workload(case.config, case.recipe, case.batch), {}

    def attempt(method: str, ask: Callable):
        try:
            return ask()
        except CourseError as refusal:
            refusals[method] = str(refusal)
            return None

    torch.manual_seed(0)
    truth = peak_of_events(workload)
    torch.manual_seed(0)
    measured = measure(workload.build(), workload.step, timed=0)
    dry = attempt("dry_run", lambda: dry_run(workload.build, workload.step))
    formulas = attempt("estimate", lambda: from_other_sizes(case))
    peaks = {"measure": measured.peak, "meter": measured.usage.peak}
    peaks |= {name: answer.peak for name, answer in {"dry_run": dry, "estimate": formulas}.items() if answer}
    group = OPAQUE if case.recipe.optimizer == "adamw8bit" else SCRATCH if dry and hides(dry) else f"{grid} grid"
    source = known_from(formulas) if formulas else ""
    return Row(group, grid, case.name, truth, peaks, source, measured.operator, refusals)


def hides(usage) -> bool:
    """Whether oneDNN's scratch space is part of the peak."""
    log = Log.from_usage(usage)
    return log.plain.peak != log.peak


def peak_of_events(workload: Workload) -> int:
    """The largest sum of all allocations and releases since before the model was built, within the second step."""
    gc.collect()  # what the case before left in cycles would count as given back by this one
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with quiet():
        profiler.start()
    parts = workload.build()
    workload.step(*parts)
    with record_function(_STEP):
        workload.step(*parts)
    with quiet():
        profiler.stop()
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    (step,) = (event for event in events if event.name() == _STEP)
    changes = [event for event in events if event.name() == "[memory]"]
    totals = list(accumulate(event.nbytes() for event in changes))
    begin, end = step.start_ns(), step.start_ns() + step.duration_ns()
    before = [total for event, total in zip(changes, totals, strict=True) if event.start_ns() < begin]
    return max(before[-1], *(t for event, t in zip(changes, totals, strict=True) if begin <= event.start_ns() <= end))


def from_other_sizes(case: Case) -> Estimate:
    """The estimate, asked for a smaller and for a larger size first: in between, formulas answer without another dry run."""
    recipe, b, s = case.recipe, case.recipe.batch, case.recipe.sequence
    smaller = replace(recipe, batch=max(min(b, 2), b // 2), sequence=max(2, s // 2))
    larger = {"batch": 2 * b if b > 1 else 1, "sequence": s + s // 4}
    return estimate(case.config, smaller, batch=case.batch).with_fields(**larger).with_fields(batch=b, sequence=s)


def known_from(answer: Estimate) -> str:
    """Formulas, or a dry run and why."""
    if answer.basis.startswith("formulas"):
        return "formulas"
    if answer.finder.formulas_for(answer.recipe.batch, answer.recipe.sequence):
        return "dry run: scratch space at the peak"
    events = {len(log.plain.labels) for log in (trial.log for trial in answer.finder.trials.values())}
    return "dry run: more operators at larger sizes" if len(events) > 1 else "dry run: some sizes are no polynomials"


def tables(rows: list[Row]) -> str:
    """Markdown: a summary, then the rows of each group, worst first, and what was refused."""
    parts = [_summary(rows)]
    for title, group in _groups(rows).items():
        parts.append(f"### {title}\n\n" + _table(sorted(group, key=lambda row: -row.worst)))
    refused = [f"- {row.name}: {method} says: {sentence}" for row in rows for method, sentence in row.refusals.items()]
    return "\n\n".join([*parts, "### Refusals\n\n" + ("\n".join(refused) or "None.")])


def _groups(rows: Iterable[Row]) -> dict[str, list[Row]]:
    groups = {name: [] for name in (*(f"{grid} grid" for grid in GRIDS), OPAQUE, SCRATCH)}
    for row in rows:
        groups[row.group].append(row)
    return {name: group for name, group in groups.items() if group}


def _summary(rows: list[Row]) -> str:
    methods = " | ".join(f"{method}: median, largest" for method in METHODS.values())
    lines = [f"| | rows | {methods} |", "|---" * (2 + len(METHODS)) + "|"]
    for title, group in _groups(rows).items():
        cells = [_spread([abs(row.error(method)) for row in group if method in row.peaks]) for method in METHODS]
        lines.append(f"| {title} | {len(group)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(errors: list[float]) -> str:
    return f"{statistics.median(errors):.2%}, {max(errors):.2%}" if errors else "refused"


def _table(rows: list[Row]) -> str:
    head = " | ".join(METHODS.values())
    lines = [
        f"| configuration | allocator, MiB | {head} | its source | at the peak |",
        "|---|" + "---:|" * 5 + "---|---|",
    ]
    for row in rows:
        errors = " | ".join(f"{row.error(method):+.2%}" if method in row.peaks else "refused" for method in METHODS)
        lines.append(f"| {row.name} | {row.allocator / MiB:,.1f} | {errors} | {row.source} | {row.operator} |")
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
    rows = _read_rows(arguments.keep)
    finished = {(row.grid, row.name) for row in rows}
    for grid, cases in GRIDS.items():
        for case in cases:
            if (grid, case.name) not in finished and arguments.only in case.name:
                rows.append(run(grid, case))
                print(f"{rows[-1].worst:.2%} {case.name}: {rows[-1].source}", file=sys.stderr, flush=True)
                if arguments.keep:
                    arguments.keep.write_text(json.dumps([asdict(row) for row in rows]), encoding="utf-8")
    print(tables(rows))
    if arguments.write:
        write("memory.py", tables(rows))


def _read_rows(path: Path | None) -> list[Row]:
    return [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))] if path and path.exists() else []


if __name__ == "__main__":
    main()
