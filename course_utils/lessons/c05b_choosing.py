"""Chapter 05b: the optimizers that are compared, each as it is commonly used, and the chapter's figures.

The learning rates are the best of a grid (`python -m benchmarks.learning_rates`), found with a seed that no comparison uses.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch
from matplotlib.figure import Figure
from torch import nn
from torch.utils.data import DataLoader

from course_utils import optim
from course_utils.optim import schedules
from course_utils.training import History, train
from course_utils.units import format_bytes
from course_utils.viz.memory import legend_of_kinds, stack
from course_utils.viz.parts import arrow, box, byte_unit, subplots
from course_utils.viz.style import COLORS, MARKS, SERIES

_DECAY = 0.01


@dataclass(frozen=True)
class Contender:
    """`make(model, lr)` gives the optimizer. With `cosine` the rate warms up over a tenth of the steps and then falls to 0."""

    make: Callable[[nn.Module, float], torch.optim.Optimizer]
    lr: float
    cosine: bool = True

    def at(self, lr: float) -> "Contender":
        """The same at another learning rate."""
        return replace(self, lr=lr)

    def factor(self, step: int, steps: int) -> float:
        """What the learning rate is multiplied by at `step`, counted from 1."""
        return schedules.cosine(step, steps + 1, warmup=steps // 10) if self.cosine else 1.0

    def train(self, model: nn.Module, batches: DataLoader, seed: int) -> History:
        """One epoch over `batches`."""
        optimizer, steps = self.make(model, self.lr), len(batches)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: self.factor(done + 1, steps))
        return train(model, optimizer, batches, schedule=schedule, seed=seed, progress=False)


def muon(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """Muon for the hidden matrices (Jordan et al. 2024), its rate matched to AdamW's (Liu et al. 2025); AdamW for the rest.

    Raises `AttributeError` before torch 2.9, which has no Muon.
    """
    hidden, others = optim.hidden_matrices(model)
    matrices = torch.optim.Muon(hidden, lr=lr, weight_decay=_DECAY, adjust_lr_fn="match_rms_adamw")
    return optim.ChainedOptimizer(matrices, optim.AdamW(others, lr=lr, weight_decay=0.0))


def contenders() -> dict[str, Contender]:
    """By name, those that this torch has; the years are when each was the usual choice."""
    decayed = optim.decay_groups
    found = {
        "2014: SGD, Nesterov": Contender(
            lambda model, lr: optim.Nesterov(model.parameters(), lr, momentum=0.9), 0.1, cosine=False
        ),
        "2018: Adam": Contender(lambda model, lr: optim.Adam(model.parameters(), lr=lr), 1e-3, cosine=False),
        "2022: AdamW, cosine": Contender(lambda model, lr: optim.AdamW(decayed(model, _DECAY), lr=lr), 3e-3),
        "2026: Muon": Contender(muon, 1e-2),
        "Adafactor": Contender(lambda model, lr: optim.Adafactor(decayed(model, 0.0), lr=lr), 0.1),
        "AdamW, 8 bits": Contender(lambda model, lr: optim.AdamW8bit(decayed(model, _DECAY), lr=lr), 3e-3),
    }
    return found if hasattr(torch.optim, "Muon") else {name: c for name, c in found.items() if c.make is not muon}


_QUESTIONS = (
    ("Do P, G and AdamW's O fit,\nwith room for A?", "AdamW\n(hidden matrices: try Muon)"),
    ("With O at a quarter?", "AdamW in 8 bits"),
    ("With next to no O?", "Adafactor"),
    ("And without G?", "Adafactor,\nupdated in backward"),
)
_NO_WAY_OUT = "shard the model over several devices,\ntrain adapters only, or a smaller model"


def decision_figure() -> tuple[Figure, str]:
    """Questions from the top down; the first "yes" names the optimizer."""
    figure, axes = subplots(figsize=(7.6, 4.6), layout="constrained")
    rows = [0.92 - 0.2 * i for i in range(len(_QUESTIONS) + 1)]
    questions = [box(axes, 0.3, y, question, "ink") for y, (question, _) in zip(rows, _QUESTIONS, strict=False)]
    questions.append(box(axes, 0.3, rows[-1], _NO_WAY_OUT, "warning"))
    for before, after in zip(questions[:-1], questions[1:], strict=True):
        _draw_answer(axes, before, after, "no", (0.03, 0))
    for question, y, (_, answer) in zip(questions[:-1], rows, _QUESTIONS, strict=False):
        _draw_answer(axes, question, box(axes, 0.8, y, answer, "first"), "yes", (0, 0.025))
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.axis("off")
    said = [f"{question} yes: {answer}" for question, answer in _QUESTIONS]
    text = f"A decision chart, from the top down. {'; no: '.join(said)}; no: {_NO_WAY_OUT}."
    return figure, text.replace("\n", " ")


def bytes_by_optimizer(
    parameters: int, state_bytes: Mapping[str, float], itemsize: int = 4, in_backward: bool = False
) -> tuple[Figure, str]:
    """Bars of P, G and O for a model of so many `parameters` of `itemsize` bytes.

    `state_bytes` are bytes of state for each parameter, by optimizer. With `in_backward` no gradient is kept.
    """
    kinds = {"parameters": parameters * itemsize, "gradients": 0 if in_backward else parameters * itemsize}
    bars = {name: {**kinds, "optimizer state": round(parameters * each)} for name, each in state_bytes.items()}
    totals = {name: sum(parts.values()) for name, parts in bars.items()}
    unit, size = byte_unit(max(totals.values()))
    figure, axes = subplots(figsize=(7.6, 1.2 + 0.5 * len(bars)), layout="constrained")
    for row, (name, parts) in enumerate(bars.items()):
        stack(axes, row, parts, size)
        axes.text(totals[name] / size, row, f"  {format_bytes(totals[name])}", va="center")
    axes.set(yticks=range(len(bars)), yticklabels=list(bars), xlabel=f"P + G + O, {unit}")
    axes.set(xlim=(0, 1.2 * max(totals.values()) / size), title=f"{parameters:,} parameters of {itemsize} bytes")
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    legend_of_kinds(figure, bars)
    said = "; ".join(f"{name} {format_bytes(total)}" for name, total in totals.items())
    return (
        figure,
        f"Parameters, gradients and optimizer state of a model of {parameters:,} parameters, by optimizer: {said}.",
    )


def _draw_answer(axes, start, end, label: str, beside: tuple[float, float]) -> None:
    """An arrow from a question, with the answer beside it."""
    arrow(axes, start, end)
    (x0, y0), (_, y1) = start.get_position(), end.get_position()
    # The middle between the boxes, which are wider than they are high.
    middle = (0.58 if y0 == y1 else x0) + beside[0], (y0 + y1) / 2 + beside[1]
    axes.text(*middle, label, ha="center", va="center", color=COLORS["ink"])


def losses_against_bytes(
    runs: Mapping[str, Sequence[History]], bytes_of: Mapping[str, int], what: str, last: int = 20
) -> tuple[Figure, str]:
    """Loss over the last `last` steps (median of the runs, least to most) against `bytes_of` each name, called `what`."""
    name_of_unit, unit = byte_unit(max(bytes_of.values()))
    figure, axes = subplots(layout="constrained")
    said = []
    for number, (name, histories) in enumerate(runs.items()):
        ends = [sum(history.losses[-last:]) / last for history in histories]
        x, y = bytes_of[name] / unit, median(ends)
        look = {"color": COLORS[SERIES[number]], "marker": MARKS[number], "capsize": 4}
        axes.errorbar(x, y, [[y - min(ends)], [max(ends) - y]], label=name, **look)
        said.append(f"{name} {format_bytes(bytes_of[name])}, {y:.2f}")
    axes.set(xlabel=f"{what} in {name_of_unit}", ylabel=f"training loss, mean of the last {last} steps")
    axes.set_xlim(left=min(0, axes.get_xlim()[0]))
    figure.legend(loc="outside upper center", ncols=3)
    return figure, f"Final training loss against {what}: {'; '.join(said)}."
