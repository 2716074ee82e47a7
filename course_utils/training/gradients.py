"""The gradient that a whole training used, no matter who wrote its loop."""

from collections.abc import Callable

import torch
from torch import nn


def gradient_of_update(model: nn.Module, train: Callable[[torch.optim.Optimizer], object]) -> torch.Tensor:
    """The gradient of the one update that `train(optimizer)` makes of `model`, flat; the model is as before afterwards.

    Plain gradient descent at a learning rate of 1 moves θ by exactly −g, so the step itself tells the gradient, up to
    rounding: give a model in float64. Over several updates it is the sum of their gradients.
    """
    before = [p.detach().clone() for p in model.parameters()]
    train(torch.optim.SGD(model.parameters(), lr=1.0))
    differences = [b - p.detach() for b, p in zip(before, model.parameters(), strict=True)]
    with torch.no_grad():
        for p, b in zip(model.parameters(), before, strict=True):
            p.copy_(b)
    return torch.cat([part.reshape(-1) for part in differences])


def relative_error(gradient: torch.Tensor, right: torch.Tensor) -> float:
    """‖g − right‖ / ‖right‖."""
    return ((gradient - right).norm() / right.norm()).item()
