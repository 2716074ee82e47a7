"""The update of a model alone, by default of DistilBERT-base, without forward and backward pass, to be predicted and timed."""

from collections.abc import Callable, Sequence

import torch

from course_utils import models
from course_utils.hardware.calibration import seconds_of
from course_utils.memory.step.optimizers import OptimizerFactory
from course_utils.settings import settings


def model_with_gradients(
    make_optimizer: OptimizerFactory, make_model: Callable[[], torch.nn.Module] | None = None
) -> tuple[torch.nn.Module, torch.optim.Optimizer, list[torch.Tensor]]:
    """A model, an optimizer of it, and a gradient for each parameter: what `update` takes."""
    model = (make_model or models.distilbert_base)().to(settings().device)
    return model, make_optimizer(model.parameters()), [torch.full_like(p, 1e-3) for p in model.parameters()]


def update(model: torch.nn.Module, optimizer: torch.optim.Optimizer, gradients: Sequence[torch.Tensor]) -> None:
    """Make the update alone, with these gradients."""
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        p.grad = gradient
    optimizer.step()


def seconds_of_update(
    make_optimizer: OptimizerFactory, make_model: Callable[[], torch.nn.Module] | None = None
) -> float:
    """Seconds of one `update` by this optimizer, on a model for which it has made its state."""
    parts = model_with_gradients(make_optimizer, make_model)
    update(*parts)
    return seconds_of(lambda: update(*parts))
