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


def steps_to_shrink(optimizer: Callable, curvature: float, share: float, most: int = 100_000) -> int | None:
    """Updates until (x, y) = (1, 1) has shrunk to `share` of its length on the loss (x² + `curvature`·y²) / 2, for good.

    `optimizer` is called with a list of one parameter. None where `most` updates do not suffice.
    """
    theta, bends = torch.ones(2, dtype=torch.float64), torch.tensor([1.0, curvature], dtype=torch.float64)
    stepping, wanted, reached = optimizer([theta]), share * 2**0.5, None
    for t in range(1, most + 1):
        theta.grad = bends * theta
        stepping.step()
        inside = theta.norm().item() <= wanted
        reached = (reached or t) if inside else None
        if reached and t >= 2 * reached:  # and it did not swing out again
            return reached
    return reached


def update_sizes(optimizer: Callable, steps: int) -> list[float]:
    """How far each of the first `steps` updates moves a parameter whose gradient is always 1."""
    theta, sizes = torch.zeros(1, dtype=torch.float64), []
    stepping = optimizer([theta])
    for _ in range(steps):
        before = theta.item()
        theta.grad = torch.ones_like(theta)
        stepping.step()
        sizes.append(abs(before - theta.item()))
    return sizes


def gradient_variance(model: torch.nn.Module, examples: dict, batch_size: int, draws: int, seed: int = 0) -> float:
    """The variance of the gradient of a random batch, summed over all parameters, from so many `draws` of it.

    `examples` is one large batch, from which each batch is drawn with replacement; the model answers with a `.loss`, a mean
    over examples. It is (Σ‖g‖² − ‖Σg‖²/n) / (n − 1), so that no more than one gradient and a sum are kept.
    """
    generator = torch.Generator().manual_seed(seed)
    parameters = [p for p in model.parameters() if p.requires_grad]
    sums, squares = [torch.zeros_like(p) for p in parameters], 0.0
    count = len(next(iter(examples.values())))
    for _ in range(draws):
        chosen = torch.randint(count, (batch_size,), generator=generator)
        loss = model(**{name: values[chosen].to(parameters[0].device) for name, values in examples.items()}).loss
        for total, gradient in zip(sums, torch.autograd.grad(loss, parameters), strict=True):
            total += gradient
            squares += gradient.square().sum().item()
    return (squares - sum(total.square().sum().item() for total in sums) / draws) / (draws - 1)


def settled_variance(
    optimizer: Callable, steps: int = 400, factor: Callable[[int], float] | None = None, copies: int = 20_000
) -> float:
    """How widely parameters scatter about their minimum 0 on the loss θ²/2 when each gradient carries noise of variance 1.

    `optimizer` is called with a list of one parameter, which holds `copies` independent ones; `factor(step)`, where given,
    multiplies its learning rate.
    """
    theta, generator = torch.zeros(copies, dtype=torch.float64), torch.Generator().manual_seed(0)
    stepping = optimizer([theta])
    rate = stepping.param_groups[0]["lr"]
    for step in range(steps):
        stepping.param_groups[0]["lr"] = rate * (factor(step) if factor else 1)
        theta.grad = theta + torch.randn(copies, dtype=torch.float64, generator=generator)
        stepping.step()
    return theta.var().item()


def predicted_variance(lr: float, momentum: float = 0.0) -> float:
    """The same by pencil for SGD: α (1 + μ) / ((1 − μ)(2(1 + μ) − α)), which is near α / (2(1 − μ)) for small α.

    It is the fixed point of the covariance of (θ, b) under b ← μb + θ + noise, θ ← θ − αb.
    """
    return lr * (1 + momentum) / ((1 - momentum) * (2 * (1 + momentum) - lr))
