"""The memory and time of a real training step: the allocator's figure, with the meter's split of it."""

import gc
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import isnan, nan
from statistics import median

import pandas as pd
import torch
from torch import nn

from course_utils.errors import CourseError
from course_utils.hardware.operators import list_tensors
from course_utils.memory.trace.allocator import allocator_of
from course_utils.memory.trace.log import Usage
from course_utils.memory.trace.meter import Meter, device_of_models
from course_utils.memory.trace.phases import Build, Step, announce_phases, bind_step, record_optimizers
from course_utils.memory.trace.state import distinct_optimizers, parts_of, trains, unwrap
from course_utils.settings import settings
from course_utils.units import format_bytes, format_seconds

NOT_ATTRIBUTED = "not attributed"
NO_PHASE = "no phase"


@dataclass(frozen=True)
class Measurement:
    """A measured step; memory in bytes, on the model's device."""

    resident: int  # in use before the step: parameters, buffers, optimizer state, inputs, and gradients kept
    by_phase: dict[str, int]  # the allocator's peak inside each phase
    peak: int  # the allocator's
    witness: str  # which allocator that is, and how it was read
    operator: str  # the one that ran at the peak; empty if the witness does not know it
    usage: Usage  # the meter's record, of the step after the one that the allocator recorded
    seconds: float  # the median of steps without any instrument

    @property
    def peak_phase(self) -> str:
        """The phase in which the peak was, or `NO_PHASE` if it was in none."""
        return next((phase for phase, peak in self.by_phase.items() if peak == self.peak), NO_PHASE)

    @property
    def not_attributed(self) -> int:
        """Bytes of the allocator's peak beyond the meter's: scratch space inside operators."""
        return self.peak - self.usage.peak

    @property
    def split(self) -> dict[str, int]:
        """Bytes at the peak by kind. The last entry is what is not attributed; all together are `peak`."""
        return {**self.usage.split, NOT_ATTRIBUTED: self.not_attributed}

    def frame(self) -> pd.DataFrame:
        """A row per phase: the allocator's peak, the meter's, and the difference."""
        metered = {phase: self.usage.by_phase.get(phase, self.resident) for phase in self.by_phase}
        frame = pd.DataFrame({"peak": self.by_phase, "metered": metered})
        return frame.assign(not_attributed=frame["peak"] - frame["metered"])

    def __str__(self):
        lines = [f"{kind:>22s}  {format_bytes(size)}" for kind, size in self.split.items()]
        total = f"{'peak':>22s}  {format_bytes(self.peak)}, in {self.peak_phase} ({self.witness})"
        seconds = [] if isnan(self.seconds) else [f"{'a step':>22s}  {format_seconds(self.seconds)}"]
        return "\n".join([*lines, total, *seconds])


def measure(build: Build | tuple, step: Step, *, timed: int = 1) -> Measurement:
    """Measure the memory and the time of `step(*build())`, called as `dry_run` is.

    - `build` returns a tuple with the model or models, the optimizers, and what else the step takes; all that it allocates is
      counted as resident. Or it is such a tuple, of a run that has already begun: then only what the meter finds in it is.
    - `step` is called with the tuple's parts, or without arguments if it takes none. The first step warms up (optimizer state is
      created in it), the second is recorded by the allocator, the third by the meter; each of them really trains.
    - `timed` further steps are timed without either; with 0 `seconds` is NaN.

    Gradients left from before are dropped first. The phases are forward, backward and update, or those that `memory.phase`
    marks. Raises `CourseError` when `step` does nothing with tensors, for a tuple without a model, and for an optimizer of
    another model.
    """
    if not isinstance(timed, int) or timed < 0:
        raise CourseError(f"timed={timed} is no number of steps; use 1 or more, or 0 to leave the time out.")
    gc.collect()  # a cycle collected half-way would release memory whose allocation was not recorded
    with ExitStack() as recording:
        if isinstance(build, tuple):
            arguments = build
            # Before the recording, which would else hold frees of memory that was allocated earlier.
            models, optimizers = _prepare_parts(arguments)
            allocator = allocator_of(device_of_models(models))
            recording.enter_context(allocator.recording())
        else:
            allocator = allocator_of(settings().device)
            recording.enter_context(allocator.recording())
            arguments = build() if callable(build) else build
            models, optimizers = _prepare_parts(arguments)
        step_again = bind_step(step, arguments)
        with record_optimizers() as used_optimizers:
            step_again()
        optimizers = distinct_optimizers([*optimizers, *used_optimizers])
        optimizers = [optimizer for optimizer in optimizers if any(trains(optimizer, model) for model in models)]
        with allocator.measured(), announce_phases(allocator.begin_phase, models, optimizers):
            step_again()
    # In a step of its own, since the meter tries operators out under a profiler, of which only one can run at a time.
    tensors = list_tensors(arguments)
    with Meter(models, optimizers, tensors=tensors) as meter:
        step_again()
    usage = meter.usage()
    account = allocator.account()
    if not usage.events:
        raise CourseError("The step did nothing with tensors; pass a function that runs forward, backward and update.")
    resident = account.at_start if callable(build) else usage.resident
    return Measurement(
        resident=resident,
        by_phase={name: resident + above for name, above in account.by_phase.items()},
        peak=resident + account.above_start,
        witness=account.witness,
        operator=account.operator,
        usage=usage,
        seconds=median(_time(step_again, device_of_models(models)) for _ in range(timed)) if timed else nan,
    )


def _prepare_parts(arguments: tuple) -> tuple[list[nn.Module], list[torch.optim.Optimizer]]:
    """The models, without gradients, and the optimizers among a step's arguments; raises `CourseError` as `measure` does."""
    models, optimizers = parts_of(arguments)
    if not any(True for model in models for _ in model.parameters()):
        raise CourseError("measure(build, step) needs a model with parameters among what build() returns.")
    if not all(any(trains(unwrap(optimizer), model) for model in models) for optimizer in optimizers):
        raise CourseError("The optimizer trains no parameter of this model; build it from this model's parameters.")
    for model in models:
        model.zero_grad(set_to_none=True)
    return models, optimizers


def _time(step: Callable[[], object], device: torch.device) -> float:
    wait = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    wait()  # else the step would also wait for what was queued before it
    start = time.perf_counter()
    step()
    wait()
    return time.perf_counter() - start
