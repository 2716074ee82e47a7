"""Chapter 05b: the optimizers that are compared, the runs that are stored, and the chapter's figures."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from pathlib import Path

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn
from torch.utils.data import DataLoader

from course_utils import models, optim
from course_utils.optim import schedules
from course_utils.training import History, train
from course_utils.units import GiB, format_bytes
from course_utils.viz.memory import legend_of_kinds, stack
from course_utils.viz.parts import byte_unit, subplots
from course_utils.viz.style import COLORS, SERIES, writing

_DECAY = 0.01
RUNS = Path(__file__).with_name("c05b_runs.json")
SWEEP_SEEDS, RACE_SEEDS, LAST = (3, 4, 5), (0, 1, 2), 20


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
    """Muon for the hidden matrices, AdamW for the rest, at one rate.

    Raises `AttributeError` before torch 2.9, which has no Muon.
    """
    return shared_out(model, lr, muon=True, rest_lr=lr)


def shared_out(model: nn.Module, lr: float, muon: bool, rest_lr: float) -> torch.optim.Optimizer:
    """Hidden matrices at rate `lr` by AdamW, or by Muon (Jordan et al. 2024) matched to AdamW's rates (Liu et al. 2025); the
    rest by AdamW at `rest_lr`."""
    hidden, others = optim.hidden_matrices(model)
    if muon:
        matrices = torch.optim.Muon(hidden, lr=lr, weight_decay=_DECAY, adjust_lr_fn="match_rms_adamw")
    else:
        matrices = optim.AdamW(hidden, lr=lr, weight_decay=_DECAY)
    return optim.ChainedOptimizer(matrices, optim.AdamW(others, lr=rest_lr, weight_decay=0.0))


def contenders() -> dict[str, Contender]:
    """By name, those that this torch has. All have the same schedule; each has its own rate, the best of `RUNS`' sweep."""
    decayed = optim.decay_groups
    every = {
        "SGD, Nesterov": Contender(lambda model, lr: optim.Nesterov(model.parameters(), lr, momentum=0.9), 0.3),
        "Adam": Contender(lambda model, lr: optim.Adam(model.parameters(), lr=lr), 2e-3),
        "AdamW": Contender(lambda model, lr: optim.AdamW(decayed(model, _DECAY), lr=lr), 2e-3),
        "AdamW, 8 bits": Contender(lambda model, lr: optim.AdamW8bit(decayed(model, _DECAY), lr=lr), 2e-3),
        "Adafactor": Contender(lambda model, lr: optim.Adafactor(decayed(model, 0.0), lr=lr), 0.1),
        "Muon": Contender(muon, 1e-2),
    }
    return every if hasattr(torch.optim, "Muon") else {name: c for name, c in every.items() if c.make is not muon}


def final_loss(history: History) -> float:
    """What a run is judged by: the mean training loss of its last steps. No example is seen twice in one epoch."""
    return sum(history.losses[-LAST:]) / LAST


def undisturbed_step(history: History) -> float:
    """Seconds of a step; a tenth of the steps were faster, and what else ran on the machine slowed the others."""
    return history.frame()["seconds"].diff().quantile(0.1)


def stored(seeds: Sequence[int]) -> pd.DataFrame:
    """Runs at laptop scale with these seeds, a row each: `name`, `schedule`, `lr`, `seed`, `loss` (training, mean of the last 20
    steps) and `test` (held-out). `python -m benchmarks.learning_rates` made them."""
    runs = pd.DataFrame(json.loads(RUNS.read_text(encoding="utf-8")))
    return runs[runs["seed"].isin(seeds)]


def losses_by_rate(runs: pd.DataFrame) -> pd.DataFrame:
    """Mean, least and most over the seeds, by rate. A run that diverged counts as infinite."""
    return runs.fillna({"loss": inf}).groupby("lr")["loss"].agg(["mean", "min", "max"])


def best_rates(runs: pd.DataFrame) -> dict[str, float]:
    """By optimizer, the rate with the lowest mean loss."""
    return {name: losses_by_rate(of_name)["mean"].idxmin() for name, of_name in runs.groupby("name", sort=False)}


