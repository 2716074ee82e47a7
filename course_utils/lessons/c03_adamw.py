"""Chapter 03: how large Adam's steps are, what weight decay leaves and buys, what an update costs, and the chapter's figures."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
from course_utils.viz.parts import draw_arrow, draw_box, hide_axes
from course_utils.viz.plots import lines, panels, panels_of_lines
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
    return Timing(
        prediction.seconds, measured, sum(work.bytes for work in works), sum(work.new_bytes for work in works)
    )


def decay_paths_figure() -> tuple[Figure, str]:
    """The idea in numbers: of two parameters at 1 with λ = 0.001, one has gradients of about 0.01, the other of about 100."""
    figure, (above, below) = panels(2, 1, height=4.6)
    l2_title = "L2 inside Adam: the decay is divided, and 0.001 α becomes 0.1 α or 0.00001 α"
    _draw_flow(above, l2_title, "second", joins=0, loses=("0.1", "0.00001"))
    _draw_flow(below, "AdamW: the decay goes around the division, and stays 0.001 α", "first", 3, ("0.001", "0.001"))
    return figure, (
        "Two flow charts from gradients of 0.01 and of 100 to what a parameter loses. In the upper one a decay of 0.001 joins "
        "them: divided by 0.01 it takes 0.1 α, divided by 100 0.00001 α. In the lower one it takes 0.001 α from both."
    )


_STATIONS = (0.11, 0.355, 0.6, 0.87)


def _draw_flow(axes: Axes, title: str, color: str, joins: int, loses: tuple[str, str]) -> None:
    for y, size, decay in zip((0.62, 0.12), ("0.01", "100"), loses, strict=True):
        texts = f"gradients of ± {size}", "averages m, v", f"divided by √v̂,\nhere {size}", f"θ: decay takes {decay} α"
        stations = [draw_box(axes, x, y, text) for x, text in zip(_STATIONS, texts, strict=True)]
        for start, end in zip(stations[:-1], stations[1:], strict=True):
            draw_arrow(axes, start, end)
        source = draw_box(axes, _STATIONS[joins], y + 0.27, "decay λθ = 0.001", color)
        draw_arrow(axes, source, stations[joins], color)
    hide_axes(axes, title=title)


def decay_figure(lr: float = 0.01, weight_decay: float = 0.1, steps: int = 500) -> tuple[Figure, str]:
    """Where Adam with L2 and AdamW part: what is left of a parameter against the scale of its gradients."""
    options = {"lr": lr, "weight_decay": weight_decay}
    decoupled, l2 = (left_after_noise(partial(kind, **options), GRADIENT_SCALES, steps) for kind in (AdamW, Adam))
    grid = np.geomspace(GRADIENT_SCALES[0], GRADIENT_SCALES[-1], 121).tolist()
    data = {
        "AdamW": zip(GRADIENT_SCALES, decoupled, strict=True),
        "Adam with L2": zip(GRADIENT_SCALES, l2, strict=True),
    }
    curve = zip(grid, predicted_left_l2(grid, steps, **options), strict=True)
    predicted = {"AdamW": dict.fromkeys(grid, (1 - lr * weight_decay) ** steps), "Adam with L2": curve}
    title = f"AdamW leaves {decoupled.mean():.0%} at every scale, L2 from {l2.min():z.0%} to {l2.max():.0%}"
    x, y = "scale σ of the parameter's gradients", f"left of θ = 1 after {steps} steps"
    return lines(data, title, x, y, log="x", predicted=predicted, number="z.2f")


def validation_figure(runs: Mapping[str, Sequence[History]]) -> tuple[Figure, str]:
    """Training and validation loss at the end of each epoch: mean and range over the runs of each name."""
    training, held_out = {}, {}
    for name, histories in runs.items():
        evaluated = np.array([[evaluation["loss"] for evaluation in history.evaluations] for history in histories])
        losses = np.array([history.losses for history in histories])
        by_epoch = losses.reshape(len(histories), evaluated.shape[1], -1).mean(2)
        training[name], held_out[name] = (list(enumerate(values.T, 1)) for values in (by_epoch, evaluated))
    data = {"texts trained on": training, "texts held out": held_out}
    ends = [f"at {line[-1][1].mean():.2f} with {name}" for name, line in held_out.items()]
    title = f"On texts held out the loss ends {' and '.join(ends)}"
    return panels_of_lines(data, title, "epoch", "loss", number=".2f", texts=[seeds_of(len(histories))])
