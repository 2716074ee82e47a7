"""A technique as a difference to the plain loop: a callback overrides what it changes, the loop stays as it is."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch

from course_utils.errors import CourseError

if TYPE_CHECKING:
    from course_utils.training.loop import Run


class Callback:
    """A change to the loop, which calls every method at its moment with the `Run`; by default they do nothing.

    `rescales` says that a callback multiplies the loss and puts the gradients right in `before_update`; what needs the true
    gradients comes after it. The order among those that rescale does not matter.
    """

    rescales = False

    def on_train_begin(self, run: "Run") -> None:
        """Called before the first step; `run.step` is above 0 when the run was resumed."""

    def forward(self, run: "Run") -> AbstractContextManager:
        """A context in which the forward pass is computed."""
        return nullcontext()

    def scale_loss(self, run: "Run", loss: torch.Tensor) -> torch.Tensor:
        """What the backward pass starts from: the loss, or a multiple of it."""
        return loss

    def should_update(self, run: "Run") -> bool:
        """False to keep the gradients and go on to the next batch."""
        return True

    def before_update(self, run: "Run") -> None:
        """Called after the backward pass and before the optimizer's step."""

    def update(self, run: "Run", optimizer_step: Callable[[], object]) -> object:
        """Call the optimizer's step and return its result, or skip it and return False.

        After False the schedule waits as well. The gradients are dropped in any case.
        """
        return optimizer_step()

    def after_batch(self, run: "Run") -> None:
        """Called after each batch, whether or not it ended in an update."""

    def on_train_end(self, run: "Run") -> None:
        """Called after the last step, and also when the run was interrupted."""

    def state_dict(self) -> dict:
        """What a checkpoint must keep of this callback."""
        return {}

    def load_state_dict(self, state: dict) -> None:
        """Restore what `state_dict` returned."""


class ClipGradients(Callback):
    """Scale all gradients down together so that their joint 2-norm is at most `max_norm` (Pascanu et al. 2013)."""

    def __init__(self, max_norm: float):
        if not max_norm > 0:
            raise ValueError(f"max_norm={max_norm} must be above 0; leave the callback out to train without clipping.")
        self.max_norm = max_norm

    def on_train_begin(self, run: "Run") -> None:
        """Raises `CourseError` where a later callback would put the gradients right only after they were clipped."""
        later = run.callbacks[run.callbacks.index(self) + 1 :]
        for callback in later:
            if callback.rescales:
                raise CourseError(
                    f"{type(callback).__name__} puts the gradients right only after ClipGradients has taken their norm; "
                    f"name it before ClipGradients among the callbacks."
                )

    def before_update(self, run: "Run") -> None:
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), self.max_norm)


class Autocast(Callback):
    """Compute the forward pass in `dtype` where that is safe (Micikevicius et al. 2018); parameters keep their own dtype."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16):
        self.dtype = dtype

    def forward(self, run: "Run") -> AbstractContextManager:
        return torch.autocast(run.device.type, self.dtype)
