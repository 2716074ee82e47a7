"""Chapter 05b: the optimizers that are compared, the runs that are stored, and the chapter's figures."""

from collections.abc import Mapping, Sequence
from functools import cache
from math import inf
from pathlib import Path

import pandas as pd
import torch
from matplotlib.figure import Figure
from pandas.api.typing import SeriesGroupBy
from torch import nn

from course_utils import models, optim
from course_utils.lessons.shared import Contender, read_runs
from course_utils.training import History
from course_utils.units import GiB, MiB, format_bytes
from course_utils.viz.plots import add_title, bars, dots, legend, lines, note, panels, tick
from course_utils.viz.style import COLORS

_DECAY = 0.01
RUNS = Path(__file__).with_name("c05b_runs.json")
SWEEP_SEEDS = (3, 4, 5)
RACE_SEEDS = (0, 1, 2)
LAST = 20
"""Steps at the end of a run, whose losses judge it."""
RESTS = (("AdamW", 2e-3, 1e-2), ("Muon", 1e-2, 2e-3))
"""What moves the hidden matrices, at which rate, and AdamW's rate for the rest: the race's pairs, crossed."""


def muon(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """Muon for the hidden matrices, AdamW for the rest, at one rate.

    Raises `AttributeError` before torch 2.9, which has no Muon.
    """
    return shared_out(model, lr, use_muon=True, rest_lr=lr)


def shared_out(model: nn.Module, lr: float, use_muon: bool, rest_lr: float) -> torch.optim.Optimizer:
    """Hidden matrices at rate `lr` by AdamW, or by Muon (Jordan et al. 2024) matched to AdamW's rates (Liu et al. 2025); the
    rest by AdamW at `rest_lr`."""
    hidden, others = optim.hidden_matrices(model)
    if use_muon:
        matrices = torch.optim.Muon(hidden, lr=lr, weight_decay=_DECAY, adjust_lr_fn="match_rms_adamw")
    else:
        matrices = optim.AdamW(hidden, lr=lr, weight_decay=_DECAY)
    return optim.ChainedOptimizer(matrices, optim.AdamW(others, lr=rest_lr, weight_decay=0.0))


def contenders() -> dict[str, Contender]:
    """The optimizers that this torch has, by name. All have the same schedule; each has the best rate of `RUNS`' sweep."""
    decayed = optim.decay_groups
    table = {
        "SGD, Nesterov": Contender(lambda model, lr: optim.Nesterov(model.parameters(), lr, momentum=0.9), 0.3),
        "Adam": Contender(lambda model, lr: optim.Adam(model.parameters(), lr=lr), 2e-3),
        "AdamW": Contender(lambda model, lr: optim.AdamW(decayed(model, _DECAY), lr=lr), 2e-3),
        "AdamW, 8 bits": Contender(lambda model, lr: optim.AdamW8bit(decayed(model, _DECAY), lr=lr), 2e-3),
        "Adafactor": Contender(lambda model, lr: optim.Adafactor(decayed(model, 0.0), lr=lr), 0.1),
        "Muon": Contender(muon, 1e-2),
    }
    return table if hasattr(torch.optim, "Muon") else {name: c for name, c in table.items() if c.make is not muon}


def final_loss(history: History) -> float:
    """The mean training loss of a run's last steps, by which it is judged. No example is seen twice in one epoch."""
    return sum(history.losses[-LAST:]) / LAST


def undisturbed_step(history: History) -> float:
    """Seconds of a step; a tenth of the steps were faster, and what else ran on the machine slowed the others."""
    return history.frame()["seconds"].diff().quantile(0.1)


def stored_runs(seeds: Sequence[int]) -> pd.DataFrame:
    """Runs at laptop scale with these seeds, a row each: `name`, `schedule`, `lr`, `seed`, `loss` (training, mean of the last 20
    steps) and `test` (held-out). `python -m benchmarks.learning_rates` made them."""
    runs = read_runs(RUNS)
    return runs[runs["seed"].isin(seeds) & runs["rest"].isna()]


def stored_rests() -> pd.DataFrame:
    """What moves the hidden matrices, against the rate of AdamW for the rest: both losses of each of the race's seeds.

    Where the two are those of a contender, its runs of the race are shown.
    """
    crossed = {name: rate for name, rate, _ in RESTS}
    runs = read_runs(RUNS)
    runs = runs[runs["name"].isin(crossed) & runs["seed"].isin(RACE_SEEDS)]
    runs = runs.fillna({"rest": runs["name"].map(crossed)})
    table = runs.groupby(["name", "rest"])[["loss", "test"]].agg(lambda losses: ", ".join(f"{x:.2f}" for x in losses))
    table = table.rename(columns={"loss": "training", "test": "held-out"}).unstack()
    return table.rename_axis(index="hidden matrices", columns=["", "rate of the rest"])


def losses_by_rate(runs: pd.DataFrame) -> pd.DataFrame:
    """Mean, least and most over the seeds, by rate. A run that diverged counts as infinite."""
    return _losses_of_rates(runs).agg(["mean", "min", "max"])


def losses_of_seeds(runs: pd.DataFrame) -> dict[float, list[float]]:
    """The loss of each seed, by rate; infinite where the run diverged."""
    return _losses_of_rates(runs).agg(list).to_dict()


def _losses_of_rates(runs: pd.DataFrame) -> SeriesGroupBy:
    return runs.fillna({"loss": inf}).groupby("lr")["loss"]


def best_rates(runs: pd.DataFrame) -> dict[str, float]:
    """The rate with the lowest mean loss of each optimizer."""
    return {name: losses_by_rate(of_name)["mean"].idxmin() for name, of_name in runs.groupby("name", sort=False)}


def rates_figure(runs: pd.DataFrame) -> tuple[Figure, str]:
    """Loss against learning rate, a panel for each optimizer: mean and range over the seeds, with a dotted line at 0.001."""
    figure, grid = panels(2, 3, height=4.8, sharex=True, sharey=True)
    by_optimizer = []
    for panel, (name, best) in zip(grid.flat, best_rates(runs).items(), strict=True):
        of_name = runs[runs["name"] == name]
        curve = {name: losses_of_seeds(of_name)}
        title = f"{name}: own rate {best:g}"
        x, y = "learning rate α (log)", "training loss, last 20 steps"
        _, alt = lines(curve, title, x, y, log="x", labels="none", number=".2f", axes=panel)
        panel.axvline(1e-3, color=COLORS["ink"], linestyle=":")
        for rate, losses in curve[name].items():
            if divergences := sum(loss == inf for loss in losses):
                text = f"at {rate:g}: {divergences} of {len(losses)} runs diverged"
                note(panel, text, (1, 0.9), (-1, 0), xycoords="axes fraction")
        panel.set_ylim(0, 3.1)
        tick(panel, [0.001, 0.01, 0.1])
        by_optimizer.append(alt)
    return add_title(figure, "Every best rate lies inside its grid; 0.001 is the best of none", *by_optimizer)


def crossed_figure(runs: pd.DataFrame) -> tuple[Figure, str]:
    """Loss against learning rate for two optimizers: a panel for the constant rate and one for the cosine, bands from the
    lowest to the highest seed, and the mean loss at 0.001."""
    figure, axes = panels(1, 2, height=3.6, sharex=True, sharey=True)
    texts = []
    x, y = "learning rate α (log)", "training loss, last 20 steps"
    for panel, (schedule, of_schedule) in zip(axes, runs.groupby("schedule"), strict=True):
        by_name = dict(list(of_schedule.groupby("name")))
        curves = {name: losses_of_seeds(of_name) for name, of_name in by_name.items()}
        title = f"schedule: {schedule}"
        texts.append(lines(curves, title, x, y, log="x", labels="none", number=".2f", axes=panel)[1])
        at_default = losses_by_rate(of_schedule)["mean"][1e-3]
        panel.axvline(1e-3, color=COLORS["ink"], linestyle=":")
        note(panel, f"{at_default:.2f}", (1e-3, at_default), (-8, -9))
    legend(axes[0])
    return add_title(figure, "At 0.0003 and 0.001 the schedule moves the loss, and the optimizer does not", *texts)


def race_figure(race: pd.DataFrame, state_bytes: Mapping[str, int]) -> tuple[Figure, str]:
    """A row for each optimizer, two marks for each seed: training and held-out loss. `state_bytes` by name, where known."""
    ends = {}
    for name in race.groupby("name")["loss"].mean().sort_values().index:
        of_name = race[race["name"] == name]
        row = f"{name}\n{state_bytes[name] / MiB:.2f} MiB" if name in state_bytes else name
        ends[row] = {"training": of_name["loss"].tolist(), "held-out files": of_name["test"].tolist()}
    title = "Muon ends lowest, and a smaller state need not mean a higher loss"
    x = "loss at the end; seeds 0, 1 and 2 from top to bottom of each row"
    figure, alt = dots(ends, title, x, spread=0.3, axes=panels(height=3.6)[1])
    figure.axes[0].set_xlim(0, 2.6)
    return figure, alt


def as_range(losses: pd.Series) -> str:
    """Least and most, and how many diverged."""
    divergences = losses.isna().sum()
    return f"{losses.min():.2f} to {losses.max():.2f}" + (f", {divergences} diverged" if divergences else "")


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
        "AdamW": _sum_state(optim.AdamW, shapes, itemsize),
        "Muon": _sum_state(optim.Momentum, hidden, itemsize) + _sum_state(optim.AdamW, others, itemsize),
        "SGD, momentum": _sum_state(optim.Momentum, shapes, itemsize),
        "AdamW, 8 bits": _sum_state(optim.AdamW8bit, shapes, itemsize),
        "Adafactor": _sum_state(optim.Adafactor, shapes, itemsize),
    }
    size = sum(shape.numel() for shape in shapes) * itemsize
    rows = {name: {"parameters": size, "gradients": size, "optimizer state": state} for name, state in states.items()}
    largest = max(shape.numel() for shape in shapes) * itemsize
    return rows | {"Adafactor, in backward": {**rows["Adafactor"], "gradients": largest}}


def _sum_state(optimizer_cls: type, shapes: Sequence[torch.Size], itemsize: int) -> int:
    return sum(optimizer_cls.state_bytes(shape, itemsize) for shape in shapes)


def bytes_figure(model: str, itemsize: int = 4, card: int = CARD) -> tuple[Figure, str]:
    """Bars of P, G and O by optimizer for the model of that name, with a line where a card of `card` bytes ends."""
    rows = sizes_of(model, itemsize)
    fitting = sum(sum(parts.values()) <= card for parts in rows.values())
    fit = "none fits" if not fitting else "all fit" if fitting == len(rows) else f"{fitting} of {len(rows)} fit"
    title = f"{model} in {8 * itemsize} bits: {fit} into {card / GiB:g} GiB before any activation"
    *_, (last, parts) = rows.items()
    notes = {last: f"{format_bytes(sum(parts.values()))} (G: one gradient)"}
    return bars(rows, title, "P + G + O", notes=notes, limit=(f"{card / GiB:g} GiB", card))
