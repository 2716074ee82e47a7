"""Dynamic loss scaling: a factor S that lifts gradients out of fp16's underflow and adapts itself.

Micikevicius et al. (2018), *Mixed Precision Training*, section 3.2.
"""

from collections.abc import Iterator
from math import inf, isfinite

import torch

from course_utils.errors import CourseError


class LossScaler:
    """The loss scale S. Each update: `scale(loss).backward()`, `unscale_`, `step`, `update`.

    An update whose gradients are not all finite is left out, and S is multiplied by `backoff_factor`; after
    `growth_interval` finite ones in a row by `growth_factor`. Raises `ValueError` for factors that do not shrink and grow.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ):
        _require(0 < _as_float32(init_scale) < inf, f"init_scale={init_scale} must be above 0 and finite in float32.")
        _require(growth_factor > 1, f"growth_factor={growth_factor} must be above 1, or the scale never grows.")
        _require(0 < backoff_factor < 1, f"backoff_factor={backoff_factor} must lie between 0 and 1.")
        _require(growth_interval >= 1, f"growth_interval={growth_interval} must be at least 1 update.")
        self.growth_factor, self.backoff_factor, self.growth_interval = growth_factor, backoff_factor, growth_interval
        self._scale, self._finite_in_a_row, self.skipped = _as_float32(init_scale), 0, 0
        self._overflowed: dict[int, bool] = {}  # by optimizer, of this update

    def get_scale(self) -> float:
        """S as it is now."""
        return self._scale

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """S times the loss; by the chain rule every gradient becomes S times as large."""
        return loss * self._scale

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by S, in place, and note whether all were finite. Clip after it, not before.

        Raises `CourseError` the second time in one update, and for fp16 gradients, which would underflow again.
        """
        if id(optimizer) in self._overflowed:
            raise CourseError("These gradients were unscaled already; call update() before the next unscale_().")
        gradients = list(_gradients(optimizer))
        self._overflowed[id(optimizer)] = not all(gradient.isfinite().all() for gradient in gradients)
        for gradient in gradients:
            gradient.mul_(1 / self._scale)

    def overflowed(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether this update's gradients were not all finite; unscales them where that was not done."""
        if id(optimizer) not in self._overflowed:
            self.unscale_(optimizer)
        return self._overflowed[id(optimizer)]

    def step(self, optimizer: torch.optim.Optimizer):
        """The optimizer's step, or nothing where a gradient is not finite."""
        return None if self.overflowed(optimizer) else optimizer.step()

    def update(self) -> None:
        """Adapt S at the end of an update.

        Raises `CourseError` where no gradients were unscaled, and where S has been brought down to nothing.
        """
        if not self._overflowed:
            raise CourseError("Nothing was unscaled since the last update(); call unscale_() or step() first.")
        if any(self._overflowed.values()):
            self._back_off()
        else:
            self._count_finite()
        self._overflowed = {}

    def state_dict(self) -> dict:
        """What a checkpoint keeps; names as PyTorch's scaler has them, and the number of updates left out."""
        return {
            "scale": self._scale,
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "_growth_tracker": self._finite_in_a_row,
            "skipped": self.skipped,
        }

    def load_state_dict(self, state: dict) -> None:
        """Take over what `state_dict` gave, or PyTorch's scaler did."""
        self._scale, self._finite_in_a_row = state["scale"], state["_growth_tracker"]
        self.growth_factor, self.backoff_factor = state["growth_factor"], state["backoff_factor"]
        self.growth_interval, self.skipped = state["growth_interval"], state.get("skipped", 0)
        self._overflowed = {}

    def _back_off(self) -> None:
        self._finite_in_a_row, self.skipped = 0, self.skipped + 1
        lowered = _as_float32(self._scale * self.backoff_factor)
        if lowered == 0:
            raise CourseError(
                "The gradients are not finite at any scale, so the cause is not the scale; "
                "find the first tensor that is not finite with precision.watch_finite(model)."
            )
        self._scale = lowered

    def _count_finite(self) -> None:
        self._finite_in_a_row += 1
        if self._finite_in_a_row == self.growth_interval:
            grown = _as_float32(self._scale * self.growth_factor)
            self._scale = grown if isfinite(grown) else self._scale
            self._finite_in_a_row = 0


def _gradients(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        if parameter.grad is None:
            continue
        if parameter.grad.dtype == torch.float16:
            raise CourseError(
                "A gradient is float16 and would underflow again when it is divided by the scale; "
                "keep the parameters in float32, where they are the master weights, and use autocast."
            )
        yield parameter.grad


def _as_float32(value: float) -> float:
    return torch.tensor(value, dtype=torch.float32).item()


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise ValueError(sentence)
