"""Figures of local SGD: rounds in time, what networks leave of it, drift between ranks, and loss against what was sent."""

from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from course_utils.training.rounds import Path
from course_utils.units import format_bytes, format_counted, format_seconds
from course_utils.viz.parts import byte_unit, patches, second_unit, subplots
from course_utils.viz.style import COLORS

_ORDER = ("first", "second", "third", "fourth", "gradients", "activations", "ink")
_MARKERS = "osD^vPX"
_SENDING = 0.8  # of a step's time, in the picture of the idea
_PLAY_STEPS = 60


def local_rounds_figure(ranks: int = 3, every: int = 4, steps: int = 8) -> tuple[Figure, str]:
    """The idea: ranks that send after every step, above ranks that send after `every` steps and diverge in between."""
    figure, axes = subplots(2, 1, figsize=(7.6, 3.6), layout="constrained", sharex=True)
    for panel, h, title in ((axes[0], 1, "an average of gradients at each step"), (axes[1], every, f"H = {every}")):
        _draw_rounds(panel, ranks, h, steps)
        panel.set(title=title if h == 1 else f"{title}: an average of parameters at each round of {every} steps")
    axes[1].set(xlabel="time")
    handles, labels = patches(("a step of a rank", "first"), ("all ranks send", "gradients"))
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure, (
        f"{ranks} ranks make {steps} steps each. Above all ranks send after every step, {steps} times. Below they send after "
        f"every {every} steps, {steps // every} times, and are done sooner; within a round the ranks' parameters part."
    )


def busy_figure(computing: float, sending: Mapping[str, float], everies: Sequence[int]) -> tuple[Figure, str]:
    """The share of time in which ranks compute: a row per network, a mark per number of steps between two averages.

    `computing` is the seconds of a step, `sending` by network those of one average; nothing overlaps.
    """
    figure, axes = subplots(figsize=(7.6, 1.1 + 0.45 * len(sending)), layout="constrained")
    names = list(sending)
    for every, color, marker in zip(everies, _ORDER, _MARKERS, strict=False):
        shares = [computing / (computing + sending[name] / every) for name in names]
        style = {"color": COLORS[color], "markersize": 9, "markeredgecolor": COLORS["paper"]}
        axes.plot([100 * s for s in shares], names, marker, label=f"H = {every:,}", clip_on=False, **style)
    axes.set(xlim=(-2, 102), xlabel="share of time in which the ranks compute, %")
    axes.invert_yaxis()
    axes.margins(y=0.15)
    figure.legend(loc="outside upper center", ncols=len(everies))
    said = "; ".join(
        f"{name}: " + ", ".join(f"{computing / (computing + sending[name] / h):.0%} at H = {h:,}" for h in everies)
        for name in names
    )
    return figure, f"A step computes for {format_seconds(computing)}. Share of the time spent computing, {said}."


def drift_figure(
    drifts: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]], tops: Mapping[str, float] | None = None
) -> tuple[Figure, str]:
    """How far a rank is from the mean of all, against its steps: a panel per group, in it a line per run.

    A line is `(step, distance)` in order. Panels share their height, unless `tops` gives one of them the highest distance it
    is to show.
    """
    figure, panels = subplots(1, len(drifts), figsize=(7.6, 3.2), layout="constrained", sharey=not tops, squeeze=False)
    names = list(dict.fromkeys(name for lines in drifts.values() for name in lines))
    colors = dict(zip(names, _ORDER, strict=False))
    for axes, (group, lines) in zip(panels[0], drifts.items(), strict=True):
        # The first lines are the thicker ones, so that a later one on top leaves them visible.
        for width, (name, points) in zip(range(len(lines), 0, -1), lines.items(), strict=True):
            axes.plot(*zip(*points, strict=True), color=COLORS[colors[name]], linewidth=0.4 + width, label=name)
        axes.set(xlabel="step", title=group)
    for axes, group in zip(panels[0], drifts, strict=True):
        top = (tops or {}).get(group, axes.get_ylim()[1])
        axes.set_ylim(-0.03 * top, top)  # a line at 0 stands clear of the axis
    panels[0][0].set(ylabel="distance to the mean")
    handles = {label: h for axes in panels[0] for h, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=min(4, len(handles)))
    said = "; ".join(_drift_in_words(group, lines) for group, lines in drifts.items() if group not in (tops or {}))
    return figure, f"Distance of a rank to the mean of all ranks against steps. {said}."


