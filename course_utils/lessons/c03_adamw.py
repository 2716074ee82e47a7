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
from course_utils.viz.parts import arrow, box, subplots
from course_utils.viz.style import COLORS, LINES, MARKS, SERIES, writing

GRADIENT_SCALES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
SIGNALS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Means of a gradient whose standard deviation is 1."""


def step_sizes(signals: Sequence[float], steps: int = 500, copies: int = 2000) -> torch.Tensor:
    """Adam's update over α, after `steps` steps: the root of its mean square, for each mean of a gradient with noise of 1."""
    theta = torch.zeros(len(signals), copies, dtype=torch.float64)
    stepping, generator = Adam([theta], lr=1.0), torch.Generator().manual_seed(0)
    for _ in range(steps):
        before = theta.clone()
        noise = torch.randn(theta.shape, dtype=torch.float64, generator=generator)
        theta.grad = torch.tensor(signals, dtype=torch.float64)[:, None] + noise
        stepping.step()
    return (theta - before).square().mean(1).sqrt()


def predicted_step_size(signal: float, beta1: float = 0.9) -> float:
    """The same from the weights of the first average: their squares add up to (1 − β₁) / (1 + β₁), which is 1/19 by default."""
    return sqrt((signal**2 + (1 - beta1) / (1 + beta1)) / (signal**2 + 1))


def left_after_noise(
    optimizer: Callable, scales: Sequence[float], steps: int, pairs: int = 500, seed: int = 0
) -> torch.Tensor:
    """What weight decay alone leaves of parameters that start at 1: one mean value per gradient scale.

    `optimizer` is called with a list of parameters. Gradients are normal noise of each scale, every draw used once with
    each sign so that it cancels in the mean and only the decay is left.
    """
    theta = torch.ones(len(scales), 2 * pairs, dtype=torch.float64)
    stepping = optimizer([theta])
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        noise = torch.randn(len(scales), pairs, dtype=torch.float64, generator=generator)
        theta.grad = torch.cat([noise, -noise], 1) * torch.tensor(scales)[:, None]
        stepping.step()
    return theta.mean(1)


def predicted_left_l2(scales: Sequence[float], steps: int, lr: float, weight_decay: float) -> torch.Tensor:
    """The same for L2 inside Adam's gradient: Adam on the means of g and g², which are λθ and σ² + λ²θ²."""
    theta, sigma = torch.ones(len(scales), dtype=torch.float64), torch.tensor(scales, dtype=torch.float64)
    m = v = torch.zeros_like(theta)
    for t in range(1, steps + 1):
        m = 0.9 * m + 0.1 * weight_decay * theta
        v = 0.999 * v + 0.001 * (sigma**2 + (weight_decay * theta) ** 2)
        theta = theta - lr * m / (1 - 0.9**t) / (v / (1 - 0.999**t)).sqrt()
    return theta


def model_with_text(tokens: int) -> tuple:
    """DistilBERT-base and one text of that many tokens: what `forward_backward` takes."""
    device = settings().device
    ids = torch.ones(1, tokens, dtype=torch.long, device=device)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.ones_like(ids[:, 0])}
    return models.distilbert_base().to(device), batch


def forward_backward(model: torch.nn.Module, batch: dict) -> None:
    """A step without its update."""
    model.zero_grad()
    model(**batch).loss.backward()


class Cost(NamedTuple):
    """Seconds of a piece of work, predicted and measured; the bytes that its operators move, and those of them to new memory."""

    predicted: float
    measured: float
    moved: int
    new: int = 0


def predict_and_time(build: Callable, step: Callable, machine: Machine) -> Cost:
    """`step(*build())` on `machine`: from the count of its operators, and by the clock."""
    parts = build()
    step(*parts)  # the optimizer's state is born
    thought = memory.predict_seconds(build, step, machine)
    moved, new = (sum(getattr(one.work, kind) for one in thought.operators) for kind in ("bytes", "new"))
    return Cost(thought.seconds, seconds_of(lambda: step(*parts)), moved, new)


def decay_paths_figure() -> tuple[Figure, str]:
    """The idea in numbers: of two parameters at 1 with λ = 0.001, one has gradients of about 0.01, the other of about 100."""
    figure, panels = subplots(2, 1, figsize=(7.6, 4.6), layout="constrained")
    titles = (
        "L2 inside Adam: the decay is divided, and 0.001 α becomes 0.1 α or 0.00001 α",
        "AdamW: the decay goes around the division, and stays 0.001 α",
    )
    _draw_flow(panels[0], titles[0], "second", joins=0, loses=("0.1", "0.00001"))
    _draw_flow(panels[1], titles[1], "first", joins=2, loses=("0.001", "0.001"))
    return figure, (
        "Two flow charts, each from gradients over a division to what a parameter loses, for gradients of about 0.01 and of "
        "about 100. In the upper one the decay of 0.001 joins the gradient: divided by 0.01 it takes 0.1 α, divided by 100 "
        "0.00001 α. In the lower one it goes to the parameter directly, and takes 0.001 α from both."
    )


_STATIONS = (0.16, 0.5, 0.86)


