"""Chapter 09's figures, and ranks that descend in bowls of their own, to play with."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_utils.lessons.c09_local_sgd import RankHistory
from course_utils.units import format_counted, format_seconds
from course_utils.viz.parts import cell, drawing
from course_utils.viz.plots import Span, add_title, bars, legend, lines, panels, timeline
from course_utils.viz.style import COLORS, MARKS, SERIES


def ring_figure(turns: Sequence[Sequence[Sequence[str]]]) -> tuple[Figure, str]:
    """What `ring_on_rank` saw on all ranks: a panel for each turn, a row for each rank, a column for each piece.

    Digits are the ranks whose parts a piece holds. An arrow comes from the rank before, into the piece that it brought.
    """
    ranks = len(turns)
    figure, grid = panels(2, ranks, height=4.1)
    states = [[turns[rank][turn] for rank in range(ranks)] for turn in range(2 * ranks - 1)]
    for turn, (panel, state) in enumerate(zip([*grid[0], *grid[1][1:]], states, strict=True)):
        title = f"turn {turn}: {'add' if turn < ranks else 'copy'}" if turn else "before"
        drawing(panel, (0, ranks), (ranks, -0.5), title)
        for rank, row in enumerate(state):
            for piece, parts in enumerate(row):
                color, alpha = ("third", 0.6) if len(parts) == ranks else ("activations", 0.2 * len(parts))
                cell(panel, piece, rank, color, parts, alpha=alpha)
                if turn and parts != states[turn - 1][rank][piece]:
                    ends = (piece + 0.5, rank + 0.3), (piece + 0.5, rank - 0.36)
                    panel.annotate("", *ends, arrowprops={"arrowstyle": "-|>", "color": COLORS["second"]})
    explanation = (
        f"row: a rank\ncolumn: a piece\n012: parts of ranks\n0, 1 and 2 are in it\ngreen: all {ranks} are in it\n"
        "arrow: came from\nthe rank before\n(the first from\nthe last)"
    )
    drawing(grid[1][0])
    grid[1][0].text(0, 1, explanation, fontsize=8.5, va="top")
    title = f"{ranks - 1} turns add and {ranks - 1} copy; in each a rank sends 1 of its {ranks} pieces"
    moves = "; ".join(f"turn {turn}: {', '.join('-'.join(row) for row in state)}" for turn, state in enumerate(states))
    return add_title(figure, title, f"Whose parts each piece holds, rank by rank, on a ring of {ranks}. {moves}.")


def local_rounds_figure(ranks: int = 3, interval: int = 4, steps: int = 8) -> tuple[Figure, str]:
    """The idea: ranks that send after every step, above ranks that send after `interval` steps and diverge in between."""
    sending = 0.8  # of a step's time
    figure, axes = panels(2, 1, height=3.6, sharex=True)
    titles = (
        f"data parallelism: gradients are averaged at each step ({steps} averages)",
        f"local SGD, H = {interval}: parameters are averaged every {interval} steps ({steps // interval} averages)",
    )
    styles = {"a step of a rank": ("first", ""), "all ranks send": ("gradients", "")}
    for panel, h, title in zip(axes, (1, interval), titles, strict=True):
        spans = []
        for rank, step in product(range(ranks), range(steps)):
            start = step + step // h * sending
            spans.append(Span(rank, start, start + 1, "a step of a rank"))
            if (step + 1) % h == 0:
                spans.append(Span(rank, start + 1, start + 1 + sending, "all ranks send"))
        lanes = [f"rank {rank}" for rank in range(ranks)]
        timeline(spans, lanes, title, "time (lengths are made up)", styles=styles, axes=panel)
    panel.set(xlim=(0, steps * (1 + sending)), xticks=[])
    legend(panel, *((kind, color) for kind, (color, _) in styles.items()))
    return figure, (
        f"{ranks} ranks make {steps} steps each. Above all ranks send after every step, {steps} times. Below they send after "
        f"every {interval} steps, {steps // interval} times, and are done sooner; within a round the ranks' parameters part."
    )


def busy_figure(computing: Mapping[str, float], sending: Mapping[str, float]) -> tuple[Figure, str]:
    """The share of time in which ranks compute against H: a panel for each machine, in it a curve for each network.

    `computing` is the seconds of a step, `sending` those of one average; nothing overlaps. A mark is at the first H from 9r on.
    """
    figure, grid = panels(1, len(computing), height=3.4, sharey=True, squeeze=False)
    periods = np.logspace(0, 5, 200)
    marks = []
    for panel, (machine, step) in zip(grid[0], computing.items(), strict=True):
        ratios = {name: average / step for name, average in sending.items()}
        data = {name: zip(periods, periods / (periods + r), strict=True) for name, r in ratios.items()}
        title = f"{machine}: {format_seconds(step)} a step"
        x, y = "H (mark: smallest H with 90 % or more)", "share of time in which\nthe ranks compute"
        styles = {"90 %": ("ink", ":")}
        lines(data, title, x, y, unit="%", log="x", styles=styles, levels={"90 %": 0.9}, labels="none", axes=panel)
        for (name, r), color, marker in zip(ratios.items(), SERIES, MARKS, strict=False):
            enough = max(1, math.ceil(round(9 * r, 6)))  # rounded, so that a sum of floats asks for no step more
            panel.plot(enough, 100 * enough / (enough + r), marker, color=COLORS[color], markersize=8)
            marks.append(f"{machine}, {name}: nine tenths at H = {enough:,}")
    legend(panel)
    title = "Nine tenths of the time go to computing from H = 9r on; a faster machine needs a larger H"
    text = f"Share of the time spent computing against H, an S for each network. {'; '.join(marks)}."
    return add_title(figure, title, text)


def drift_figure(drifts: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]]) -> tuple[Figure, str]:
    """How far a rank is from the mean of all, against its steps: a panel per group, in it a line per run of (step, distance)."""
    figure, grid = panels(1, len(drifts), height=3.3, sharey=True, squeeze=False)
    texts = []
    for axes, (group, runs) in zip(grid[0], drifts.items(), strict=True):
        texts.append(lines(runs, group, y="distance to the ranks' mean", labels="none", axes=axes)[1])
    legend(grid[0][0])
    return add_title(figure, "Within a round the ranks part, and an average brings them together", *texts)


def unequal_starts_figure(drifts: Mapping[str, Sequence[tuple[int, float]]]) -> tuple[Figure, str]:
    """Distances to the mean as in `drift_figure`, where the ranks of some runs began with other parameters."""
    title = "Run A never closes the gap; run B closes it with its first average"
    return lines(drifts, title, y="distance to the ranks' mean", labels="legend")


class CostOfLoss(NamedTuple):
    """What a rank had spent when a loss was reached."""

    step: int
    sent: int  # bytes
    messages: int


def cost_of_a_loss(run: RankHistory, level: float) -> CostOfLoss:
    """Cost of the first average after which no average has a loss above `level`."""
    before = [0, *run.sent]
    averages = [i for i in range(len(run.losses)) if run.sent[i] > before[i]]
    last_above = max((i for i in averages if run.losses[i] > level), default=-1)
    first = next(i for i in averages if i > last_above)
    return CostOfLoss(run.steps[first], run.sent[first], run.messages[first])


def losses_by_strategy_figure(
    runs: Mapping[str, RankHistory], computing: float, network: tuple[float, float], name: str
) -> tuple[Figure, str]:
    """Loss of the ranks' mean against steps; beside it the bytes and seconds to the highest of the last losses.

    `computing` is the seconds of a step; `network` is bytes a second out of a rank and seconds a message, and has a `name`.
    """
    level = max(run.losses[-1] for run in runs.values())
    bandwidth, latency = network
    costs = {strategy: cost_of_a_loss(run, level) for strategy, run in runs.items()}
    sent = {strategy: cost.sent for strategy, cost in costs.items()}
    times = {
        strategy: cost.step * computing + cost.sent / bandwidth + cost.messages * latency
        for strategy, cost in costs.items()
    }
    quickest = min(costs, key=lambda strategy: costs[strategy].step)
    dearest = max(sent, key=sent.get)
    slowest = max(times, key=times.get)
    title = f"To a loss of {level:.2f}, {quickest} takes the fewest steps, "
    if quickest == dearest == slowest:
        title += "the most bytes and, on paper, the most time"
    else:
        title += f"{dearest} the most bytes and, on paper, {slowest} the most time"
    names = {strategy: f"{strategy}, {format_counted(cost.step, 'step')}" for strategy, cost in costs.items()}
    figure, (left, middle, right) = panels(1, 3, height=3.3)
    data = {strategy: zip(run.steps, run.losses, strict=True) for strategy, run in runs.items()}
    levels = {f"{level:.2f}": level}
    styles = dict.fromkeys(levels, ("ink", ":"))
    _, text = lines(data, y="loss of the mean", levels=levels, styles=styles, labels="legend", number=".2f", axes=left)
    texts = [text]
    for axes, values, unit, x in (
        (middle, sent, "bytes", "sent by then"),
        (right, times, "seconds", f"time by then, predicted,\n{name}"),
    ):
        rows = {names[strategy]: value for strategy, value in values.items()}
        texts.append(bars(rows, "", x, unit=unit, axes=axes)[1])
        axes.set_xlim(0, 1.2 * axes.get_xlim()[1])
    right.set_yticklabels([])
    return add_title(figure, title, *texts)


def losses_by_interval_figure(
    ends: Mapping[str, Mapping[int, Sequence[float]]], levels: Mapping[str, Sequence[float]]
) -> tuple[Figure, str]:
    """The losses after equally many steps against H: a line for each kind of data, mean and range over several seeds.

    A band is the range of what averaged gradients give.
    """
    title = "Local steps cost much loss by package, little on mixed data (strips: DDP)"
    x, y = "H, steps between two averages (log)", "loss of the mean\nafter equally many steps"
    figure, alt = lines(ends, title, x, y, log="x", number=".2f")
    for losses, color in zip(levels.values(), SERIES, strict=False):
        figure.axes[0].axhspan(min(losses), max(losses), color=COLORS[color], alpha=0.25, linewidth=0)
    by_kind = "; ".join(f"{kind}: {min(losses):.2f} to {max(losses):.2f}" for kind, losses in levels.items())
    return figure, f"{alt} With DDP: {by_kind}."


def bowls(ranks: int, heterogeneity: float) -> tuple[np.ndarray, np.ndarray]:
    """A quadratic bowl for each rank: matrices [ranks, 2, 2], each steep in another direction, and lowest points [ranks, 2],
    on a circle of radius `heterogeneity` around (0, 0)."""
    angles = 0.4 + 2 * np.pi * np.arange(ranks) / ranks
    steep = np.stack([np.cos(angles / 2), np.sin(angles / 2)], axis=1)
    matrices = 0.12 * np.eye(2) + 0.88 * steep[:, :, None] * steep[:, None, :]
    centers = heterogeneity * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return matrices, centers


def joint_minimum(matrices: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Where the mean of the bowls is lowest: (Σ A)⁻¹ Σ A c."""
    return np.linalg.solve(matrices.sum(0), np.einsum("rij,rj->i", matrices, centers))


