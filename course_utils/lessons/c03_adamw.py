"""Chapter 03: how large Adam's steps are, what weight decay leaves and buys, what an update costs, and the chapter's figures."""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_utils import memory, models
from course_utils.hardware import Machine
from course_utils.hardware.calibration import seconds_of
from course_utils.optim import Adam, AdamW
from course_utils.settings import settings
from course_utils.training import History
from course_utils.viz.parts import arrow, box, drawing
from course_utils.viz.plots import add_title, lines, panels
from course_utils.viz.words import seeds_of

GRADIENT_SCALES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
SIGNALS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Means of a gradient whose standard deviation is 1."""


def step_sizes(signals: Sequence[float], steps: int = 500) -> torch.Tensor:
    """Adam's update over α, after `steps` steps: the root of its mean square, for each mean of a gradient with noise of 1."""
    theta = torch.zeros(len(signals), 2000, dtype=torch.float64)
    optimizer = Adam([theta], lr=1.0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        before = theta.clone()
        noise = torch.randn(theta.shape, dtype=torch.float64, generator=generator)
        theta.grad = torch.tensor(signals, dtype=torch.float64)[:, None] + noise
        optimizer.step()
    return (theta - before).square().mean(1).sqrt()


def predicted_step_size(signal: float) -> float:
    """One of `step_sizes` from the first average's weights, whose squares add up to (1 − β₁) / (1 + β₁): 1/19 with β₁ = 0.9."""
    return sqrt((signal**2 + 1 / 19) / (signal**2 + 1))


def left_after_noise(
    make_optimizer: Callable, scales: Sequence[float], steps: int, pairs: int = 500, seed: int = 0
) -> torch.Tensor:
    """What weight decay alone leaves of parameters that start at 1: one mean value per gradient scale.

    `make_optimizer` is called with a list of parameters. Gradients are normal noise of each scale, every draw used once with
    each sign so that it cancels in the mean and only the decay is left.
    """
    theta = torch.ones(len(scales), 2 * pairs, dtype=torch.float64)
    optimizer = make_optimizer([theta])
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        noise = torch.randn(len(scales), pairs, dtype=torch.float64, generator=generator)
        theta.grad = torch.cat([noise, -noise], 1) * torch.tensor(scales)[:, None]
        optimizer.step()
    return theta.mean(1)


def predicted_left_l2(scales: Sequence[float], steps: int, lr: float, weight_decay: float) -> torch.Tensor:
    """What `left_after_noise` finds for L2 inside Adam's gradient: Adam on the means of g and g², which are λθ and σ² + λ²θ²."""
    sigma = torch.tensor(scales, dtype=torch.float64)
    theta = torch.ones_like(sigma)
    m = v = torch.zeros_like(theta)
    for t in range(1, steps + 1):
        m = 0.9 * m + 0.1 * weight_decay * theta
        v = 0.999 * v + 0.001 * (sigma**2 + (weight_decay * theta) ** 2)
        theta = theta - lr * m / (1 - 0.9**t) / (v / (1 - 0.999**t)).sqrt()
    return theta


def model_with_text(tokens: int) -> tuple[torch.nn.Module, dict]:
    """DistilBERT-base and one text of that many tokens: what `forward_backward` takes."""
    device = settings().device
    ids = torch.ones(1, tokens, dtype=torch.long, device=device)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.ones_like(ids[:, 0])}
    return models.distilbert_base().to(device), batch


def forward_backward(model: torch.nn.Module, batch: dict) -> None:
    """A step without its update."""
    model.zero_grad()
    model(**batch).loss.backward()


class Timing(NamedTuple):
    """Seconds of a piece of work, predicted and measured, and the bytes that its operators move; `new_bytes` go to new memory."""

    predicted: float
    measured: float
    bytes_moved: int
    new_bytes: int = 0


def predict_and_time(build: Callable, step: Callable, machine: Machine) -> Timing:
    """`step(*build())` on `machine`: from the count of its operators, and by the clock."""
    parts = build()
    step(*parts)  # the optimizer's state is created
    prediction = memory.predict_seconds(build, step, machine)
    works = [operator.work for operator in prediction.operators]
    measured = seconds_of(lambda: step(*parts))
    return Timing(prediction.seconds, measured, sum(work.bytes for work in works), sum(work.new_bytes for work in works))


