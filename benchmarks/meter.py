"""What watching costs: steps bare, under the meter, and under torch's MemTracker; a dry run of a 7B model.

Beside them stands a dispatch mode that does nothing: what any such instrument costs before it has done a thing.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.side_by_side import compare, report
from benchmarks.third_grid import THIRD
from course_utils import models
from course_utils.memory import Meter, Recipe, Workload, dry_run
from course_utils.memory.trace.fake import fake_tensors
from course_utils.units import format_bytes, format_seconds


class PassThroughMode(TorchDispatchMode):
    """Sees every operator, and lets it be."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as the meter has it

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def cases() -> dict[str, tuple[Workload, int]]:
    """Steps by name, and how many of each make one turn; the second consists of small operators."""
    distilbert = Workload(models.configuration("distilbert-base-cased", labels=2), Recipe(batch=8, sequence=128))
    token_by_token = next(case for case in THIRD if case.model == "Mamba")
    return {
        "DistilBERT-base, batch 8 of 128 tokens": (distilbert, 1),
        "Mamba, 2 layers, token by token": (Workload(token_by_token.config, token_by_token.recipe), 10),
    }


def instruments_of(workload: Workload, steps: int) -> dict[str, Callable[[], object]]:
    """So many steps under each instrument, all on the same model."""
    model, optimizer, batches = workload.build()
    workload.step(model, optimizer, batches)  # the optimizer's state is created

    def bare():
        for _ in range(steps):
            workload.step(model, optimizer, batches)

    def metered():
        for _ in range(steps):
            with Meter(model, optimizer) as meter:
                workload.step(model, optimizer, batches)
        return meter.usage().peak

    def dispatched():
        for _ in range(steps):
            with PassThroughMode():
                workload.step(model, optimizer, batches)

    def tracked():
        return [tracked_peak(workload, model, optimizer, batches) for _ in range(steps)][-1]

    instruments = {"bare": bare, "Meter": metered, "a mode that does nothing": dispatched}
    return {**instruments, "MemTracker": tracked, "bare again": bare}


def tracked_peak(workload: Workload, model, optimizer, batches) -> int:
    """The peak in bytes by torch's own tracker, which is private."""
    tracker = MemTracker()
    tracker.track_external(model, optimizer, *(tensor for batch in batches for tensor in batch.values()))
    with tracker:
        workload.step(model, optimizer, batches)
    return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


def dry(instrument: str) -> None:
    """Two steps of Llama 7B under fake tensors; prints seconds, the rise of this process's memory, and the peak."""
    workload = Workload(models.configuration("llama-7b"), Recipe("adamw", "bf16", batch=1, sequence=2048))
    before, start = _highest_so_far(), time.perf_counter()
    if instrument == "Meter":
        peak = dry_run(workload.build, workload.step).peak
    else:
        with fake_tensors():
            parts = workload.build()
            workload.step(*parts)
            peak = tracked_peak(workload, *parts)
    seconds, rise = time.perf_counter() - start, _highest_so_far() - before
    print(f"{instrument:12s} {format_seconds(seconds):>10s}   {format_bytes(rise):>10s}   {format_bytes(peak)}")


def _highest_so_far() -> int:
    """Bytes, by Linux' own record; `getrusage` would give the parent's where that is larger."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def main():
    """Run the comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dry", choices=["Meter", "MemTracker"], help="only the dry run, under this instrument")
    arguments = parser.parse_args()
    if arguments.dry:
        dry(arguments.dry)
    else:
        _compare_all(arguments.rounds)


def _compare_all(rounds: int) -> None:
    for name, (workload, steps) in cases().items():
        instruments = instruments_of(workload, steps)
        print(
            f"\n{name}; peak: meter {instruments['Meter']():,} bytes, MemTracker {instruments['MemTracker']():,} bytes",
            flush=True,
        )
        report(compare(instruments, rounds), unit=steps)
    print("\nLlama 7B, bf16, AdamW, two steps dry: time, rise of process memory, peak", flush=True)
    for instrument in ("Meter", "MemTracker"):  # each in a process of its own, so that neither finds the other's memory
        subprocess.run([sys.executable, "-m", "benchmarks.meter", "--dry", instrument], check=True, timeout=600)


if __name__ == "__main__":
    main()