def local_paths(
    interval: int, matrices: np.ndarray, centers: np.ndarray, rate: float, corrected: bool = False, steps: int = 60
) -> np.ndarray:
    """The position of each rank before and after each of `steps` local steps, [steps + 1, ranks, 2]; θ ← θ − α A (θ − c).

    After each `interval` steps all go on from their mean, which is then the position of that step. `corrected` is SCAFFOLD:
    from each slope a rank takes its own mean slope of the last round (`control`), and adds that of all ranks.
    """
    positions = np.tile([-2.2, 1.4], (len(centers), 1))
    places = [positions]
    control = np.zeros_like(positions)
    round_start = positions
    for step in range(1, steps + 1):
        slope = np.einsum("rij,rj->ri", matrices, positions - centers)
        positions = positions - rate * (slope + (control.mean(0) - control if corrected else 0))
        places.append(positions)
        if step % interval == 0:
            control = control - control.mean(0) + (round_start - positions) / (interval * rate)
            positions = round_start = np.tile(positions.mean(0), (len(positions), 1))
    return np.stack(places)


def play_local_drift(
    interval: int = 10, heterogeneity: float = 1.0, ranks: int = 3, rate: float = 0.3, corrected: bool = False
) -> tuple[Figure, str]:
    """Play: ranks in bowls of their own, where they go between averages, and where their mean ends."""
    matrices, centers = bowls(ranks, heterogeneity)
    places = local_paths(interval, matrices, centers, rate, corrected)
    lowest = joint_minimum(matrices, centers)
    figure, (plane, line) = panels(1, 2, height=3.6, width_ratios=(1.5, 1))
    _draw_bowls(plane, matrices, centers)
    _draw_rounds(plane, places, centers, interval)
    plane.plot(*places.mean(1)[::interval].T, "o-", color=COLORS["ink"], markersize=4, label="ranks' mean at averages")
    plane.plot(*lowest, "*", color=COLORS["warning"], markersize=14, label="joint minimum")
    plane.set(xlabel="first parameter", ylabel="second parameter", xlim=(-2.7, 2.7), ylim=(-2.4, 2.4), aspect="equal")
    legend(plane)
    drifts = _distances_to_mean(places, interval)
    lines({"drift": drifts}, y="distance to the mean\n(over all ranks)", labels="none", axes=line)
    steps = len(places) - 1
    off = float(np.linalg.norm(places[steps - steps % interval].mean(0) - lowest))
    rounds = format_counted(steps // interval, "average")
    add_title(figure, f"{rounds} in {steps} steps; the last is {off:.2f} from the joint minimum")
    by = ", drift corrected" if corrected else ""
    return figure, (
        f"{ranks} ranks in bowls whose lowest points are {heterogeneity:g} from the middle, H = {interval}, "
        f"learning rate {rate:g}{by}. They drift at most {max(d for _, d in drifts):.2f} from their mean; after {rounds} the "
        f"mean is {off:.2f} from the joint minimum."
    )


def _draw_bowls(axes: Axes, matrices: np.ndarray, centers: np.ndarray) -> None:
    """Lines of equal height of the mean of the bowls."""
    x, y = np.meshgrid(np.linspace(-2.7, 2.7, 80), np.linspace(-2.4, 2.4, 80))
    offset = np.stack([x, y], axis=-1)[None] - centers[:, None, None, :]
    height = 0.5 * np.einsum("rxyi,rij,rxyj->xy", offset, matrices, offset) / len(centers)
    axes.contour(x, y, height, levels=9, colors=COLORS["grid"], linewidths=1)
    axes.grid(visible=False)


def _draw_rounds(axes: Axes, places: np.ndarray, centers: np.ndarray, interval: int) -> None:
    """Where each rank went, round by round: each starts from the ranks' mean. A cross is a rank's own minimum."""
    means = places.mean(1)
    for rank, center in enumerate(centers):
        color = COLORS[SERIES[rank % 4]]
        for begin in range(0, len(places) - 1, interval):
            track = np.vstack([means[begin], places[begin + 1 : begin + interval + 1, rank]])
            axes.plot(*track.T, color=color, linewidth=1)
        axes.plot(*center, "x", color=color, markeredgewidth=2, label=f"minimum of rank {rank}")


def _distances_to_mean(places: np.ndarray, interval: int) -> list[tuple[int, float]]:
    """Root mean square distance of the ranks to their mean, before and after each average."""
    spread = np.sqrt(((places - places.mean(1, keepdims=True)) ** 2).sum(2).mean(1))
    points = [(0, 0.0)]
    for step in range(1, len(places)):
        points.append((step, float(spread[step])))
        if step % interval == 0:
            points.append((step, 0.0))
    return points