def rates_figure(runs: pd.DataFrame) -> tuple[Figure, str]:
    """Loss against learning rate, a panel for each optimizer: mean and range over the seeds, the best rate marked."""
    figure, panels = subplots(2, 3, figsize=(7.6, 4.8), layout="constrained", sharex=True, sharey=True)
    by_optimizer = []
    for panel, (name, best) in zip(panels.flat, best_rates(runs).items(), strict=True):
        losses = losses_by_rate(runs[runs["name"] == name])
        panel.axvline(1e-3, color=COLORS["ink"], linestyle=":", linewidth=1)
        _draw_curve(panel, losses, "first")
        for rate in losses.index[losses["max"] == inf]:
            panel.plot(rate, 2.4, "x", color=COLORS["second"])
            ended = runs[(runs["name"] == name) & (runs["lr"] == rate)]["loss"]
            lost = f"{ended.isna().sum()} of {len(ended)} diverged "
            panel.text(rate, 2.4, lost, ha="right", va="center", fontsize=9)
        panel.plot(best, losses["mean"][best], "o", color=COLORS["second"], markersize=8)
        panel.set(title=f"{name}: best at {best:g}", xscale="log", ylim=(0, 2.6))
        by_optimizer.append(f"{name}: {rates_in_words(losses)}")
    panels[0, 0].text(1.1e-3, 0.1, "0.001", fontsize=9)
    figure.supxlabel("learning rate α (logarithmic)", fontsize=10)
    figure.supylabel("training loss, last 20 steps", fontsize=10)
    figure.suptitle("Every best rate lies inside its grid; 0.001 is the best of none", x=0.01, ha="left", fontsize=11)
    return figure, f"Training loss at the end against the learning rate. {'. '.join(by_optimizer)}."