def decay_paths_figure() -> tuple[Figure, str]:
    """The idea in numbers: of two parameters at 1 with λ = 0.001, one has gradients of about 0.01, the other of about 100."""
    figure, (above, below) = panels(2, 1, height=4.6)
    l2_title = "L2 inside Adam: the decay is divided, and 0.001 α becomes 0.1 α or 0.00001 α"
    adamw_title = "AdamW: the decay goes around the division, and stays 0.001 α"
    _draw_flow(above, l2_title, "second", joins=0, loses=("0.1", "0.00001"))
    _draw_flow(below, adamw_title, "first", joins=3, loses=("0.001", "0.001"))
    return figure, (
        "Two flow charts, each from gradients over two averages and a division to what a parameter loses, for gradients of "
        "about 0.01 and of about 100. In the upper one the decay of 0.001 joins the gradient: divided by 0.01 it takes "
        "0.1 α, divided by 100 0.00001 α. In the lower one it goes to the parameter directly, and takes 0.001 α from both."
    )


_STATIONS = (0.11, 0.355, 0.6, 0.87)


def _draw_flow(axes: Axes, title: str, color: str, joins: int, loses: tuple[str, str]) -> None:
    for y, size, decay in zip((0.62, 0.12), ("0.01", "100"), loses, strict=True):
        texts = f"gradients of ± {size}", "averages m, v", f"divided by √v̂,\nhere {size}", f"θ: decay takes {decay} α"
        stations = [box(axes, x, y, text) for x, text in zip(_STATIONS, texts, strict=True)]
        for start, end in zip(stations[:-1], stations[1:], strict=True):
            arrow(axes, start, end)
        source = box(axes, _STATIONS[joins], y + 0.27, "decay λθ = 0.001", color)
        arrow(axes, source, stations[joins], color)
    drawing(axes, title=title)


def step_size_figure() -> tuple[Figure, str]:
    """The size of Adam's step against the gradient's mean, in units of its noise."""
    grid = np.geomspace(SIGNALS[0], SIGNALS[-1], 200)
    data = {
        "predicted": {signal: predicted_step_size(signal) for signal in grid},
        "measured": dict(zip(SIGNALS, step_sizes(SIGNALS).tolist(), strict=True)),
    }
    title = "Adam steps by 0.23 α on pure noise, by α where gradients agree"
    x, y = "mean of the gradient / its standard deviation", "step / α, root mean square"
    styles = {"predicted": ("predicted", "-"), "measured": ("measured", "o")}
    levels = {"noise alone: √(1/19) = 0.23": sqrt(1 / 19), "all gradients agree: 1": 1}
    figure, alt = lines(data, title, x, y, log="x", styles=styles, levels=levels, number=".2f")
    largest_difference = max(abs(predicted_step_size(x) - y) for x, y in data["measured"].items())
    return figure, f"{alt} No point is farther than {largest_difference:.2g} from the predicted curve."


def decay_figure(lr: float = 0.01, weight_decay: float = 0.1, steps: int = 500) -> tuple[Figure, str]:
    """Where Adam with L2 and AdamW part: what is left of a parameter against the scale of its gradients."""
    options = {"lr": lr, "weight_decay": weight_decay}
    l2 = left_after_noise(lambda p: Adam(p, **options), GRADIENT_SCALES, steps)
    decoupled = left_after_noise(lambda p: AdamW(p, **options), GRADIENT_SCALES, steps)
    grid = np.geomspace(GRADIENT_SCALES[0], GRADIENT_SCALES[-1], 121).tolist()
    data = {
        "L2, predicted": zip(grid, predicted_left_l2(grid, steps, **options), strict=True),
        "Adam with L2": zip(GRADIENT_SCALES, l2, strict=True),
        "AdamW": zip(GRADIENT_SCALES, decoupled, strict=True),
    }
    styles = dict.fromkeys(("L2, predicted", "AdamW, predicted"), ("predicted", "-"))
    styles |= {"Adam with L2": ("second", "s"), "AdamW": ("first", "o")}
    levels = {"AdamW, predicted": (1 - lr * weight_decay) ** steps}
    title = f"AdamW leaves {decoupled.mean():.0%} at every scale, L2 from {l2.min():z.0%} to {l2.max():.0%}"
    title += f"; α = {lr:.3g}, λ = {weight_decay:.3g}"
    x, y = "scale σ of the parameter's gradients", f"left of θ = 1 after {steps} steps"
    return lines(data, title, x, y, log="x", styles=styles, levels=levels, number="z.2f")


