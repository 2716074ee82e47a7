"""Small experiments that show what an optimizer does."""

from collections.abc import Callable, Sequence

import torch

GRADIENT_SCALES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


def left_after_noise(optimizer: Callable, scales: Sequence[float], steps: int, pairs: int = 500) -> torch.Tensor:
    """What weight decay alone leaves of parameters that start at 1: one mean value per gradient scale.

    `optimizer` is called with a list of parameters. Gradients are normal noise of each scale, every draw used once with
    each sign so that it cancels in the mean and only the decay is left.
    """
    theta = torch.ones(len(scales), 2 * pairs, dtype=torch.float64)
    stepping = optimizer([theta])
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        noise = torch.randn(len(scales), pairs, dtype=torch.float64, generator=generator)
        theta.grad = torch.cat([noise, -noise], 1) * torch.tensor(scales)[:, None]
        stepping.step()
    return theta.mean(1)


def predicted_left_l2(scales: Sequence[float], steps: int, lr: float, weight_decay: float) -> torch.Tensor:
    """The same for L2 inside Adam's gradient, by pencil.

    θ loses αλθ / √(σ² + λ²θ²) a step, σ being the gradient's scale.
    """
    theta, sigma = torch.ones(len(scales), dtype=torch.float64), torch.tensor(scales, dtype=torch.float64)
    for _ in range(steps):
        theta = theta - lr * weight_decay * theta / (sigma**2 + (weight_decay * theta) ** 2).sqrt()
    return theta.clamp(min=0)