def losses_of_ways_figure(
    paths: Mapping[str, Path], computing: float, network: tuple[float, float], name: str
) -> tuple[Figure, str]:
    """Loss of the ranks' mean at equal steps, at equal bytes, at equal seconds on a stated network.

    `computing` is the seconds of a step; `network` is bytes a second out of a rank and seconds a message, and has a `name`.
    The axis of bytes begins with 0, where nothing was sent yet, and goes on in powers of ten.
    """
    figure, panels = subplots(1, 3, figsize=(7.6, 3.2), layout="constrained", sharey=True)
    _, size = unit = byte_unit(max(path.sent[-1] for path in paths.values()))
    times = {way: _seconds(path, computing, *network) for way, path in paths.items()}
    time_unit, second = second_unit(max(max(line) for line in times.values()))
    sent = {way: [sent / size for sent in path.sent] for way, path in paths.items()}
    times_shown = {way: [t / second for t in line] for way, line in times.items()}
    for (way, path), color in zip(paths.items(), _ORDER, strict=False):
        for panel, x in zip(panels, (path.steps, sent[way], times_shown[way]), strict=True):
            panel.plot(x, path.losses, color=COLORS[color], label=way)
    panels[0].set(xlabel="steps", ylabel="loss of the mean")
    panels[1].set(xlabel=f"sent by a rank, {unit[0]}")
    panels[2].set(xlabel=f"time, {time_unit}\n({name})")
    _decades(panels[1], [x for line in sent.values() for x in line])
    _decades(panels[2], [x for line in times_shown.values() for x in line])
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=min(4, len(paths)))
    said = "; ".join(
        f"{way}: {path.losses[-1]:.2f} after {path.steps[-1]} steps, {format_bytes(path.sent[-1])} sent, "
        f"{format_seconds(times[way][-1])}"
        for way, path in paths.items()
    )
    return figure, f"Loss of the ranks' mean against steps, bytes sent and seconds on {name}. {said}."


def losses_against_every_figure(
    ends: Mapping[str, Mapping[int, float]], levels: Mapping[str, float]
) -> tuple[Figure, str]:
    """The loss after equally many steps against H: a line per kind of data, dotted at what averaged gradients give."""
    figure, axes = subplots(figsize=(7.6, 3.2), layout="constrained")
    for (name, line), color, marker in zip(ends.items(), _ORDER, _MARKERS, strict=False):
        axes.plot(list(line), list(line.values()), marker=marker, color=COLORS[color], label=name)
        axes.axhline(levels[name], color=COLORS[color], linestyle=":", linewidth=1.4, label=f"{name}, DDP")
    everies = sorted({h for line in ends.values() for h in line})
    axes.set(xscale="log", xlabel="H, steps between two averages", ylabel="loss of the mean\nafter equally many steps")
    axes.set_xticks(everies, [f"{h}" for h in everies])
    axes.minorticks_off()
    figure.legend(loc="outside upper center", ncols=4)
    said = "; ".join(
        f"{name}: " + ", ".join(f"{v:.2f} at H = {h}" for h, v in line.items()) + f", DDP {levels[name]:.2f}"
        for name, line in ends.items()
    )
    return figure, f"Loss of the ranks' mean against H. {said}."


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
    every: int, matrices: np.ndarray, centers: np.ndarray, rate: float, start=(-2.2, 1.4), steps: int = _PLAY_STEPS
) -> np.ndarray:
    """Every rank's place before and after each of `steps` local steps, [steps + 1, ranks, 2]; after `every` steps all go
    on from their mean, which is then the place of that step. θ ← θ − α A (θ − c)."""
    place = np.tile(np.asarray(start, dtype=float), (len(centers), 1))
    places = [place]
    for step in range(1, steps + 1):
        place = place - rate * np.einsum("rij,rj->ri", matrices, place - centers)
        places.append(place)
        if step % every == 0:
            place = np.tile(place.mean(0), (len(place), 1))
    return np.stack(places)


