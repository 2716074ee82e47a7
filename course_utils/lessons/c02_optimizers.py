"""Chapter 02: loss surfaces and paths over them, experiments with steps and noise, and the chapter's figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt

import torch
from matplotlib.figure import Figure

from course_utils.errors import CourseError
from course_utils.optim import SGD, AdaGrad, Adam, Momentum, Nesterov, RMSProp, schedules
from course_utils.viz.parts import arrow, box, subplots
from course_utils.viz.style import COLORS, SERIES, writing

Make = Callable[[list[torch.Tensor]], torch.optim.Optimizer]
"""Called with a list of one parameter, gives an optimizer."""


@dataclass(frozen=True)
class Surface:
    """A loss of x and y, whose lowest value is 0; a path begins at `start` and is looked at within `view` (two ranges).

    `noise` is the standard deviation of what is added to each entry of every gradient, as a random batch would.
    """

    name: str
    height: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    start: tuple[float, float]
    view: tuple[tuple[float, float], tuple[float, float]]
    noise: float = 0.0


def _ravine(x, y):
    return (x**2 + 50 * y**2) / 2


def _turned_ravine(x, y):
    return _ravine((x + y) / sqrt(2), (y - x) / sqrt(2))


def _saddle(x, y):
    return (x**2 - y**2) / 2 + y**4 / 4 + 1 / 4


def _bowl(x, y):
    return (x**2 + y**2) / 2


RAVINE = Surface("ravine", _ravine, (-4.0, 1.0), ((-5.0, 2.0), (-2.0, 2.0)))
TURNED_RAVINE = Surface(
    "turned ravine", _turned_ravine, (-5 / sqrt(2), -3 / sqrt(2)), ((-5.0, 2.0), (-4.0, 2.0))
)  # the ravine and its start, turned by 45°
SADDLE = Surface("saddle", _saddle, (1.5, 0.01), ((-1.0, 2.0), (-0.5, 1.5)))
BOWL = Surface("noisy bowl", _bowl, (3.0, 2.0), ((-1.5, 3.5), (-1.5, 2.5)), noise=1.0)
SURFACES = {surface.name: surface for surface in (RAVINE, TURNED_RAVINE, SADDLE, BOWL)}


def path(make: Make, surface: Surface, steps: int, start: tuple[float, float] | None = None, seed: int = 0):
    """Where an optimizer goes: a float64 tensor of shape (steps + 1, 2), the start included."""
    theta = torch.tensor(start or surface.start, dtype=torch.float64, requires_grad=True)
    optimizer, generator = make([theta]), torch.Generator().manual_seed(seed)
    seen = [theta.detach().clone()]
    for _ in range(steps):
        (gradient,) = torch.autograd.grad(surface.height(*theta), theta)
        theta.grad = gradient + surface.noise * torch.randn(2, dtype=torch.float64, generator=generator)
        optimizer.step()
        seen.append(theta.detach().clone())
    return torch.stack(seen)


def heights(surface: Surface, places: torch.Tensor) -> torch.Tensor:
    """The loss at each of `places`, shape (n, 2); infinite where a path has left the numbers."""
    return surface.height(*places.T).nan_to_num(nan=torch.inf)


def best_rate(make: Callable[[list[torch.Tensor], float], torch.optim.Optimizer], surface: Surface, rates, steps: int):
    """The learning rate out of `rates` with which `make(parameters, rate)` has the lowest loss after `steps` updates."""

    def end(rate: float) -> float:
        return heights(surface, path(lambda p: make(p, rate), surface, steps))[-1].item()

    return min(rates, key=end)


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
    """The same as a closed form for SGD: α (1 + μ) / ((1 − μ)(2(1 + μ) − α)), which is near α / (2(1 − μ)) for small α.

    It is the fixed point of the covariance of (θ, b) under b ← μb + θ + noise, θ ← θ − αb.
    """
    return lr * (1 + momentum) / ((1 - momentum) * (2 * (1 + momentum) - lr))


_LOWEST = 1e-12  # where the axis of losses ends

STEERED = {
    "gradient descent": lambda p, lr, beta1, beta2: SGD(p, lr),
    "momentum": lambda p, lr, beta1, beta2: Momentum(p, lr, momentum=beta1),
    "Nesterov": lambda p, lr, beta1, beta2: Nesterov(p, lr, momentum=beta1),
    "AdaGrad": lambda p, lr, beta1, beta2: AdaGrad(p, lr),
    "RMSProp": lambda p, lr, beta1, beta2: RMSProp(p, lr, alpha=beta2),
    "Adam": lambda p, lr, beta1, beta2: Adam(p, lr, betas=(beta1, beta2)),
}
"""Optimizers by name, made from parameters, α, β₁ (μ for momentum) and β₂ (β for RMSProp)."""


def paths_figure(surface: Surface, paths: Mapping[str, torch.Tensor]) -> tuple[Figure, str]:
    """Up to four paths over a surface, and beside them the loss against steps. Raises `CourseError` for more."""
    if not 0 < len(paths) <= 4:
        raise CourseError(f"One figure shows 1 to 4 paths, not {len(paths)}; draw several figures.")
    figure, (plan, curve) = subplots(1, 2, figsize=(7.6, 3.6), layout="constrained")
    _draw_contours(plan, surface)
    said = []
    for (name, places), color in zip(paths.items(), SERIES, strict=False):
        losses = heights(surface, places)
        plan.plot(*places.T, ".-", color=COLORS[color], linewidth=1.2, markersize=4, label=name)
        curve.plot(losses.clamp(min=_LOWEST), color=COLORS[color], label=name)
        said.append(f"{name} from {losses[0]:.3g} to {losses[-1]:.3g}")
    plan.plot(*next(iter(paths.values()))[0], "o", color=COLORS["ink"], markersize=6)
    plan.set(xlabel="x", ylabel="y", xlim=surface.view[0], ylim=surface.view[1], title=f"{surface.name}: the way")
    curve.set(xlabel="step", ylabel="loss", yscale="log", title="the loss on it")
    figure.legend(*curve.get_legend_handles_labels(), loc="outside upper center", ncols=len(paths))
    return figure, f"Paths over the {surface.name}, and the loss over {len(losses) - 1} steps: {'; '.join(said)}."


def steering_figure(
    surface: str, optimizer: str, lr: float, beta1: float, beta2: float, x: float, y: float, steps: int = 60
) -> tuple[Figure, str]:
    """One optimizer, by its name in `STEERED`, on the surface of that name, from (x, y); noise as `Surface.noise` says."""
    make = partial(STEERED[optimizer], lr=lr, beta1=beta1, beta2=beta2)
    here = SURFACES[surface]
    return paths_figure(here, {optimizer: path(make, here, steps, start=(x, y))})


def schedules_figure(total: int = 100, warmup: int = 10) -> tuple[Figure, str]:
    """The course's schedules over `total` updates as factors on α."""
    drawn = {
        "warm-up, then constant": partial(schedules.warm_up, warmup=warmup),
        "inverse square root": partial(schedules.inverse_sqrt, warmup=warmup),
        "exponential": partial(schedules.exponential, gamma=0.01 ** (1 / total)),
        "step": partial(schedules.staircase, every=max(1, total // 3), gamma=0.3),
        "cosine with warm-up": partial(schedules.cosine, total=total, warmup=warmup),
    }
    looks = zip((*SERIES[:4], "gradients"), (":", "-", "-", "-", "--"), strict=True)
    figure, axes = subplots(layout="constrained")
    for (name, factor), (color, line) in zip(drawn.items(), looks, strict=True):
        steps = range(total + 1)
        drawn_as = "steps-post" if name == "step" else "default"
        axes.plot(steps, [factor(step) for step in steps], line, color=COLORS[color], label=name, drawstyle=drawn_as)
    axes.set(xlabel="update", ylabel="factor on α", ylim=(0, 1.08), xlim=(0, total))
    figure.legend(loc="outside upper center", ncols=3)
    ends = "; ".join(f"{name} {f(0):.2g}, {f(warmup):.2g}, {f(total):.2g}" for name, f in drawn.items())
    return figure, f"Factors on the learning rate at updates 0, {warmup} and {total}: {ends}."


def noise_figure(sizes: Sequence[int], variances: Sequence[float]) -> tuple[Figure, str]:
    """Variance of a batch's gradient against the batch's size, and the line through the first point that falls as 1 / size."""
    predicted = [variances[0] * sizes[0] / size for size in sizes]
    figure, axes = subplots(figsize=(7.6, 3.0))
    axes.plot(sizes, predicted, color=COLORS["predicted"], label="predicted: as 1 / batch size")
    axes.plot(sizes, variances, "o", color=COLORS["first"], label="measured")
    axes.set(xlabel="batch size", ylabel="variance of the gradient", xscale="log", yscale="log")
    axes.set_xticks(list(sizes), [str(size) for size in sizes])
    axes.set_yticks(list(variances), [f"{variance:.2g}" for variance in variances])
    axes.minorticks_off()
    axes.legend()
    ratios = ", ".join(f"{m / p:.2f}" for m, p in zip(variances, predicted, strict=True))
    return figure, (
        f"Variance of a batch's gradient for batch sizes {', '.join(map(str, sizes))}, falling from {variances[0]:.3g} to "
        f"{variances[-1]:.3g}; measured over predicted: {ratios}."
    )


_MEMBERS = {
    "gradient\ndescent": (0.08, 0.5, "ink"),
    "momentum": (0.36, 0.8, "first"),
    "Nesterov": (0.66, 0.8, "first"),
    "AdaGrad": (0.36, 0.2, "second"),
    "RMSProp": (0.66, 0.2, "second"),
    "Adam": (0.92, 0.5, "third"),
}
_STEPS = (
    ("gradient\ndescent", "momentum", "remember where\nyou were going"),
    ("momentum", "Nesterov", "look\nahead"),
    ("gradient\ndescent", "AdaGrad", "divide by the root of\nthe sum of squares"),
    ("AdaGrad", "RMSProp", "forget\nold ones"),
    ("momentum", "Adam", ""),
    ("RMSProp", "Adam", "both, and correct\nthe start"),
)


def family_figure() -> tuple[Figure, str]:
    """The optimizers of the course, each with what it adds to the one before."""
    figure, axes = subplots(figsize=(7.6, 3.4), layout="constrained")
    boxes = {name: box(axes, x, y, name, color, fontsize=10) for name, (x, y, color) in _MEMBERS.items()}
    for start, end, added in _STEPS:
        arrow(axes, boxes[start], boxes[end])
        if added:
            middle = [
                sum(pair) / 2 for pair in zip(boxes[start].get_position(), boxes[end].get_position(), strict=True)
            ]
            paper = {"facecolor": COLORS["paper"], "edgecolor": "none", "pad": 1.5}
            axes.text(*middle, added, ha="center", va="center", fontsize=8.5, bbox=paper)
    axes.text(0.51, 1.0, "a better direction", ha="center", color=COLORS["first"], style="italic")
    below = {"ha": "center", "va": "top", "color": writing("second"), "style": "italic"}
    axes.text(0.51, 0.0, "a step size for each parameter", **below)
    axes.set(xlim=(0, 1), ylim=(-0.1, 1.1))
    axes.axis("off")
    said = "; ".join(f"{a} to {b}: {c}".replace("\n", " ") for a, b, c in _STEPS if c)
    return figure, f"A family tree from gradient descent over two branches to Adam. {said}; momentum to Adam."


def _draw_contours(axes, surface: Surface) -> None:
    (left, right), (low, high) = surface.view
    x, y = torch.linspace(left, right, 160), torch.linspace(low, high, 160)
    z = surface.height(*torch.meshgrid(x, y, indexing="xy"))
    levels = torch.linspace(0, z.max().sqrt().item(), 16).square().tolist()
    axes.contourf(x, y, z, levels=levels, cmap="Greys", alpha=0.35)
    axes.contour(x, y, z, levels=levels, colors=COLORS["predicted"], linewidths=0.6)
    axes.grid(False)
