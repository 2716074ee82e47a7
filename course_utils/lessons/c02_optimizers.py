"""Chapter 02: loss surfaces and paths over them, experiments with steps and noise, and the chapter's figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import log, sqrt

import torch
from matplotlib.figure import Figure

from course_utils.optim import SGD, AdaGrad, Adam, Momentum, Nesterov, RMSProp, schedules
from course_utils.settings import settings
from course_utils.viz.labels import TEXT_GROUND, note
from course_utils.viz.parts import draw_arrow, draw_box, hide_axes
from course_utils.viz.plots import add_title, lines, panels
from course_utils.viz.style import COLORS, SERIES, text_color

Make = Callable[[list[torch.Tensor]], torch.optim.Optimizer]
"""A function that makes an optimizer of a list of one parameter."""


@dataclass(frozen=True)
class Surface:
    """A loss of x and y, whose lowest value is 0, and where to look at paths over it."""

    name: str
    height: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    start: tuple[float, float]
    view: tuple[tuple[float, float], tuple[float, float]]  # the ranges of x and y
    noise: float = 0.0  # standard deviation of what is added to each entry of a gradient, as a random batch would


def _ravine(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x**2 + 50 * y**2) / 2


def _turn_ravine(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return _ravine((x + y) / sqrt(2), (y - x) / sqrt(2))


def _saddle(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x**2 - y**2) / 2 + y**4 / 4 + 1 / 4


def _bowl(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x**2 + y**2) / 2


RAVINE = Surface("ravine", _ravine, (-4.0, 1.0), ((-5.0, 2.0), (-2.0, 2.0)))
# The ravine and its start, turned by 45°.
TURNED_RAVINE = Surface("turned ravine", _turn_ravine, (-5 / sqrt(2), -3 / sqrt(2)), ((-5.0, 2.0), (-4.0, 2.0)))
SADDLE = Surface("saddle", _saddle, (1.5, 0.01), ((-1.0, 2.0), (-0.5, 1.5)))
BOWL = Surface("noisy bowl", _bowl, (3.0, 2.0), ((-1.5, 3.5), (-1.5, 2.5)), noise=1.0)
RATES = [10 ** (k / 10) for k in range(-30, 11, 5 if settings().scale.name == "smoke" else 1)]
"""Learning rates to choose from, ten in each factor of ten; two at the smoke scale."""
SURFACES = {surface.name: surface for surface in (RAVINE, TURNED_RAVINE, SADDLE, BOWL)}


def follow_path(
    make_optimizer: Make, surface: Surface, steps: int, start: tuple[float, float] | None = None, seed: int = 0
) -> torch.Tensor:
    """Where an optimizer goes: a float64 tensor of shape (steps + 1, 2), the start included."""
    theta = torch.tensor(start or surface.start, dtype=torch.float64, requires_grad=True)
    optimizer = make_optimizer([theta])
    generator = torch.Generator().manual_seed(seed)
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


def fewest_steps(
    make_optimizer: Callable, surface: Surface, steps: int = 1000, share: float = 1e-4, rates: Sequence[float] = RATES
) -> tuple[int, float]:
    """Updates until the loss stays below `share` of its start up to update `steps`, at the best of `rates`; and that rate.

    It is `steps` where no rate gets there. `make_optimizer(groups, rate)` returns an optimizer. All rates run at once, each as a
    group of one parameter.
    """
    places = [torch.tensor(surface.start, dtype=torch.float64) for _ in rates]
    groups = [{"params": [place], "lr": rate} for place, rate in zip(places, rates, strict=True)]
    optimizer = make_optimizer(groups, rates[0])
    limit = share * surface.height(*places[0]).item()
    last_above = torch.zeros(len(rates), dtype=torch.long)  # the last update before which the loss was too high
    for t in range(1, steps + 1):
        points = torch.stack(places).requires_grad_()
        losses = surface.height(*points.T)
        (gradients,) = torch.autograd.grad(losses.sum(), points)
        last_above[~(losses <= limit)] = t
        for place, gradient in zip(places, gradients, strict=True):
            place.grad = gradient
        optimizer.step()
    best = last_above.argmin().item()
    return last_above[best].item(), rates[best]


def steps_to_shrink(make_optimizer: Make, curvature: float, share: float, max_steps: int = 100_000) -> int | None:
    """Updates until (x, y) = (1, 1) has shrunk to `share` of its length on the loss (x² + `curvature`·y²) / 2, for good.

    None where `max_steps` updates do not suffice.
    """
    theta = torch.ones(2, dtype=torch.float64)
    bends = torch.tensor([1.0, curvature], dtype=torch.float64)
    optimizer = make_optimizer([theta])
    target = share * 2**0.5
    first_step = None
    for t in range(1, max_steps + 1):
        theta.grad = bends * theta
        optimizer.step()
        is_short = theta.norm().item() <= target
        first_step = (first_step or t) if is_short else None
        if first_step and t >= 2 * first_step:  # and it did not swing out again
            return first_step
    return first_step


def predicted_steps(curvature: float, share: float) -> dict[str, int]:
    """`steps_to_shrink` as closed forms, for the textbook constants of gradient descent, momentum and Nesterov.

    From (1, 1): gradient descent is at dᵗ and (−d)ᵗ, with d = (κ − 1)/(κ + 1); momentum at (1 + (1 − ρ)t)ρᵗ and
    (1 + (1 + ρ)t)(−ρ)ᵗ, with ρ = (√κ − 1)/(√κ + 1); Nesterov at (1 + qt/(1 + q))(1 − q)ᵗ, with q = 1/√κ, and from t = 2 on at 0.
    """
    d = (curvature - 1) / (curvature + 1)
    q = 1 / sqrt(curvature)
    r = (1 - q) / (1 + q)
    t = torch.arange(2, int(4 * curvature * log(1 / share)), dtype=torch.float64)
    places = {
        "descent": (d**t, d**t),
        "momentum": ((1 + (1 - r) * t) * r**t, (1 + (1 + r) * t) * r**t),
        "Nesterov": ((1 + q * t / (1 + q)) * (1 - q) ** t, 0 * t),
    }
    masks = {name: torch.hypot(x, y) > share * sqrt(2) for name, (x, y) in places.items()}
    return {name: int(t[mask].max()) + 1 for name, mask in masks.items()}


def update_sizes(make_optimizer: Make, steps: int) -> list[float]:
    """How far each of the first `steps` updates moves a parameter whose gradient is always 1."""
    theta = torch.zeros(1, dtype=torch.float64)
    sizes = []
    optimizer = make_optimizer([theta])
    for _ in range(steps):
        before = theta.item()
        theta.grad = torch.ones_like(theta)
        optimizer.step()
        sizes.append(abs(before - theta.item()))
    return sizes


def gradient_variance(model: torch.nn.Module, examples: dict, batch_size: int, draws: int, seed: int = 0) -> float:
    """The variance of the gradient of a random batch, summed over all parameters, from so many `draws` of it.

    `examples` is one large batch, from which each batch is drawn with replacement; the model answers with a `.loss`, a mean
    over examples. It is (Σ‖g‖² − ‖Σg‖²/n) / (n − 1), so that no more than one gradient and a sum are kept.
    """
    generator = torch.Generator().manual_seed(seed)
    parameters = [p for p in model.parameters() if p.requires_grad]
    sums = [torch.zeros_like(p) for p in parameters]
    squares = 0.0
    count = len(next(iter(examples.values())))
    for _ in range(draws):
        indices = torch.randint(count, (batch_size,), generator=generator)
        loss = model(**{name: values[indices].to(parameters[0].device) for name, values in examples.items()}).loss
        for total, gradient in zip(sums, torch.autograd.grad(loss, parameters), strict=True):
            total += gradient
            squares += gradient.square().sum().item()
    return (squares - sum(total.square().sum().item() for total in sums) / draws) / (draws - 1)


def gradient_sizes(model: torch.nn.Module, batch: dict) -> dict[str, float]:
    """The root of the mean square of each parameter tensor's gradient for one batch, by name."""
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad(model(**batch).loss, list(parameters.values()))
    return {name: g.square().mean().sqrt().item() for name, g in zip(parameters, gradients, strict=True)}