def crossed_figure(runs: pd.DataFrame) -> tuple[Figure, str]:
    """Loss against learning rate for two optimizers, each with a constant rate and with the cosine: four lines, and bars from the
    lowest to the highest seed."""
    figure, axes = subplots(figsize=(7.6, 3.8), layout="constrained")
    by_line = []
    for number, ((schedule, name), of_both) in enumerate(runs.groupby(["schedule", "name"])):
        losses = losses_by_rate(of_both)
        shift, look = (1.03, {"fmt": "D--", "markerfacecolor": "none"}) if number % 2 else (0.97, {"fmt": "o-"})
        reach = losses["mean"] - losses["min"], losses["max"] - losses["mean"]
        look |= {"color": COLORS[SERIES[number // 2]], "capsize": 3, "label": f"{name}, {schedule}"}
        axes.errorbar(losses.index * shift, losses["mean"], reach, **look)
        by_line.append(f"{name}, {schedule}: {rates_in_words(losses)}")
    axes.set(xscale="log", xlabel="learning rate α (logarithmic)", ylabel="training loss, last 20 steps", ylim=(0, 2.6))
    rates = sorted(runs["lr"].unique())
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.minorticks_off()
    axes.set_title("Up to 0.001 the lines pair up by schedule, not by optimizer")
    axes.legend()
    return figure, f"Training loss at the end against the learning rate. {'. '.join(by_line)}."


def _draw_curve(axes: Axes, losses: pd.DataFrame, color: str, line: str = "-", **look) -> None:
    """Mean and range, as far as it is finite."""
    finite = losses[losses["max"] < inf]
    axes.fill_between(finite.index, finite["min"], finite["max"], color=COLORS[color], alpha=0.15, linewidth=0)
    axes.plot(finite.index, finite["mean"], line, color=COLORS[color], marker="o", **{"markersize": 3.5} | look)


def rates_in_words(losses: pd.DataFrame) -> str:
    """The mean at each rate."""
    ends = ((f"{mean:.2f}" if mean < inf else "diverged", rate) for rate, mean in losses["mean"].items())
    return ", ".join(f"{end} at {rate:g}" for end, rate in ends)


def race_figure(race: pd.DataFrame, state_bytes: Mapping[str, int]) -> tuple[Figure, str]:
    """A row for each optimizer, two marks for each seed: training and held-out loss. `state_bytes` by name, where known."""
    figure, axes = subplots(figsize=(7.6, 3.6), layout="constrained")
    rows = race.groupby("name")["loss"].mean().sort_values().index
    by_optimizer = []
    for row, name in enumerate(rows):
        of_name = race[race["name"] == name]
        first = row == 0
        axes.plot(
            of_name["loss"], [row] * len(of_name), "o", color=COLORS["first"], label="training" if first else None
        )
        look = {"color": COLORS["second"], "markerfacecolor": "none", "label": "held-out files" if first else None}
        axes.plot(of_name["test"], [row] * len(of_name), "D", **look)
        ends = "; ".join(
            f"{kind} {as_range(of_name[column])}" for kind, column in (("training", "loss"), ("held-out", "test"))
        )
        if lost := of_name["loss"].isna().sum():
            axes.text(2.58, row, f"{lost} of {len(of_name)} diverged", ha="right", va="center", fontsize=9)
        size = f" with {format_bytes(state_bytes[name])}" if name in state_bytes else ""
        by_optimizer.append(f"{name}{size}: {ends}")
    sizes = {name: f"\n{format_bytes(size)}" for name, size in state_bytes.items()}
    axes.set_yticks(range(len(rows)), [f"{name}{sizes.get(name, '')}" for name in rows])
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlim=(0, 2.6), xlabel="loss at the end, a mark for each seed")
    axes.set_title("Muon ends lowest, and a smaller state does not mean a higher loss")
    axes.legend()
    return figure, f"Loss at the end of three seeds by optimizer. {'. '.join(by_optimizer)}."


def as_range(losses: pd.Series) -> str:
    """Least and most, and how many diverged."""
    lost = losses.isna().sum()
    return f"{losses.min():.2f} to {losses.max():.2f}" + (f", {lost} diverged" if lost else "")


CARD = 80 * GiB


@cache
def sizes_of(model: str, itemsize: int = 4) -> dict[str, dict[str, int]]:
    """P, G and O in bytes by optimizer, for the model of that name with numbers of `itemsize` bytes; from its shapes alone.

    O keeps the parameters' type, as PyTorch's optimizers do; 8-bit states are 8-bit.
    """
    with torch.device("meta"):
        network = models.from_configuration(models.configuration(model))
    shapes = [p.shape for p in network.parameters()]
    hidden, others = ([p.shape for p in part] for part in optim.hidden_matrices(network))
    states = {
        "AdamW": _state(optim.AdamW, shapes, itemsize),
        "Muon": _state(optim.Momentum, hidden, itemsize) + _state(optim.AdamW, others, itemsize),
        "SGD, momentum": _state(optim.Momentum, shapes, itemsize),
        "AdamW, 8 bits": _state(optim.AdamW8bit, shapes, itemsize),
        "Adafactor": _state(optim.Adafactor, shapes, itemsize),
    }
    size = sum(shape.numel() for shape in shapes) * itemsize
    rows = {name: {"parameters": size, "gradients": size, "optimizer state": state} for name, state in states.items()}
    largest = max(shape.numel() for shape in shapes) * itemsize
    return rows | {"Adafactor, in backward": {**rows["Adafactor"], "gradients": largest}}


def _state(kind: type, shapes: Sequence[torch.Size], itemsize: int) -> int:
    return sum(kind.state_bytes(shape, itemsize) for shape in shapes)


def bytes_figure(model: str, itemsize: int = 4, card: int = CARD) -> tuple[Figure, str]:
    """Bars of P, G and O by optimizer for the model of that name, with a line where a card of `card` bytes ends."""
    bars = sizes_of(model, itemsize)
    totals = {name: sum(parts.values()) for name, parts in bars.items()}
    widest = max(*totals.values(), card)
    unit, size = byte_unit(widest)
    figure, axes = subplots(figsize=(7.6, 1.2 + 0.5 * len(bars)), layout="constrained")
    for row, (name, parts) in enumerate(bars.items()):
        stack(axes, row, parts, size)
        ground = {"facecolor": COLORS["paper"], "edgecolor": "none", "pad": 1}
        inside = totals[name] < card < 1.15 * totals[name]  # else the line of the card would run through the number
        place = {"x": totals[name] / size * (0.99 if inside else 1.01), "ha": "right" if inside else "left"}
        axes.text(y=row, s=f" {format_bytes(totals[name])}", va="center", bbox=ground, **place)
    axes.axvline(card / size, color=COLORS["warning"], linestyle="--")
    axes.text(card / size, len(bars) - 0.45, f" {card / GiB:g} GiB", color=writing("warning"), va="bottom")
    fitting = sum(total <= card for total in totals.values())
    fit = "none fits" if not fitting else "all fit" if fitting == len(bars) else f"{fitting} of {len(bars)} fit"
    title = f"{model} in {8 * itemsize} bits: {fit} into {card / GiB:g} GiB before any activation"
    axes.set(yticks=range(len(bars)), yticklabels=list(bars), xlabel=f"P + G + O, {unit}", title=title)
    axes.set(xlim=(0, 1.2 * widest / size), ylim=(len(bars) - 0.4, -0.6))
    axes.grid(axis="y", visible=False)
    legend_of_kinds(figure, bars)
    sums = "; ".join(f"{name} {format_bytes(total)}" for name, total in totals.items())
    return figure, f"Parameters, gradients and optimizer state of {model} in {8 * itemsize} bits, by optimizer: {sums}."