def _draw_flow(axes: Axes, title: str, color: str, joins: int, loses: tuple[str, str]) -> None:
    for y, size, lost in zip((0.62, 0.12), ("0.01", "100"), loses, strict=True):
        texts = f"gradients of ± {size}", f"÷ √v̂ = {size}", f"θ: decay takes {lost} α"
        stations = [box(axes, x, y, text) for x, text in zip(_STATIONS, texts, strict=True)]
        for start, end in zip(stations[:-1], stations[1:], strict=True):
            arrow(axes, start, end)
        source = box(axes, _STATIONS[joins], y + 0.27, "decay λθ = 0.001", color)
        arrow(axes, source, stations[joins], color)
    axes.set(xlim=(0, 1), ylim=(0, 1), title=title)
    axes.axis("off")


def step_size_figure() -> tuple[Figure, str]:
    """The size of Adam's step against the gradient's mean, in units of its noise."""
    measured = step_sizes(SIGNALS).tolist()
    grid = np.geomspace(SIGNALS[0], SIGNALS[-1], 200)
    figure, axes = subplots(figsize=(7.6, 3.4), layout="constrained")
    axes.plot(grid, [predicted_step_size(signal) for signal in grid], color=COLORS["predicted"])
    axes.plot(SIGNALS, measured, "o", color=COLORS["measured"])
    axes.set(xscale="log", ylim=(0, 1.1), xlabel="mean of the gradient / its standard deviation")
    axes.set(
        ylabel="step / α, root mean square", title="Adam steps by 0.23 α on pure noise, by α where gradients agree"
    )
    axes.set_xticks(SIGNALS, [f"{signal:g}" for signal in SIGNALS])
    axes.minorticks_off()
    axes.text(0.011, 0.3, "noise alone: √(1/19) = 0.23")
    axes.text(10, 1.03, "all gradients agree: 1", ha="right")
    axes.text(0.45, 0.38, "predicted", color=writing("predicted"))
    axes.text(0.24, 0.45, "measured", color=writing("measured"), ha="right")
    pairs = ", ".join(f"{signal:g}: {size:.2f}" for signal, size in zip(SIGNALS, measured, strict=True))
    apart = max(abs(predicted_step_size(x) - y) for x, y in zip(SIGNALS, measured, strict=True))
    return figure, (
        f"Adam's step over α against the gradient's mean over its standard deviation. Measured {pairs}. "
        f"No point is farther than {apart:.2g} from the predicted curve."
    )


def decay_figure(lr: float = 0.01, weight_decay: float = 0.1, steps: int = 500) -> tuple[Figure, str]:
    """Where Adam with L2 and AdamW part: what is left of a parameter against the scale of its gradients."""
    options = {"lr": lr, "weight_decay": weight_decay}
    l2 = left_after_noise(lambda p: Adam(p, **options), GRADIENT_SCALES, steps)
    decoupled = left_after_noise(lambda p: AdamW(p, **options), GRADIENT_SCALES, steps)
    grid = np.geomspace(GRADIENT_SCALES[0], GRADIENT_SCALES[-1], 121).tolist()
    figure, axes = subplots(figsize=(7.6, 3.8), layout="constrained")
    axes.plot(grid, predicted_left_l2(grid, steps, **options), color=COLORS["predicted"], label="predicted")
    axes.axhline((1 - lr * weight_decay) ** steps, color=COLORS["predicted"])
    axes.plot(GRADIENT_SCALES, l2, "s", color=COLORS["second"], label="Adam with L2, measured")
    axes.plot(GRADIENT_SCALES, decoupled, "o", color=COLORS["first"], label="AdamW, measured")
    axes.set(xscale="log", xlabel="scale σ of the parameter's gradients", ylim=(-0.05, 1.1))
    axes.set(ylabel=f"left of θ = 1 after {steps} steps")
    axes.set_title(f"AdamW leaves {decoupled.mean():.0%} at every scale, L2 from {l2.min():z.0%} to {l2.max():.0%}")
    figure.legend(loc="outside upper center", ncols=3, title=f"α = {lr:.3g}, λ = {weight_decay:.3g}")
    return figure, (
        f"What weight decay leaves of a parameter after {steps} steps, against the scale of its gradients from 0.01 to 100. "
        f"AdamW leaves {decoupled.min():.2f} to {decoupled.max():.2f} at every scale; "
        f"Adam with L2 leaves {l2[0]:z.2f} at the smallest scale and {l2[-1]:.2f} at the largest."
    )


