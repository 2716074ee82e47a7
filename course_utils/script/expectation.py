"""What rank 0 works out before the ranks meet, stored in the run's folder for the processes that take the run up."""

from dataclasses import dataclass

import torch

from course_utils.files import read_json, write_json
from course_utils.hardware import calibrate
from course_utils.memory import estimate
from course_utils.memory.step.model import Source
from course_utils.script.job import BatchSplit, Job


@dataclass
class Expectation:
    """The predicted peak in bytes, and what this machine can compute in a second; None where they are not asked for."""

    peak: int | None = None
    flops: float | None = None

    @classmethod
    def of(cls, job: Job, split: BatchSplit, source: Source, device: torch.device) -> "Expectation":
        path = job.out / "expected.json"
        if job.quick:
            return cls()
        key = f"{split.recipe} of {source.key} in {job.precision} on {device.type}, {torch.get_num_threads()} threads"
        stored = read_json(path) or {}
        if stored.get("key") == key:
            return cls(stored["peak"], stored["flops"])
        peak = estimate(source, split.recipe).peak if split.is_predictable else None
        name = "bfloat16" if job.precision in ("bf16", "autocast", "fp16") else "float32"
        flops = None if job.precision == "fp64" else calibrate([name], exchange=False).flops[name]
        expected = cls(peak, flops)
        write_json(path, {"key": key, **vars(expected)})
        return expected
