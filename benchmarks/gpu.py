"""Predicted and measured peaks, and seconds, of training steps on a GPU; `--write` puts the tables into docs/accuracy.md.

The truth is `torch.cuda.max_memory_allocated` within the second step, less what was in use before the model was built. The
workspace of cuBLAS is in use by then: it belongs to the process.
"""

import argparse
import gc
import multiprocessing
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks.document import write
from benchmarks.grids import FIRST, SECOND, Case
from benchmarks.third_grid import THIRD
from course_utils import hardware, models
from course_utils.errors import CourseError
from course_utils.memory import Recipe, Workload, dry_run, predict_seconds
from course_utils.units import MiB, format_bytes, format_seconds

_LONG = Recipe("adamw-fused", "bf16", 1, 8192, checkpointing=True, keeps_outputs=False)
_AUTOCAST = Recipe("adamw-foreach", "autocast", 8, 768)
_GPT2 = models.configuration("gpt2-medium")
_DISTILBERT = models.configuration("distilbert-base-cased", labels=2)
_WORST, _PROCESSES = 15, 4
LARGE = [
    Case("Qwen2.5-0.5B", "qwen2.5-0.5b", _LONG),
    Case("Qwen2.5-0.5B", "qwen2.5-0.5b", replace(_LONG, chunked_loss=1024)),
    Case("Qwen2.5-0.5B", "qwen2.5-0.5b", Recipe("adamw-foreach", "bf16", 4, 2048)),
    Case("GPT-2 medium", _GPT2, _AUTOCAST),
    Case("GPT-2 medium", _GPT2, replace(_AUTOCAST, checkpointing=True)),
    Case("GPT-2 medium", _GPT2, replace(_AUTOCAST, precision="fp32")),
    Case("GPT-2 medium", _GPT2, replace(_AUTOCAST, precision="bf16", optimizer="adamw8bit")),
    Case("DistilBERT-base", _DISTILBERT, replace(_AUTOCAST, batch=64, sequence=256)),
]
GRIDS = {"Large": LARGE, "First": FIRST, "Second": SECOND, "Third": THIRD}


@dataclass(frozen=True)
class Row:
    """Bytes at the peak of one case: CUDA's allocator's and a dry run's, or why there are none."""

    grid: str
    name: str
    allocator: int
    dry: int
    refusal: str = ""

    @property
    def error(self) -> float:
        """Share of the allocator's bytes by which the dry run is off; negative where it says too little."""
        return self.dry / self.allocator - 1


def on_gpu(case: Case) -> Case:
    """The same case as it is trained on a GPU."""
    return replace(case, recipe=replace(case.recipe, device="cuda"))


def workspace() -> int:
    """Bytes that cuBLAS keeps once it has multiplied in either precision, forward and backward."""
    before = torch.cuda.memory_allocated()
    for dtype in (torch.float32, torch.bfloat16):
        layer = torch.nn.Linear(64, 64, device="cuda", dtype=dtype)
        layer(torch.ones(64, 64, device="cuda", dtype=dtype)).sum().backward()
        (layer.weight @ layer.weight).sum().backward()
    del layer
    return torch.cuda.memory_allocated() - before


def run(grid: str, number: int) -> Row:
    """Measure and predict the case of that number in a grid."""
    name, case = GRIDS[grid][number].name, on_gpu(GRIDS[grid][number])
    workload = Workload(case.config, case.recipe, case.batch)
    try:
        return Row(grid, name, measured_peak(workload), dry_run(workload.build, workload.step, "cuda").peak)
    except (CourseError, RuntimeError) as refusal:  # RuntimeError: memory has run out
        return Row(grid, name, 1, 0, str(refusal))


def measured_peak(workload: Workload) -> int:
    """Bytes in use at the most within the second step, from before the model was built."""
    gc.collect()
    torch.cuda.empty_cache()
    workspace()
    before = torch.cuda.memory_allocated()
    with torch.device("cuda"):
        parts = workload.build()
        workload.step(*parts)
        torch.cuda.reset_peak_memory_stats()
        workload.step(*parts)
    return torch.cuda.max_memory_allocated() - before


def measured_seconds(workload: Workload, steps: int = 5) -> float:
    """Median over `steps` steps, after two that warm up."""
    seconds = []
    with torch.device("cuda"):
        parts = workload.build()
        for _ in range(steps + 2):
            torch.cuda.synchronize()
            start = time.perf_counter()
            workload.step(*parts)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:])


def bytes_tables(rows: Sequence[Row]) -> str:
    """Markdown: a summary of each grid, every row of the large one, and of the others those that are off most."""
    answered = [row for row in rows if not row.refusal]
    summary = ["| | rows | median error | largest |", "|---|---:|---:|---:|"]
    for grid in GRIDS:
        errors = [abs(row.error) for row in answered if row.grid == grid]
        if errors:
            summary.append(f"| {grid} grid | {len(errors)} | {statistics.median(errors):.2%} | {max(errors):.2%} |")
    ordered = sorted(answered, key=lambda row: (row.grid != "Large", -abs(row.error)))
    listed = ordered[: sum(row.grid == "Large" for row in ordered) + _WORST]
    lines = ["| grid | configuration | allocator | dry run |", "|---|---|---:|---:|"]
    lines += [f"| {row.grid} | {row.name} | {row.allocator / MiB:,.1f} MiB | {row.error:+.2%} |" for row in listed]
    refused = [f"- {row.name}: {row.refusal}" for row in rows if row.refusal]
    return "\n\n".join(["\n".join(summary), "\n".join(lines), *refused])


def seconds_table(cases: Sequence[Case]) -> str:
    """Markdown: seconds of a step, predicted from `calibrate()` and measured, in one run."""
    machine = hardware.calibrate(exchange=False)
    lines = ["| configuration | predicted | measured | error |\n|---|---:|---:|---:|"]
    for case in map(on_gpu, cases):
        workload = Workload(case.config, case.recipe, case.batch)
        predicted, measured = (
            predict_seconds(workload.build, workload.step, machine, device="cuda").seconds,
            measured_seconds(workload),
        )
        times = f"{format_seconds(predicted)} | {format_seconds(measured)}"
        lines.append(f"| {case.name} | {times} | {predicted / measured - 1:+.0%} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def main():
    """Seconds first, alone; then bytes, those of small models in several processes at once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.write and arguments.only:
        parser.error("--write replaces the tables of all cases; leave --only out")
    if not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU here")
    numbers = [
        (grid, number)
        for grid, some in GRIDS.items()
        for number, case in enumerate(some)
        if arguments.only in case.name
    ]
    large, small = ([pair for pair in numbers if (pair[0] == "Large") is is_large] for is_large in (True, False))
    parts = [f"{torch.cuda.get_device_name()}, torch {torch.__version__}; cuBLAS keeps {format_bytes(workspace())}."]
    parts.append(seconds_table([LARGE[number] for _, number in large]))
    rows = [run(grid, number) for grid, number in large]  # one at a time, for want of memory
    with multiprocessing.get_context("spawn").Pool(_PROCESSES) as pool:
        rows += pool.starmap(run, small, chunksize=1)
    parts.append(bytes_tables(rows))
    print("\n\n".join(parts))
    if arguments.write:
        write("gpu.py", "\n\n".join(parts))


if __name__ == "__main__":
    main()
