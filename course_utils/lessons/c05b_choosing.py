"""Chapter 05b: the optimizers that are compared, the runs that are stored, and the chapter's figures."""

from collections.abc import Sequence
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
from course_utils.units import GiB
from course_utils.viz.plots import bars, dots, panels_of_lines

_DECAY = 0.01
RUNS_FILE = Path(__file__).with_name("c05b_runs.json")
SWEEP_SEEDS = (3, 4, 5)
RACE_SEEDS = (0, 1, 2)
LAST_STEPS = 20
"""Steps at the end of a run, whose losses judge it."""
PAIRS = (("AdamW", 2e-3, 1e-2), ("Muon", 1e-2, 2e-3))
"""What moves the hidden matrices, at which rate, and AdamW's rate for the rest: the race's pairs, crossed."""


def make_muon(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """Muon for the hidden matrices, AdamW for the rest, at one rate.

    Raises `AttributeError` before torch 2.9, which has no Muon.
    """
    return make_pair(model, lr, use_muon=True, rest_lr=lr)


def make_pair(model: nn.Module, lr: float, use_muon: bool, rest_lr: float) -> torch.optim.Optimizer:
    """Hidden matrices at rate `lr` by AdamW, or by Muon (Jordan et al. 2024) matched to AdamW's rates (Liu et al. 2025); the
    rest by AdamW at `rest_lr`."""
    hidden, others = optim.hidden_matrices(model)
    if use_muon:
        matrices = torch.optim.Muon(hidden, lr=lr, weight_decay=_DECAY, adjust_lr_fn="match_rms_adamw")
    else:
        matrices = optim.AdamW(hidden, lr=lr, weight_decay=_DECAY)
    return optim.ChainedOptimizer(matrices, optim.AdamW(others, lr=rest_lr, weight_decay=0.0))


def contenders() -> dict[str, Contender]:
    """The optimizers that this torch has, by name. All have the same schedule; each has the best rate in `RUNS_FILE`."""
    decayed = optim.decay_groups
    table = {
        "SGD, Nesterov": Contender(lambda model, lr: optim.Nesterov(model.parameters(), lr, momentum=0.9), 0.3),
        "Adam": Contender(lambda model, lr: optim.Adam(model.parameters(), lr=lr), 2e-3),
        "AdamW": Contender(lambda model, lr: optim.AdamW(decayed(model, _DECAY), lr=lr), 2e-3),
        "AdamW, 8 bits": Contender(lambda model, lr: optim.AdamW8bit(decayed(model, _DECAY), lr=lr), 2e-3),
        "Adafactor": Contender(lambda model, lr: optim.Adafactor(decayed(model, 0.0), lr=lr), 0.1),
        "Muon": Contender(make_muon, 1e-2),
    }
    return table if hasattr(torch.optim, "Muon") else {name: c for name, c in table.items() if c.make is not make_muon}


def final_loss(history: History) -> float:
    """The mean training loss of a run's last steps, by which it is judged. No example is seen twice in one epoch."""
    return sum(history.losses[-LAST_STEPS:]) / LAST_STEPS


def undisturbed_step(history: History) -> float:
    """Seconds of a step; a tenth of the steps were faster, and what else ran on the machine slowed the others."""
    return history.frame()["seconds"].diff().quantile(0.1)


def stored_runs(seeds: Sequence[int]) -> pd.DataFrame:
    """Runs at laptop scale with these seeds, a row each: `name`, `schedule`, `lr`, `seed`, `loss` (training, mean of the last 20
    steps) and `test` (held-out). `python -m benchmarks.learning_rates` made them."""
    runs = read_runs(RUNS_FILE)
    return runs[runs["seed"].isin(seeds) & runs["rest"].isna()]


def stored_rests() -> pd.DataFrame:
    """What moves the hidden matrices, against the rate of AdamW for the rest: both losses of each of the race's seeds.

    Where the two are those of a contender, its runs of the race are shown.
    """
    crossed = {name: rate for name, rate, _ in PAIRS}
    runs = read_runs(RUNS_FILE)
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
    """Loss against learning rate: mean and range over the seeds, a panel for each optimizer."""
    curves = {}
    for name, best in best_rates(runs).items():
        curves[f"{name}: own rate {best:g}"] = {name: losses_of_seeds(runs[runs["name"] == name])}
    title = "Every best rate lies inside its grid; 0.001 is the best of none"
    x, y = "learning rate α (log)", "training loss, last 20 steps"
    return panels_of_lines(curves, title, x, y, log="x", rows=2, height=4.8, ticks=(1e-3, 1e-2, 0.1), number=".2f")


def crossed_figure(runs: pd.DataFrame) -> tuple[Figure, str]:
    """Loss against learning rate for two optimizers: mean and range over the seeds, a panel for each schedule."""
    curves = {}
    for (schedule, name), of_both in runs.groupby(["schedule", "name"]):
        curves.setdefault(f"schedule: {schedule}", {})[name] = losses_of_seeds(of_both)
    title = "At 0.0003 and 0.001 the schedule moves the loss, and the optimizer does not"
    x, y = "learning rate α (log)", "training loss, last 20 steps"
    return panels_of_lines(curves, title, x, y, log="x", number=".2f")


def race_figure(race: pd.DataFrame) -> tuple[Figure, str]:
    """Training and held-out loss of each seed of each optimizer."""
    losses = race.rename(columns={"loss": "training", "test": "held-out files"}).groupby("name")
    losses = losses[["training", "held-out files"]].agg(list)
    ends = losses.loc[race.groupby("name")["loss"].mean().sort_values().index].to_dict("index")
    x = "loss at the end; seeds 0, 1 and 2 from top to bottom of each row"
    figure, alt = dots(ends, "Muon ends lowest with every seed, in training and on held-out files", x, spread=0.3)
    figure.axes[0].set_xlim(0, 2.6)
    return figure, alt


def format_range(losses: pd.Series) -> str:
    """Least and most, and how many diverged."""
    divergences = losses.isna().sum()
    return f"{losses.min():.2f} to {losses.max():.2f}" + (f", {divergences} diverged" if divergences else "")


CARD_BYTES = 80 * GiB


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


def bytes_figure(model: str, itemsize: int = 4, card: int = CARD_BYTES) -> tuple[Figure, str]:
    """Bars of P, G and O by optimizer for the model of that name, with a line where a card of `card` bytes ends."""
    rows = sizes_of(model, itemsize)
    fitting = sum(sum(parts.values()) <= card for parts in rows.values())
    title = (
        f"{model} in {8 * itemsize} bits: {fitting} of {len(rows)} fit into {card / GiB:g} GiB before any activation"
    )
    return bars(rows, title, "P + G + O", limit=(f"{card / GiB:g} GiB", card))
