"""What the scale of the gradients does to an optimizer's steps; an ε of the wrong size shows here."""

from collections.abc import Callable, Sequence

import torch

SMALL_SCALES = tuple(10.0**exponent for exponent in range(-18, 1))


def change_at_scales(optimizer: Callable, scales: Sequence[float], steps: int = 5) -> list[float]:
    """How much the way of a parameter matrix changes when all its gradients are multiplied by each of `scales`.

    `optimizer` is called with a list of parameters. Given is ‖way − way₁‖ / ‖way₁‖, way₁ being the one at scale 1, in 32 bits.
    The gradients have rows and columns of scales of their own, about a decade apart, as those of a model have.
    """
    generator = torch.Generator().manual_seed(0)
    rows, columns = (10 ** (0.5 * torch.randn(shape, generator=generator)) for shape in ((16, 1), (1, 24)))
    gradients = rows * columns * torch.randn(steps, 16, 24, generator=generator)
    reference = _way(optimizer, gradients)
    ways = [_way(optimizer, gradients * scale) for scale in scales]
    return [((way - reference).norm() / reference.norm()).item() for way in ways]


def _way(optimizer: Callable, gradients: torch.Tensor) -> torch.Tensor:
    theta = torch.zeros(gradients.shape[1:], requires_grad=True)
    stepping = optimizer([theta])
    for gradient in gradients:
        theta.grad = gradient.clone()
        stepping.step()
    return theta.detach()