def seconds_figure(passes: Mapping[int, Cost], updates: Mapping[str, Cost]) -> tuple[Figure, str]:
    """Forward and backward pass against the tokens of a text, predicted and measured; `updates` are lines across."""
    tokens = list(passes)
    predicted, measured = ([1000 * getattr(one, kind) for one in passes.values()] for kind in ("predicted", "measured"))
    figure, axes = subplots(figsize=(7.6, 3.6), layout="constrained")
    axes.plot(tokens, predicted, color=COLORS["predicted"])
    axes.plot(tokens, measured, "o", color=COLORS["measured"])
    axes.annotate("forward and backward", (tokens[-1], measured[-1]), (-10, 0), "data", "offset points",
                  ha="right", va="center", color=writing("measured"))  # fmt: skip
    for color, line, (name, one) in zip(("second", "third"), LINES, updates.items(), strict=False):
        axes.axhline(1000 * one.measured, color=COLORS[color], linestyle=line)
        axes.text(2, 1000 * one.measured, f"update, {name}", color=writing(color), va="bottom")
    name, longest = max(updates.items(), key=lambda pair: pair[1].measured)
    as_long = np.interp(1000 * longest.measured, measured, tokens)
    about = {tokens[0]: "less than", tokens[-1]: "more than"}.get(as_long, "about")
    axes.set(xlim=(0, 1.05 * tokens[-1]), ylim=(0, None), xlabel="tokens of the text", ylabel="milliseconds")
    axes.set_title(f"One update, {name}, takes as long as the passes over {about} {as_long:.0f} tokens")
    axes.set_xticks(tokens)
    dots = ", ".join(f"{n} tokens {p:.0f} and {m:.0f} ms" for n, p, m in zip(tokens, predicted, measured, strict=True))
    lines = ", ".join(f"{name} {1000 * one.measured:.0f} ms" for name, one in updates.items())
    return figure, f"Forward and backward pass, predicted and measured: {dots}. Updates, measured: {lines}."


def validation_figure(runs: Mapping[str, Sequence[History]]) -> tuple[Figure, str]:
    """Training and validation loss at the end of each epoch: mean and range over the runs of each name."""
    figure, panels = subplots(1, 2, figsize=(7.6, 3.8), layout="constrained", sharey=True)
    ends, ranges = {}, []
    for number, (name, histories) in enumerate(runs.items()):
        held_out = np.array([[one["loss"] for one in history.evaluations] for history in histories])
        losses = np.array([history.losses for history in histories])
        trained = losses.reshape(len(histories), held_out.shape[1], -1).mean(2)
        epochs = 1 + np.arange(held_out.shape[1])
        look = {"color": COLORS[SERIES[number]], "linestyle": LINES[number], "marker": MARKS[number], "markersize": 4}
        for panel, values in zip(panels, (trained, held_out), strict=True):
            panel.fill_between(epochs, values.min(0), values.max(0), color=look["color"], alpha=0.2, linewidth=0)
            panel.plot(epochs, values.mean(0), **look)
        ends[name] = held_out[:, -1].mean()
        look = {"color": writing(SERIES[number]), "textcoords": "offset points", "va": "center"}
        panels[1].annotate(name, (epochs[-1], ends[name]), xytext=(8, 0), **look)
        ranges.append(
            f"{name} ends at {trained[:, -1].mean():.2f} in training and at {ends[name]:.2f} "
            f"({held_out[:, -1].min():.2f} to {held_out[:, -1].max():.2f}) in validation"
        )
    for panel, title in zip(panels, ("texts trained on", "texts held out"), strict=True):
        panel.set(title=title, xlabel="epoch", ylim=(0, None), xticks=epochs)
    panels[0].set(ylabel="loss")
    panels[1].set(xlim=(None, 1.25 * epochs[-1]))
    above = " and ".join(f"at {end:.2f} with {name}" for name, end in ends.items())
    figure.suptitle(f"On texts held out the loss ends {above}", x=0.01, ha="left", fontsize=11)
    return figure, f"Loss by epoch, mean and range over {len(next(iter(runs.values())))} seeds: {'; '.join(ranges)}."


def correction_figure(measured: Sequence[float], betas: tuple[float, float]) -> tuple[Figure, str]:
    """Size of an update without bias correction over its right size α: `measured` from step 1 on, and the closed form's curve."""
    steps = torch.arange(1, len(measured) + 1, dtype=torch.float64)
    predicted = (1 - betas[0] ** steps) / (1 - betas[1] ** steps).sqrt()
    figure, axes = subplots(layout="constrained")
    axes.plot(steps, predicted, color=COLORS["predicted"], label="predicted: (1 − β₁ᵗ) / √(1 − β₂ᵗ)")
    axes.plot(steps, measured, ".", color=COLORS["second"], label="measured")
    axes.axhline(1, color=COLORS["first"], linestyle="--")
    axes.text(1, 1.1, "with bias correction", color=writing("first"))
    axes.set(xscale="log", xlabel="step t", ylabel="update / α", ylim=(0, None))
    axes.legend()
    largest, apart = max(measured), (predicted - torch.tensor(measured)).abs().max().item()
    at = measured.index(largest) + 1, largest
    axes.set_title(f"Without the correction, updates are up to {largest:.1f} times too large")
    axes.annotate(f"{largest:.2f} at step {at[0]}", at, xytext=(0, -34), textcoords="offset points", ha="center")
    return figure, (
        f"Update size without bias correction relative to α: {measured[0]:.2f} at step 1, a largest value of {largest:.2f} "
        f"at step {measured.index(largest) + 1}, {measured[-1]:.2f} at step {len(measured)}. "
        f"No point is farther than {apart:.2g} from the predicted curve."
    )
