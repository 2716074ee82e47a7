"""A technique as a difference to the plain loop: a plug-in overrides what it changes, the loop stays as it is."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch

from course_utils.errors import CourseError

if TYPE_CHECKING:
    from course_utils.training.loop import Run


class Plugin:
    """Every method is called at its moment of the loop with the `Run`; by default each does nothing.

    `rescales` says that a plug-in multiplies the loss and puts the gradients right in `before_update`; what needs the true
    gradients comes after it. The order among those that rescale does not matter.
    """

    rescales = False

    def start(self, run: "Run") -> None:
        """Before the first step; `run.step` is above 0 when the run was resumed."""

    def forward(self, run: "Run") -> AbstractContextManager:
        """A context in which the forward pass is computed."""
        return nullcontext()

    def objective(self, run: "Run", loss: torch.Tensor) -> torch.Tensor:
        """What the backward pass starts from: the loss, or a multiple of it."""
        return loss

    def wants_update(self, run: "Run") -> bool:
        """False to keep the gradients and go on to the next batch."""
        return True

    def before_update(self, run: "Run") -> None:
        """After the backward pass, before the optimizer's step."""

    def update(self, run: "Run", step: Callable[[], object]) -> object:
        """Around the optimizer's step: call `step` and return what it gave, or leave it out and return False.

        After False the schedule waits as well. The gradients are dropped in any case.
        """
        return step()

    def after_step(self, run: "Run") -> None:
        """After each batch, whether or not it ended in an update."""

    def finish(self, run: "Run") -> None:
        """After the last step, and also when the run was interrupted."""

    def state_dict(self) -> dict:
        """What a checkpoint must keep of this plug-in."""
        return {}

    def load_state_dict(self, state: dict) -> None:
        """Take over what `state_dict` gave."""


class ClipGradients(Plugin):
    """Scale all gradients down together so that their joint 2-norm is at most `max_norm` (Pascanu et al. 2013)."""

    def __init__(self, max_norm: float):
        if not max_norm > 0:
            raise ValueError(f"max_norm={max_norm} must be above 0; leave the plug-in out to train without clipping.")
        self.max_norm = max_norm

    def start(self, run):
        """Raises `CourseError` where a later plug-in would put the gradients right only after they were clipped."""
        later = run.plugins[run.plugins.index(self) + 1 :]
        for plugin in later:
            if plugin.rescales:
                raise CourseError(
                    f"{type(plugin).__name__} puts the gradients right only after ClipGradients has taken their norm; "
                    f"name it before ClipGradients among the plug-ins."
                )

    def before_update(self, run):
        """Clip in place."""
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), self.max_norm)


class Autocast(Plugin):
    """Compute the forward pass in `dtype` where that is safe (Micikevicius et al. 2018); parameters keep their own dtype."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16):
        self.dtype = dtype

    def forward(self, run):
        """Torch's autocast on the run's device."""
        return torch.autocast(run.device.type, self.dtype)
