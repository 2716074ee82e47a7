"""Updating each parameter as soon as its gradient is there, so that gradients never live side by side."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from course_utils.errors import CourseError
from course_utils.training.callbacks import Callback

if TYPE_CHECKING:
    from course_utils.training.loop import Run


class UpdateInBackward(Callback):
    """Step within the backward pass, parameter by parameter, and drop each gradient at once (Lv et al. 2023, LOMO).

    An optimizer's `step` updates every parameter that has a gradient; while only one has, it updates that one. Nothing may
    need all gradients together: no clipping by their joint norm, no accumulation (`CourseError`).
    """

    def on_train_begin(self, run: "Run") -> None:
        """Hook every trainable parameter. Raises `CourseError` where another callback overrides what happens to gradients."""
        for callback in run.callbacks:
            if callback is not self and _uses_all_gradients(callback):
                raise CourseError(
                    f"{type(callback).__name__} needs all gradients together, but UpdateInBackward drops each at once; "
                    "leave one of the two out."
                )
        parameters = [p for group in run.optimizer.param_groups for p in group["params"] if p.requires_grad]
        for parameter in parameters:
            parameter.grad = None

        def update(parameter: torch.Tensor) -> None:
            run.optimizer.step()
            parameter.grad = None

        self._hooks = [parameter.register_post_accumulate_grad_hook(update) for parameter in parameters]

    def update(self, run: "Run", optimizer_step: Callable[[], object]) -> None:
        pass  # nothing is left to update

    def on_train_end(self, run: "Run") -> None:
        for hook in self._hooks:
            hook.remove()


def _uses_all_gradients(callback: Callback) -> bool:
    return any(
        getattr(type(callback), name) is not getattr(Callback, name)
        for name in ("before_update", "should_update", "update")
    )
