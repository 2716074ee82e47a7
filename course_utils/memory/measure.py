"""What a training step really takes: the allocator's figure, and beside it the meter's account of it."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import isnan, nan
from statistics import median

import pandas as pd
import torch
from torch import nn

from course_utils.errors import CourseError
from course_utils.memory.allocator import Account, allocator_of
from course_utils.memory.meter import Meter
from course_utils.memory.phases import announced_to, updates
from course_utils.memory.state import trains, unwrapped
from course_utils.memory.usage import Usage
from course_utils.units import format_bytes, format_seconds

NOT_ATTRIBUTED = "not attributed"
OUTSIDE = "no phase"


@dataclass(frozen=True)
class Measurement:
    """A step as measured. Bytes, on the model's device.

    `peak` and `by_phase` are the allocator's (`witness` says who that is); the peak was inside `operator`, where that is
    known. `usage` is the meter's account of the step after it. `resident` was in use before it: parameters, buffers, optimizer
    state, inputs, and gradients kept. `seconds` is the median of steps without any instrument.
    """

    resident: int
    by_phase: dict[str, int]
    peak: int
    witness: str
    operator: str
    usage: Usage
    seconds: float

    @property
    def peak_phase(self) -> str:
        """The phase in which the peak was, or `OUTSIDE` where it was in none."""
        return next((phase for phase, peak in self.by_phase.items() if peak == self.peak), OUTSIDE)

    @property
    def not_attributed(self) -> int:
        """What the allocator counted at its peak and the meter did not see: scratch space inside operators."""
        return self.peak - self.usage.peak

    @property
    def split(self) -> dict[str, int]:
        """Bytes at the peak by kind; the last line is what is not attributed, and all lines add up to `peak`."""
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


def measure(
    step: Callable[[], object], model: nn.Module, optimizer: torch.optim.Optimizer | None = None, *, timed: int = 1
) -> Measurement:
    """Measure the memory and the time of `step()` in a run that has already begun.

    The first call warms up (optimizer state is born in it), the second is recorded by the allocator, the third by the meter,
    and `timed` further ones are timed without either (with 0 `seconds` is NaN). Each of them really trains. Gradients left
    from before are dropped first. What the process holds besides is not counted. The phases are forward, backward and
    update, or those that `memory.phase` marks. Raises `CourseError` when `step` does nothing with tensors, for a model
    without parameters, and for an optimizer of another model.
    """
    _refuse(model, optimizer, timed)
    model.zero_grad(set_to_none=True)
    device = next(model.parameters()).device
    usage, account = _watched(step, model, optimizer, allocator_of(device))
    return Measurement(
        usage.resident,
        {name: usage.resident + above for name, above in account.by_phase.items()},
        usage.resident + account.above_start,
        account.witness,
        account.operator,
        usage,
        median(_seconds(step, device) for _ in range(timed)) if timed else nan,
    )


def _watched(step: Callable[[], object], model: nn.Module, optimizer, allocator) -> tuple[Usage, Account]:
    gc.collect()  # a cycle collected half-way would release memory whose allocation was not recorded
    with allocator.recording():
        with updates() as made:
            step()
        _refuse_others(made, model, optimizer)
        with allocator.measured(), announced_to(allocator.begin_phase, model, unwrapped(optimizer)):
            step()
    # The meter apart from the allocator: autograd adds some gradients otherwise when it is watched.
    with Meter(model, optimizer) as meter:
        step()
    if not meter.usage().events:
        raise CourseError("The step did nothing with tensors; pass a function that runs forward, backward and update.")
    return meter.usage(), allocator.account()


def _refuse(model: nn.Module, optimizer: torch.optim.Optimizer | None, timed: int) -> None:
    if not isinstance(timed, int) or timed < 0:
        raise CourseError(f"timed={timed} is no number of steps; use 1 or more, or 0 to leave the time out.")
    if not isinstance(model, nn.Module) or not any(True for _ in model.parameters()):
        raise CourseError(f"measure(step, model, optimizer) needs a model with parameters, not {type(model).__name__}.")
    plain = unwrapped(optimizer)
    if plain is not None and not (isinstance(plain, torch.optim.Optimizer) and trains(plain, model)):
        raise CourseError("The optimizer trains no parameter of this model; build it from this model's parameters.")


def _refuse_others(made: list[torch.optim.Optimizer], model: nn.Module, optimizer) -> None:
    for other in made:
        if other not in (optimizer, unwrapped(optimizer)) and trains(other, model):
            raise CourseError(
                f"The step updates the model by an optimizer ({type(other).__name__}) that measure was not given; pass it too."
            )


def _seconds(step: Callable[[], object], device: torch.device) -> float:
    _await(device)  # else the step would also wait for what was queued before it
    start = time.perf_counter()
    step()
    _await(device)
    return time.perf_counter() - start


def _await(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