def play_local_drift(
    every: int = 10, heterogeneity: float = 1.0, ranks: int = 3, rate: float = 0.3
) -> tuple[Figure, str]:
    """Play: ranks in bowls of their own, where they go between averages, and where their mean ends."""
    matrices, centers = bowls(ranks, heterogeneity)
    places, lowest = local_paths(every, matrices, centers, rate), joint_minimum(matrices, centers)
    figure, (plane, line) = subplots(1, 2, figsize=(7.6, 3.6), layout="constrained", width_ratios=(1.5, 1))
    _draw_contours(plane, matrices, centers)
    _draw_tracks(plane, places, centers, every)
    _draw_means(plane, places.mean(1)[::every], lowest)
    drifts = _sawtooth(places, every)
    line.plot(*zip(*drifts, strict=True), color=COLORS["first"])
    line.set(xlabel="step", ylabel="distance to the mean\n(over all ranks)", xlim=(0, None), ylim=(0, None))
    steps = len(places) - 1
    off = float(np.linalg.norm(places[steps - steps % every].mean(0) - lowest))
    rounds = format_counted(steps // every, "average")
    figure.suptitle(f"{rounds} in {steps} steps; the last is {off:.2f} from the joint minimum", fontsize=11)
    return figure, (
        f"{ranks} ranks in bowls whose lowest points are {heterogeneity:g} from the middle, H = {every}, learning rate {rate:g}. "
        f"They drift at most {max(d for _, d in drifts):.2f} from their mean; after {rounds} the mean is {off:.2f} from "
        "the joint minimum."
    )


def _draw_tracks(axes, places: np.ndarray, centers: np.ndarray, every: int) -> None:
    """Each rank's way in every round, which starts from the mean and not from where the rank was, and its lowest point."""
    means = places.mean(1)
    for rank, color in zip(range(len(centers)), cycle(_ORDER[:4])):
        for begin in range(0, len(places) - 1, every):
            track = np.vstack([means[begin], places[begin + 1 : begin + every + 1, rank]])
            axes.plot(*track.T, color=COLORS[color], linewidth=1)
        axes.plot(*centers[rank], "x", color=COLORS[color], markersize=8, markeredgewidth=2)


def _draw_means(axes, means: np.ndarray, lowest: np.ndarray) -> None:
    axes.plot(*means.T, "o-", color=COLORS["ink"], markersize=4, linewidth=2, label="mean")
    star = {"color": COLORS["inputs"], "markersize": 15, "markeredgecolor": COLORS["ink"]}
    axes.plot(*lowest, "*", **star, label="joint minimum")
    axes.set(xlabel="first parameter", ylabel="second parameter", xlim=(-2.7, 2.7), ylim=(-2.4, 2.4), aspect="equal")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)


def _sawtooth(places: np.ndarray, every: int) -> list[tuple[int, float]]:
    """Root mean square distance of the ranks to their mean, before and after each average."""
    spread = np.sqrt(((places - places.mean(1, keepdims=True)) ** 2).sum(2).mean(1))
    points = [(0, 0.0)]
    for step in range(1, len(places)):
        points.append((step, float(spread[step])))
        if step % every == 0:
            points.append((step, 0.0))
    return points


def _draw_contours(axes, matrices: np.ndarray, centers: np.ndarray) -> None:
    x, y = np.meshgrid(np.linspace(-2.7, 2.7, 80), np.linspace(-2.4, 2.4, 80))
    apart = np.stack([x, y], axis=-1)[None] - centers[:, None, None, :]
    height = 0.5 * np.einsum("rxyi,rij,rxyj->xy", apart, matrices, apart) / len(centers)
    axes.contour(x, y, height, levels=9, colors=COLORS["grid"], linewidths=1)
    axes.grid(visible=False)


def _drift_in_words(group: str, lines: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    said = (
        f"{name} at most {max(d for _, d in points):.2g}, {points[-1][1]:.2g} at the end"
        for name, points in lines.items()
    )
    return f"{group}: {', '.join(said)}"


def _seconds(path: Path, computing: float, bandwidth: float, latency: float) -> list[float]:
    looks = zip(path.steps, path.sent, path.messages, strict=True)
    return [step * computing + sent / bandwidth + messages * latency for step, sent, messages in looks]


def _decades(axes: Axes, values: Sequence[float]) -> None:
    """A scale in powers of ten, with a straight piece down to 0 where some of the values are 0."""
    low, high = min(v for v in values if v > 0), max(values)
    zero = [0.0] if 0 in values else []
    scale = {"value": "symlog", "linthresh": low, "linscale": 0.5} if zero else {"value": "log"}
    axes.set_xscale(**scale)
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    axes.xaxis.set_major_locator(FixedLocator([*zero, *(10.0**p for p in powers if 10.0**p >= low)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _draw_rounds(axes, ranks: int, every: int, steps: int) -> None:
    for rank in range(ranks):
        edge = 0.0
        for step in range(1, steps + 1):
            axes.add_patch(Rectangle((edge + 0.04, rank - 0.32), 0.92, 0.64, color=COLORS["first"]))
            edge += 1
            if step % every == 0:
                axes.add_patch(Rectangle((edge, rank - 0.5), _SENDING, 1, color=COLORS["gradients"]))
                edge += _SENDING
    axes.set(xlim=(0, steps * (1 + _SENDING) + 0.1), ylim=(ranks - 0.4, -0.6), xticks=[])
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    axes.grid(visible=False)
    axes.tick_params(length=0)