def settled_variance(make_optimizer: Make, steps: int = 400, factor: Callable[[int], float] | None = None) -> float:
    """How widely parameters scatter about their minimum 0 on the loss θ²/2 when each gradient carries noise of variance 1.

    The optimizer's one parameter holds 20,000 independent ones; `factor(step)`, where given, multiplies its learning rate.
    """
    theta = torch.zeros(20_000, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    optimizer = make_optimizer([theta])
    rate = optimizer.param_groups[0]["lr"]
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * (factor(step) if factor else 1)
        theta.grad = theta + torch.randn(len(theta), dtype=torch.float64, generator=generator)
        optimizer.step()
    return theta.var().item()


def predicted_variance(lr: float, momentum: float = 0.0) -> float:
    """`settled_variance` as a closed form for SGD: α (1 + μ) / ((1 − μ)(2(1 + μ) − α)), which is near α / (2(1 − μ)) for small α.

    It is the fixed point of the covariance of (θ, b) under b ← μb + θ + noise, θ ← θ − αb.
    """
    return lr * (1 + momentum) / ((1 - momentum) * (2 * (1 + momentum) - lr))


# The axis of losses ends here.
_LOWEST = 1e-12

STEERED_OPTIMIZERS = {
    "gradient descent": lambda p, lr, beta1, beta2: SGD(p, lr),
    "momentum": lambda p, lr, beta1, beta2: Momentum(p, lr, momentum=beta1),
    "Nesterov": lambda p, lr, beta1, beta2: Nesterov(p, lr, momentum=beta1),
    "AdaGrad": lambda p, lr, beta1, beta2: AdaGrad(p, lr),
    "RMSProp": lambda p, lr, beta1, beta2: RMSProp(p, lr, alpha=beta2),
    "Adam": lambda p, lr, beta1, beta2: Adam(p, lr, betas=(beta1, beta2)),
}
"""Optimizers by name, made from parameters, α, β₁ (μ for momentum) and β₂ (β for RMSProp)."""


def paths_figure(surface: Surface, paths: Mapping[str, torch.Tensor], title: str) -> tuple[Figure, str]:
    """Paths over a surface, and beside them the loss against steps; `title` says what they show."""
    figure, (plan, curve) = panels(1, 2, height=3.6)
    xlim, ylim = surface.view
    x, y = torch.meshgrid(torch.linspace(*xlim, 160), torch.linspace(*ylim, 160), indexing="xy")
    z = surface.height(x, y)
    levels = torch.linspace(0, z.max().sqrt().item(), 16).square().tolist()
    plan.contour(x, y, z, levels=levels, colors=COLORS["predicted"], linewidths=0.6)
    plan.grid(False)
    plan.set(title=f"paths over the {surface.name}", xlabel="x", ylabel="y", xlim=xlim, ylim=ylim, aspect="equal")
    for places, color in zip(paths.values(), SERIES, strict=False):
        plan.plot(*places.T, ".-", color=COLORS[color], markersize=4)
    losses = {name: enumerate(heights(surface, places).clamp(min=_LOWEST)) for name, places in paths.items()}
    lines(losses, "loss against steps", y="loss (log)", log="y", labels="legend", axes=curve)
    return add_title(figure, title, f"Paths over the {surface.name}.")


def steering_figure(
    surface: str, optimizer: str, lr: float, beta1: float, beta2: float, nearer: float = 1.0, steps: int = 60
) -> tuple[Figure, str]:
    """One optimizer of `STEERED_OPTIMIZERS` on one of `SURFACES`, from its start with y multiplied by `nearer`."""
    landscape = SURFACES[surface]
    x, y = landscape.start
    make = partial(STEERED_OPTIMIZERS[optimizer], lr=lr, beta1=beta1, beta2=beta2)
    places = follow_path(make, landscape, steps, start=(x, nearer * y))
    before, after = heights(landscape, places)[[0, -1]].tolist()
    return paths_figure(landscape, {optimizer: places}, f"{steps} steps take the loss from {before:.2g} to {after:.2g}")


def linear(step: int, total: int, warmup: int = 0) -> float:
    """A warm-up, then a line down to 0 at update `total` (Transformers' `get_linear_schedule_with_warmup`)."""
    return schedules.warm_up(step, warmup) if step < warmup else max(0.0, (total - step) / (total - warmup))


def schedules_figure(total: int = 100, warmup: int = 10) -> tuple[Figure, str]:
    """Three schedules over `total` updates as factors on α."""
    factors = {
        "inverse square root": partial(schedules.inverse_sqrt, warmup=warmup),
        "linear": partial(linear, total=total, warmup=warmup),
        "cosine": partial(schedules.cosine, total=total, warmup=warmup),
    }
    data = {name: {step: factor(step) for step in range(total + 1)} for name, factor in factors.items()}
    return lines(data, "Linear and cosine end at zero", "update", "factor on α")


def noise_figure(sizes: Sequence[int], measurements: Sequence[Sequence[float]]) -> tuple[Figure, str]:
    """Variance of a batch's gradient against the batch's size, and the line through the first mean that falls as 1 / size."""
    first = sizes[0] * sum(measurements[0]) / len(measurements[0])
    data = {"variance": dict(zip(sizes, measurements, strict=True))}
    predicted = {"variance": {size: first / size for size in sizes}}
    x, y = "batch size (log)", "variance of the gradient (log)"
    return lines(data, "Twice the batch, half the variance", x, y, log="xy", predicted=predicted)


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
    ("RMSProp", "Adam", ""),
)


def family_figure() -> tuple[Figure, str]:
    """The optimizers of the course, each with what it adds to the one before."""
    figure, axes = panels(height=2.7)
    boxes = {name: draw_box(axes, x, y, name, color, fontsize=10) for name, (x, y, color) in _MEMBERS.items()}
    for start, end, added in _STEPS:
        draw_arrow(axes, boxes[start], boxes[end])
        (left, low), (right, high) = (boxes[name].get_position() for name in (start, end))
        note(axes, added, ((left + right) / 2, (low + high) / 2), (0, 0), fontsize=8.5, bbox=TEXT_GROUND)
    axes.text(0.92, 0.34, "average both,\ncorrect the start", ha="center", va="top", fontsize=8.5)
    axes.text(0.51, 1.0, "a better direction", ha="center", color=text_color("first"))
    axes.text(0.51, -0.05, "a step size for each parameter", ha="center", color=text_color("second"))
    hide_axes(axes, ylim=(-0.1, 1.1))
    steps = "; ".join(f"{a} to {b}: {c}".replace("\n", " ") for a, b, c in _STEPS if c)
    return figure, f"A family tree of optimizers. {steps}; both branches to Adam: average both, correct the start."
