"""What rank 0 works out before the ranks meet, stored in the run's folder for the processes that take the run up."""

from dataclasses import dataclass

import torch

from course_utils.files import read_json, write_json
from course_utils.hardware import calibrate
from course_utils.memory import estimate
from course_utils.memory.step.model import Source
from course_utils.script.job import BatchSplit


@dataclass(frozen=True)
class Expectation:
    """The predicted peak in bytes, and the operations that this machine can compute in a second; None where not asked for."""

    peak: int | None = None
    flops_per_second: float | None = None

    @classmethod
    def load_or_compute(cls, split: BatchSplit, source: Source, device: torch.device) -> "Expectation":
        """Read `expected.json` if it is of the same job; else estimate the peak, calibrate the machine (seconds) and write it."""
        job = split.job
        path = job.out / "expected.json"
        if job.quick:
            return cls()
        key = f"{split.recipe} of {source.key} in {job.precision} on {device.type}, {torch.get_num_threads()} threads"
        cache = read_json(path) or {}
        if cache.get("key") == key:
            return cls(cache["peak"], cache["flops"])
        peak = estimate(source, split.recipe).peak if split.is_predictable else None
        dtype = "bfloat16" if job.precision in ("bf16", "autocast", "fp16") else "float32"
        rate = None if job.precision == "fp64" else calibrate([dtype], exchange=False).flop_rates[dtype]
        write_json(path, {"key": key, "peak": peak, "flops": rate})
        return cls(peak, rate)
