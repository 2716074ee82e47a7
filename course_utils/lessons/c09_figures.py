"""Chapter 09's figures, and ranks that descend in bowls of their own, to play with."""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
from matplotlib.figure import Figure

from course_utils.units import format_counted, format_seconds
from course_utils.viz.parts import draw_cell, hide_axes
from course_utils.viz.plots import Span, add_title, legend, lines, panels, panels_of_lines, timeline
from course_utils.viz.style import COLORS, SERIES


def ring_figure(turns: Sequence[Sequence[Sequence[str]]]) -> tuple[Figure, str]:
    """What `ring_on_rank` saw: a panel for each turn, a row for each rank, a column for each piece and whose parts it holds."""
    ranks = len(turns)
    figure, grid = panels(2, ranks - 1, height=4.1)
    states = list(zip(*turns, strict=True))
    for turn, panel in enumerate(grid.flat, 1):
        hide_axes(panel, (0, ranks), (ranks, -0.5), f"turn {turn}: {'add' if turn < ranks else 'copy'}")
        for rank, piece in product(range(ranks), repeat=2):
            parts = states[turn][rank][piece]
            color, alpha = ("third", 0.6) if len(parts) == ranks else ("activations", 0.2 * len(parts))
            draw_cell(panel, piece, rank, color, parts, alpha=alpha)
            if parts != states[turn - 1][rank][piece]:
                ends = (piece + 0.5, rank + 0.3), (piece + 0.5, rank - 0.36)
                panel.annotate("", *ends, arrowprops={"arrowstyle": "-|>", "color": COLORS["second"]})
    key = "row: rank; column: piece; 012: parts of ranks 0, 1 and 2; arrow: from the rank before (0: from the last)"
    figure.supxlabel(key, fontsize=9)
    title = f"{ranks - 1} turns add and {ranks - 1} copy; in each a rank sends 1 of its {ranks} pieces"
    moves = "; ".join(f"turn {turn}: {', '.join('-'.join(row) for row in state)}" for turn, state in enumerate(states))
    return add_title(figure, title, f"Whose parts each piece holds, rank by rank: {moves}.")


def local_rounds_figure(ranks: int = 3, interval: int = 4, steps: int = 8) -> tuple[Figure, str]:
    """The idea: ranks that send after every step, above ranks that send after `interval` steps and diverge in between."""
    figure, axes = panels(2, height=3.8, sharex=True)
    styles = {"a step of a rank": ("first", ""), "all ranks send": ("gradients", "")}
    titles = {
        1: "data parallelism: gradients are averaged at each step",
        interval: f"local SGD, H = {interval}: parameters are averaged every {interval} steps",
    }
    for panel, (h, title) in zip(axes, titles.items(), strict=True):
        spans = []
        for rank, step in product(range(ranks), range(steps)):
            start = step + 0.8 * (step // h)  # to send takes 0.8 of a step's time
            spans.append(Span(rank, start, start + 1, "a step of a rank"))
            if (step + 1) % h == 0:
                spans.append(Span(rank, start + 1, start + 1.8, "all ranks send"))
        lanes = [f"rank {rank}" for rank in range(ranks)]
        timeline(spans, lanes, title, "time (lengths are made up)", styles=styles, axes=panel)
    panel.set(xlim=(0, 1.8 * steps), xticks=[])
    legend(panel, *((kind, color) for kind, (color, _) in styles.items()))
    title = f"{ranks} ranks make {steps} steps each, with {steps} averages above, {steps // interval} below"
    return add_title(figure, title)


def busy_figure(computing: Mapping[str, float], sending: Mapping[str, float]) -> tuple[Figure, str]:
    """The share of time in which ranks compute against H, by seconds of a step on each machine and of an average by network."""
    periods = np.logspace(0, 5, 200)
    data = {}
    for machine, step in computing.items():
        curves = {name: zip(periods, periods / (periods + s / step), strict=True) for name, s in sending.items()}
        data[f"{machine}: {format_seconds(step)} a step"] = curves
    title = "Nine tenths of the time go to computing from H = 9r on; a faster machine needs a larger H"
    y = "share of time in which\nthe ranks compute"
    options = {"unit": "%", "log": "x", "styles": {"90 %": ("ink", ":")}, "levels": {"90 %": 0.9}}
    return panels_of_lines(data, title, "H, steps between two averages (log)", y, **options)


def losses_by_interval_figure(
    ends: Mapping[str, Mapping[int, Sequence[float]]], of_ddp: Mapping[str, Sequence[float]]
) -> tuple[Figure, str]:
    """Losses of the seeds after equally many steps against H, and with DDP, for each kind of data."""
    title = "Local steps cost much loss by package, little on mixed data"
    x, y = "H, steps between two averages (log)", "loss of the mean\nafter equally many steps"
    levels = {f"DDP, {kind}": losses for kind, losses in of_ddp.items()}
    styles = {name: (color, ":") for name, color in zip(levels, SERIES, strict=False)}
    return lines(ends, title, x, y, log="x", styles=styles, levels=levels, number=".2f")


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
    means = places.mean(1)
    lowest = joint_minimum(matrices, centers)
    figure, (plane, line) = panels(1, 2, height=3.6, width_ratios=(1.5, 1))
    for rank, center in enumerate(centers):
        color = COLORS[SERIES[rank]]
        for begin in range(0, len(places) - 1, interval):
            track = np.vstack([means[begin], places[begin + 1 : begin + interval + 1, rank]])
            plane.plot(*track.T, color=color, linewidth=1)
        plane.plot(*center, "x", color=color, markeredgewidth=2, label=f"minimum of rank {rank}")
    plane.plot(*means[::interval].T, "o-", color=COLORS["ink"], markersize=4, label="ranks' mean at averages")
    plane.plot(*lowest, "*", color=COLORS["warning"], markersize=14, label="joint minimum")
    plane.set(xlabel="first parameter", ylabel="second parameter", xlim=(-2.7, 2.7), ylim=(-2.4, 2.4), aspect="equal")
    legend(plane)
    drifts = {"drift": _distances_to_mean(places, interval)}
    lines(drifts, y="distance to the mean\n(over all ranks)", labels="none", axes=line)
    averages, rest = divmod(len(places) - 1, interval)
    off = float(np.linalg.norm(means[len(places) - 1 - rest] - lowest))
    title = f"After {format_counted(averages, 'average')} the mean is {off:.2f} from the joint minimum"
    by = f"H = {interval}, learning rate {rate:g}{', drift corrected' if corrected else ''}"
    text = f"{ranks} ranks in bowls whose lowest points are {heterogeneity:g} from the middle, {by}."
    return add_title(figure, title, text)


def _distances_to_mean(places: np.ndarray, interval: int) -> list[tuple[int, float]]:
    """Root mean square distance of the ranks to their mean, before and after each average."""
    spread = np.sqrt(((places - places.mean(1, keepdims=True)) ** 2).sum(2).mean(1))
    points = [(0, 0.0)]
    for step in range(1, len(places)):
        points.append((step, float(spread[step])))
        if step % interval == 0:
            points.append((step, 0.0))
    return points
