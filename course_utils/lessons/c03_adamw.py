"""Chapter 03: what weight decay leaves, and the chapter's figures."""

from collections.abc import Callable, Sequence

import torch
from matplotlib.figure import Figure

from course_utils.optim import Adam, AdamW
from course_utils.viz.parts import arrow, box, subplots
from course_utils.viz.style import COLORS

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
    """The same for L2 inside Adam's gradient, from its recursion.

    θ loses αλθ / √(σ² + λ²θ²) a step, σ being the gradient's scale.
    """
    theta, sigma = torch.ones(len(scales), dtype=torch.float64), torch.tensor(scales, dtype=torch.float64)
    for _ in range(steps):
        theta = theta - lr * weight_decay * theta / (sigma**2 + (weight_decay * theta) ** 2).sqrt()
    return theta.clamp(min=0)


def decay_figure(lr: float = 0.01, weight_decay: float = 0.1, steps: int = 500) -> tuple[Figure, str]:
    """Where Adam with L2 and AdamW part: what is left of a parameter against the scale of its gradients."""
    options = {"lr": lr, "weight_decay": weight_decay}
    l2 = left_after_noise(lambda p: Adam(p, **options), GRADIENT_SCALES, steps)
    decoupled = left_after_noise(lambda p: AdamW(p, **options), GRADIENT_SCALES, steps)
    figure, axes = subplots(layout="constrained")
    axes.plot(
        GRADIENT_SCALES,
        predicted_left_l2(GRADIENT_SCALES, steps, **options),
        color=COLORS["predicted"],
        label="predicted",
    )
    axes.axhline((1 - lr * weight_decay) ** steps, color=COLORS["predicted"])
    axes.plot(GRADIENT_SCALES, l2, "s", color=COLORS["second"], label="Adam with L2, measured")
    axes.plot(GRADIENT_SCALES, decoupled, "o", color=COLORS["first"], label="AdamW, measured")
    axes.set(xscale="log", xlabel="scale σ of the parameter's gradients", ylim=(-0.05, 1.1))
    axes.set(ylabel=f"left of θ = 1 after {steps} steps", title=f"α = {lr:.3g}, λ = {weight_decay:.3g}")
    figure.legend(loc="outside upper center", ncols=3)
    return figure, (
        f"What weight decay leaves of a parameter after {steps} steps, against the scale of its gradients from 0.01 to 100. "
        f"AdamW leaves {decoupled.min():.2f} to {decoupled.max():.2f} at every scale; "
        f"Adam with L2 leaves {l2[0]:.2f} at the smallest scale and {l2[-1]:.2f} at the largest."
    )


def correction_figure(measured: Sequence[float], betas: tuple[float, float]) -> tuple[Figure, str]:
    """Size of an update without bias correction over its right size α: `measured` from step 1 on, and the closed form's curve."""
    steps = torch.arange(1, len(measured) + 1, dtype=torch.float64)
    predicted = (1 - betas[0] ** steps) / (1 - betas[1] ** steps).sqrt()
    figure, axes = subplots()
    axes.plot(steps, predicted, color=COLORS["predicted"], label="predicted: (1 − β₁ᵗ) / √(1 − β₂ᵗ)")
    axes.plot(steps, measured, ".", color=COLORS["second"], label="measured")
    axes.axhline(1, color=COLORS["first"], linestyle="--", label="with bias correction")
    axes.set(xscale="log", xlabel="step t", ylabel="update / α", ylim=(0, None))
    axes.legend()
    largest, apart = max(measured), (predicted - torch.tensor(measured)).abs().max().item()
    at = measured.index(largest) + 1, largest
    axes.annotate(f"{largest:.2f} at step {at[0]}", at, xytext=(0, -34), textcoords="offset points", ha="center")
    return figure, (
        f"Update size without bias correction relative to α: {measured[0]:.2f} at step 1, a largest value of {largest:.2f} "
        f"at step {measured.index(largest) + 1}, {measured[-1]:.2f} at step {len(measured)}. "
        f"No point is farther than {apart:.2g} from the predicted curve."
    )


def decay_paths_figure() -> tuple[Figure, str]:
    """Two flow charts: weight decay joining the gradient (L2) and weight decay beside it (decoupled)."""
    figure, panels = subplots(2, 1, figsize=(7.6, 3.2), layout="constrained")
    _draw_flow(
        panels[0],
        "L2 inside Adam: the decay joins the gradient, and is averaged and divided with it",
        "second",
        joins=0,
    )
    _draw_flow(panels[1], "AdamW: the decay goes straight to the parameter", "first", joins=3)
    return figure, (
        "Two flow charts from the gradient g over two averages, m and v, and m̂ / √v̂ to the parameter θ. "
        "In the upper one the decay joins the gradient, before the averages; in the lower one it goes to the parameter directly."
    )


_STATIONS = ((0.1, "gradient g"), (0.36, "two averages, m and v"), (0.66, "m̂ / √v̂"), (0.9, "parameter θ"))


def _draw_flow(axes, title: str, color: str, joins: int) -> None:
    stations = [box(axes, x, 0.3, text) for x, text in _STATIONS]
    for start, end in zip(stations[:-1], stations[1:], strict=True):
        arrow(axes, start, end)
    source = box(axes, _STATIONS[joins][0], 0.82, "decay λθ", color)
    arrow(axes, source, stations[joins], color)
    axes.set(xlim=(0, 1), ylim=(0.1, 1), title=title)
    axes.axis("off")
