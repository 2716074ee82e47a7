"""Chapter 09's figures, and ranks that descend in bowls of their own, to play with."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_utils.lessons.c09_local_sgd import RankHistory
from course_utils.units import format_bytes, format_counted, format_seconds
from course_utils.viz.parts import cell
from course_utils.viz.plots import Span, add_title, bars, legend, lines, panels, tick, timeline
from course_utils.viz.style import COLORS, MARKS, SERIES, text_color


def ring_figure(turns: Sequence[Sequence[Sequence[str]]]) -> tuple[Figure, str]:
    """What `ring_on_rank` saw on all ranks: a panel for each turn, a row for each rank, a column for each piece.

    Digits are the ranks whose parts a piece holds. An arrow comes from the rank before, into the piece that it brought.
    """
    ranks = len(turns)
    figure, grid = panels(2, ranks, height=4.1)
    states = [[turns[rank][turn] for rank in range(ranks)] for turn in range(2 * ranks - 1)]
    way = {"arrowstyle": "-|>", "color": COLORS["second"], "linewidth": 1.4}
    middles = [i + 0.5 for i in range(ranks)]
    for turn, (panel, state) in enumerate(zip([*grid[0], *grid[1][1:]], states, strict=True)):
        for rank, row in enumerate(state):
            for piece, parts in enumerate(row):
                whole = len(parts) == ranks
                color, alpha = ("third", 0.6) if whole else ("activations", 0.2 * len(parts))
                cell(panel, piece + 0.05, rank + 0.07, color, width=0.9, height=0.86, alpha=alpha)
                panel.text(piece + 0.5, rank + 0.5, parts, ha="center", va="center", fontsize=7.5)
                if turn and parts != states[turn - 1][rank][piece]:
                    panel.annotate("", (piece + 0.5, rank + 0.24), (piece + 0.5, rank - 0.36), arrowprops=way)
        panel.set(title=f"turn {turn}: {'add' if turn < ranks else 'copy'}" if turn else "before")
        panel.set(xlim=(0, ranks), ylim=(ranks, -0.5), xlabel="piece" if turn >= ranks else "")
        panel.set_xticks(middles, range(ranks))
        panel.set_yticks(middles, [f"rank {i}" for i in range(ranks)] if turn in (0, ranks) else [""] * ranks)
        panel.grid(visible=False)
        panel.tick_params(length=0, labelsize=8)
        panel.spines[:].set_visible(False)
    note = grid[1][0]
    note.set_axis_off()
    words = (
        f"012: parts of ranks\n0, 1 and 2 are in it\n\ngreen: all {ranks} are in it\n\n"
        "arrow: came from\nthe rank before\n(the first from\nthe last)"
    )
    note.text(0, 0.98, words, transform=note.transAxes, fontsize=8.5, va="top")
    title = f"{ranks - 1} turns add and {ranks - 1} copy; in each a rank sends 1 of its {ranks} pieces"
    moves = "; ".join(f"turn {turn}: {', '.join('-'.join(row) for row in state)}" for turn, state in enumerate(states))
    return add_title(figure, title, f"Whose parts each piece holds, rank by rank, on a ring of {ranks}. {moves}.")


def local_rounds_figure(ranks: int = 3, every: int = 4, steps: int = 8) -> tuple[Figure, str]:
    """The idea: ranks that send after every step, above ranks that send after `every` steps and diverge in between."""
    sending = 0.8  # of a step's time
    figure, axes = panels(2, 1, height=3.6, sharex=True)
    titles = (
        f"data parallelism: gradients are averaged at each step ({steps} averages)",
        f"local SGD, H = {every}: parameters are averaged every {every} steps ({steps // every} averages)",
    )
    styles = {"a step of a rank": ("first", ""), "all ranks send": ("gradients", "")}
    for panel, h, title in zip(axes, (1, every), titles, strict=True):
        spans = []
        for rank, step in product(range(ranks), range(steps)):
            start = step + step // h * sending
            spans.append(Span(rank, start, start + 1, "a step of a rank"))
            if (step + 1) % h == 0:
                spans.append(Span(rank, start + 1, start + 1 + sending, "all ranks send"))
        timeline(spans, [f"rank {rank}" for rank in range(ranks)], title, styles=styles, axes=panel)
        panel.set(xlim=(0, steps * (1 + sending) + 0.1), xticks=[], xlabel="time (lengths are made up)")
    axes[0].set(xlabel="")
    legend(panel, *((kind, color) for kind, (color, _) in styles.items()))
    return figure, (
        f"{ranks} ranks make {steps} steps each. Above all ranks send after every step, {steps} times. Below they send after "
        f"every {every} steps, {steps // every} times, and are done sooner; within a round the ranks' parameters part."
    )


def busy_figure(computing: Mapping[str, float], sending: Mapping[str, float]) -> tuple[Figure, str]:
    """The share of time in which ranks compute against H: a panel for each machine, in it a curve for each network.

    `computing` is the seconds of a step, `sending` those of one average; nothing overlaps. A mark is at the first H from 9r on.
    """
    figure, grid = panels(1, len(computing), height=3.4, sharey=True, squeeze=False)
    periods = np.logspace(0, 5, 200)
    marks = []
    for panel, (machine, step) in zip(grid[0], computing.items(), strict=True):
        panel.axhline(90, color=COLORS["predicted"], linestyle=":", linewidth=1.4)
        ratios = {name: average / step for name, average in sending.items()}
        data = {name: zip(periods, periods / (periods + r), strict=True) for name, r in ratios.items()}
        title = f"{machine}: {format_seconds(step)} a step"
        x, y = "H (mark: smallest H with 90 % or more)", "share of time in which\nthe ranks compute"
        lines(data, title, x, y, unit="%", log="x", labels="none", axes=panel)
        for (name, r), color, marker in zip(ratios.items(), SERIES, MARKS, strict=False):
            enough = max(1, math.ceil(round(9 * r, 6)))  # rounded, so that a sum of floats asks for no step more
            panel.plot(enough, 100 * enough / (enough + r), marker, color=COLORS[color], markersize=8)
            marks.append(f"{machine}, {name}: nine tenths at H = {enough:,}")
        panel.set(xlim=(0.8, 1e5), ylim=(0, 105))
    legend(panel)
    title = "Nine tenths of the time go to computing from H = 9r on; a faster machine needs a larger H"
    text = f"Share of the time spent computing against H, an S for each network. {'; '.join(marks)}."
    return add_title(figure, title, text)


def drift_figure(drifts: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]]) -> tuple[Figure, str]:
    """How far a rank is from the mean of all, against its steps: a panel per group, in it a line per run of (step, distance)."""
    figure, grid = panels(1, len(drifts), height=3.3, sharey=True, squeeze=False)
    texts = []
    for axes, (group, runs) in zip(grid[0], drifts.items(), strict=True):
        styles = {name: (color, "-") for name, color in zip(runs, SERIES, strict=False)}
        texts.append(lines(runs, group, y="distance to the ranks' mean", styles=styles, labels="none", axes=axes)[1])
    legend(grid[0][0])
    return add_title(figure, "Within a round the ranks part, and an average brings them together", *texts)


def apart_figure(drifts: Mapping[str, Sequence[tuple[int, float]]], low: float) -> tuple[Figure, str]:
    """Distances to the mean as in `drift_figure`, in two panels above each other: what lies above `low`, and what below."""
    figure, (above, below) = panels(2, 1, height=3.8, sharex=True, height_ratios=(1, 1.6))
    styles = dict(zip(drifts, zip(SERIES, ("-", "-", "--"), strict=False), strict=False))
    for panel in (above, below):
        _, alt = lines(drifts, y="distance to the ranks' mean", styles=styles, labels="none", axes=panel)
        panel.set(ylabel="")
    for name, points in drifts.items():
        last = points[-2][1]  # before the average that may end the run
        panel = above if last > low else below
        panel.text(1.01 * points[-1][0], last, name, color=text_color(styles[name][0]), va="center")
    top = max(d for points in drifts.values() for _, d in points)
    above.set(
        ylim=(low, 1.25 * top), title="Run A never closes the gap; run B closes it with its first average", xlabel=""
    )
    below.set(ylim=(-0.03 * low, low))
    figure.supylabel("distance to the ranks' mean (two scales)", fontsize=10)
    return figure, alt


class CostOfLoss(NamedTuple):
    """What a rank had spent when a loss was reached."""

    step: int
    sent: int  # bytes
    messages: int


def cost_of_a_loss(run: RankHistory, level: float) -> CostOfLoss:
    """Cost of the first average after which no average has a loss above `level`."""
    before = [0, *run.sent]
    averages = [i for i in range(len(run.losses)) if run.sent[i] > before[i]]
    above = [place for place, i in enumerate(averages) if run.losses[i] > level]
    first = averages[above[-1] + 1 if above else 0]
    return CostOfLoss(run.steps[first], run.sent[first], run.messages[first])


def losses_of_ways_figure(
    runs: Mapping[str, RankHistory], computing: float, network: tuple[float, float], name: str
) -> tuple[Figure, str]:
    """Loss of the ranks' mean against steps; beside it the bytes and seconds to the highest of the last losses.

    `computing` is the seconds of a step; `network` is bytes a second out of a rank and seconds a message, and has a `name`.
    """
    level = max(run.losses[-1] for run in runs.values())
    bandwidth, latency = network
    costs = {way: cost_of_a_loss(run, level) for way, run in runs.items()}
    sent = {way: cost.sent for way, cost in costs.items()}
    times = {way: c.step * computing + c.sent / bandwidth + c.messages * latency for way, c in costs.items()}
    colors = dict(zip(runs, SERIES, strict=False))
    figure, (curves, left, right) = panels(1, 3, height=3.3, width_ratios=(1.5, 1, 1))
    _draw_losses(curves, runs, colors, level, costs)
    for axes, values, unit, heading, x in (
        (left, sent, "bytes", "bytes by then", "sent by a rank"),
        (right, times, "seconds", "time by then, on paper", f"predicted,\n{name}"),
    ):
        rows = {way: {way: value} for way, value in values.items()}
        bars(rows, heading, x, unit=unit, colors=colors, show_legend=False, axes=axes)
        axes.set_xlim(0, 1.2 * axes.get_xlim()[1])
    right.set_yticklabels([])
    quick = min(costs, key=lambda way: costs[way].step)
    most, slowest = max(sent, key=sent.get), max(times, key=times.get)
    dear = f"{most} the most bytes and, on paper, {slowest} the most time"
    dear = "the most bytes and, on paper, the most time" if quick == most == slowest else dear
    by_way = "; ".join(
        f"{way}: {format_counted(cost.step, 'step')}, {format_bytes(cost.sent)} sent, {format_seconds(times[way])}"
        for way, cost in costs.items()
    )
    title = f"To a loss of {level:.2f}, {quick} takes the fewest steps, {dear}"
    text = f"Loss of the ranks' mean against steps, and what a loss of {level:.2f} costs, in predicted times on {name}. {by_way}."
    return add_title(figure, title, text)


def _draw_losses(
    axes: Axes,
    runs: Mapping[str, RankHistory],
    colors: Mapping[str, str],
    level: float,
    costs: Mapping[str, CostOfLoss],
) -> None:
    """A line for each way, and a mark where it reaches `level`."""
    data = {way: zip(run.steps, run.losses, strict=True) for way, run in runs.items()}
    title = f"mark: from here averages stay at or below {level:.2f}"
    styles = {way: (colors[way], "-") for way in runs}
    lines(data, title, "steps", "loss of the mean", styles=styles, labels="legend", number=".2f", axes=axes)
    axes.axhline(level, color=COLORS["predicted"], linestyle=":", linewidth=1.4)
    # Of falling size, so that marks in one place are all seen.
    for (way, run), marker, size in zip(runs.items(), MARKS, (14, 12, 9, 6), strict=False):
        mark_style = {"color": COLORS[colors[way]], "markersize": size, "markeredgecolor": COLORS["paper"]}
        step = costs[way].step
        axes.plot(step, run.losses[run.steps.index(step)], marker, **mark_style)


def losses_against_every_figure(
    ends: Mapping[str, Mapping[int, Sequence[float]]], levels: Mapping[str, Sequence[float]]
) -> tuple[Figure, str]:
    """The losses after equally many steps against H, over several seeds: a line per kind of data through the middle ones.

    Strokes and bands reach from the lowest to the highest; a band is what averaged gradients give.
    """
    figure, axes = panels(height=3.4)
    for (kind, line), color, marker in zip(ends.items(), SERIES, MARKS, strict=False):
        style = {"color": COLORS[color]}
        low, high = min(levels[kind]), max(levels[kind])
        middle = [float(np.median(losses)) for losses in line.values()]
        reach = [[m - min(v) for m, v in zip(middle, line.values(), strict=True)]]
        reach += [[max(v) - m for m, v in zip(middle, line.values(), strict=True)]]
        axes.errorbar(list(line), middle, yerr=reach, marker=marker, capsize=4, **style)
        axes.axhspan(low, high, alpha=0.25, linewidth=0, **style)
        axes.text(list(line)[-1] * 1.15, middle[-1], kind, color=text_color(color), va="center")
    periods = sorted({h for line in ends.values() for h in line})
    axes.set(xscale="log", xlim=(periods[0] / 1.3, periods[-1] * 3.2))
    axes.set_ylabel("loss of the mean\nafter equally many steps")
    axes.set_xlabel("H, steps between two averages, log (mark: median of the seeds; whiskers: lowest, highest)")
    tick(axes, periods)
    axes.set_title("Local steps cost much loss by package, little on mixed data (bands: DDP)")
    by_kind = "; ".join(
        f"{kind}: {', '.join(f'{min(v):.2f} to {max(v):.2f} at H = {h}' for h, v in line.items())}, "
        f"DDP {min(levels[kind]):.2f} to {max(levels[kind]):.2f}"
        for kind, line in ends.items()
    )
    return figure, f"Lowest and highest loss of the ranks' mean over the seeds against H. {by_kind}."


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
    every: int, matrices: np.ndarray, centers: np.ndarray, rate: float, corrected: bool = False, steps: int = 60
) -> np.ndarray:
    """Every rank's place before and after each of `steps` local steps, [steps + 1, ranks, 2]; after `every` steps all go
    on from their mean, which is then the place of that step. θ ← θ − α A (θ − c).

    `corrected` is SCAFFOLD: from each slope a rank takes its own mean slope of the last round, and adds that of all ranks.
    """
    place = np.tile([-2.2, 1.4], (len(centers), 1))
    places = [place]
    own = np.zeros_like(place)
    began = place
    for step in range(1, steps + 1):
        slope = np.einsum("rij,rj->ri", matrices, place - centers)
        place = place - rate * (slope + (own.mean(0) - own if corrected else 0))
        places.append(place)
        if step % every == 0:
            own = own - own.mean(0) + (began - place) / (every * rate)
            place = began = np.tile(place.mean(0), (len(place), 1))
    return np.stack(places)


def play_local_drift(
    every: int = 10, heterogeneity: float = 1.0, ranks: int = 3, rate: float = 0.3, corrected: bool = False
) -> tuple[Figure, str]:
    """Play: ranks in bowls of their own, where they go between averages, and where their mean ends."""
    matrices, centers = bowls(ranks, heterogeneity)
    places = local_paths(every, matrices, centers, rate, corrected)
    lowest = joint_minimum(matrices, centers)
    figure, (plane, line) = panels(1, 2, height=3.6, width_ratios=(1.5, 1))
    _draw_bowls(plane, matrices, centers)
    _draw_rounds(plane, places, centers, every)
    means = places.mean(1)
    plane.plot(*means[::every].T, "o-", color=COLORS["ink"], markersize=4, linewidth=2, label="ranks' mean at averages")
    plane.plot([], [], color=COLORS["ink"], linewidth=1, label="a rank's path")
    star = {"color": COLORS["inputs"], "markersize": 15, "markeredgecolor": COLORS["ink"]}
    plane.plot([], [], "x", color=COLORS["ink"], markeredgewidth=2, label="a rank's own minimum")
    plane.plot(*lowest, "*", **star, label="joint minimum")
    plane.plot([], [], color=COLORS["grid"], linewidth=1, label="equal joint loss")
    plane.set(xlabel="first parameter", ylabel="second parameter", xlim=(-2.7, 2.7), ylim=(-2.4, 2.4), aspect="equal")
    legend(plane)
    drifts = _distances_to_mean(places, every)
    line.plot(*zip(*drifts, strict=True), color=COLORS["first"])
    line.set(xlabel="step", ylabel="distance to the mean\n(over all ranks)", xlim=(0, None), ylim=(0, None))
    steps = len(places) - 1
    off = float(np.linalg.norm(places[steps - steps % every].mean(0) - lowest))
    rounds = format_counted(steps // every, "average")
    add_title(figure, f"{rounds} in {steps} steps; the last is {off:.2f} from the joint minimum")
    by = ", drift corrected" if corrected else ""
    return figure, (
        f"{ranks} ranks in bowls whose lowest points are {heterogeneity:g} from the middle, H = {every}, "
        f"learning rate {rate:g}{by}. They drift at most {max(d for _, d in drifts):.2f} from their mean; after {rounds} the "
        f"mean is {off:.2f} from the joint minimum."
    )


def _draw_bowls(axes: Axes, matrices: np.ndarray, centers: np.ndarray) -> None:
    """Lines of equal height of the mean of the bowls."""
    x, y = np.meshgrid(np.linspace(-2.7, 2.7, 80), np.linspace(-2.4, 2.4, 80))
    apart = np.stack([x, y], axis=-1)[None] - centers[:, None, None, :]
    height = 0.5 * np.einsum("rxyi,rij,rxyj->xy", apart, matrices, apart) / len(centers)
    axes.contour(x, y, height, levels=9, colors=COLORS["grid"], linewidths=1)
    axes.grid(visible=False)


def _draw_rounds(axes: Axes, places: np.ndarray, centers: np.ndarray, every: int) -> None:
    """Where each rank went, round by round: each starts from the ranks' mean. A cross is a rank's own minimum."""
    means = places.mean(1)
    for rank, center in enumerate(centers):
        color = COLORS[SERIES[rank % 4]]
        for begin in range(0, len(places) - 1, every):
            track = np.vstack([means[begin], places[begin + 1 : begin + every + 1, rank]])
            axes.plot(*track.T, color=color, linewidth=1)
        axes.plot(*center, "x", color=color, markersize=8, markeredgewidth=2)


def _distances_to_mean(places: np.ndarray, every: int) -> list[tuple[int, float]]:
    """Root mean square distance of the ranks to their mean, before and after each average."""
    spread = np.sqrt(((places - places.mean(1, keepdims=True)) ** 2).sum(2).mean(1))
    points = [(0, 0.0)]
    for step in range(1, len(places)):
        points.append((step, float(spread[step])))
        if step % every == 0:
            points.append((step, 0.0))
    return points