def seconds_figure(passes: Mapping[int, Timing], updates: Mapping[str, Timing]) -> tuple[Figure, str]:
    """Forward and backward pass against the tokens of a text, predicted and measured; `updates` are lines across."""
    tokens = list(passes)
    data = {
        f"forward and backward, {kind}": {n: getattr(timing, kind) for n, timing in passes.items()}
        for kind in ("predicted", "measured")
    }
    predicted, measured = data
    name, longest = max(updates.items(), key=lambda pair: pair[1].measured)
    as_long = np.interp(longest.measured, list(data[measured].values()), tokens)
    relation = {tokens[0]: "less than", tokens[-1]: "more than"}.get(as_long, "about")
    styles = {predicted: ("predicted", "-"), measured: ("measured", "o-")}
    levels = {f"update, {name}": timing.measured for name, timing in updates.items()}
    title = f"One update, {name}, takes as long as the passes over {relation} {as_long:.0f} tokens"
    title += " (interpolated)" * (as_long not in passes)
    figure, alt = lines(data, "", "tokens of the text", "time", unit="seconds", styles=styles, levels=levels)
    return add_title(figure, title, alt)


def validation_figure(runs: Mapping[str, Sequence[History]]) -> tuple[Figure, str]:
    """Training and validation loss at the end of each epoch: mean and range over the runs of each name."""
    training, held_out = {}, {}
    for name, histories in runs.items():
        evaluated = np.array([[evaluation["loss"] for evaluation in history.evaluations] for history in histories])
        losses = np.array([history.losses for history in histories])
        by_epoch = losses.reshape(len(histories), evaluated.shape[1], -1).mean(2)
        training[name], held_out[name] = (list(enumerate(values.T, 1)) for values in (by_epoch, evaluated))
    figure, axes = panels(1, 2, height=3.8, sharey=True)
    _, left = lines(training, "texts trained on", "epoch", "loss", number=".2f", labels="none", axes=axes[0])
    _, right = lines(held_out, "texts held out", "epoch", "loss", number=".2f", axes=axes[1])
    above = " and ".join(f"at {line[-1][1].mean():.2f} with {name}" for name, line in held_out.items())
    title = f"On texts held out the loss ends {above}"
    return add_title(figure, title, left, right, seeds_of(len(runs[name])))


def correction_figure(measured: Sequence[float], betas: tuple[float, float]) -> tuple[Figure, str]:
    """Size of an update without bias correction over its right size α: `measured` from step 1 on, and the closed form's curve."""
    steps = torch.arange(1, len(measured) + 1, dtype=torch.float64)
    predicted = (1 - betas[0] ** steps) / (1 - betas[1] ** steps).sqrt()
    form, corrected = "predicted: (1 − β₁ᵗ) / √(1 − β₂ᵗ)", "with bias correction"
    data = {form: zip(steps, predicted, strict=True), "measured": zip(steps, measured, strict=True)}
    largest_difference = (predicted - torch.tensor(measured)).abs().max().item()
    title = f"Without the correction, updates are up to {max(measured):.1f} times too large"
    styles = {form: ("predicted", "-"), "measured": ("second", "."), corrected: ("first", "--")}
    levels = {corrected: 1}
    x, y = "step t", "update / α"
    figure, alt = lines(data, title, x, y, log="x", styles=styles, levels=levels, labels="legend", number=".2f")
    return figure, f"{alt} No point is farther than {largest_difference:.2g} from the predicted curve."
