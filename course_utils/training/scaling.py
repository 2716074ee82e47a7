"""Loss scaling as a callback: what fp16 needs beside `Autocast`."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from course_utils.errors import CourseError
from course_utils.precision import LossScaler
from course_utils.training.callbacks import Callback

if TYPE_CHECKING:
    from course_utils.training.loop import Run


class ScaleLoss(Callback):
    """Scale the loss, unscale the gradients before the update, leave it out where they overflowed (`precision.LossScaler`).

    It stands before callbacks that look at gradients, such as ClipGradients. With accumulation all micro-batches of an
    update have one scale, and an overflow in any of them leaves the update out.
    """

    rescales = True

    def __init__(self, scaler: LossScaler | None = None):
        self.scaler = LossScaler() if scaler is None else scaler

    def on_train_begin(self, run: "Run") -> None:
        """Raises `CourseError` for fp16 parameters."""
        if any(p.dtype == torch.float16 for p in run.model.parameters() if p.requires_grad):
            raise CourseError(
                "A float16 gradient would underflow again when it is divided by the scale; "
                "keep the parameters in float32, where they are the master weights, and use autocast."
            )

    def scale_loss(self, run: "Run", loss: torch.Tensor) -> torch.Tensor:
        return self.scaler.scale(loss)

    def before_update(self, run: "Run") -> None:
        self.scaler.unscale_(run.optimizer)

    def update(self, run: "Run", optimizer_step: Callable[[], object]) -> object:
        """Step if all gradients are finite, then adapt S; returns False if the step was skipped.

        Raises `CourseError` when S has been lowered to 0.
        """
        result = False if self.scaler.overflowed(run.optimizer) else optimizer_step()
        self.scaler.update()
        if self.scaler.get_scale() == 0:
            raise CourseError(
                "The gradients are not finite at any scale, so the cause is not the scale; "
                "find the first tensor that is not finite with precision.watch_finite(model)."
            )
        return result

    def state_dict(self) -> dict:
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict) -> None:
        self.scaler.load_state_dict(state)
