"""Figures about bytes: of a step's instants, and of a step event by event."""

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_utils.memory.trace.log import KINDS, Usage
from course_utils.units import format_bytes
from course_utils.viz.labels import note
from course_utils.viz.parts import VISIBLE, patches, unit_for
from course_utils.viz.plots import add_letter, bars, panels
from course_utils.viz.style import COLORS


def instants_figure(
    by_instant: Mapping[str, Mapping[str, int]], title: str = "", card: int | None = None, mark: bool = True
) -> tuple[Figure, str]:
    """Stacked bars, one per instant: bytes by kind, as `memory.instants` returns them; the fullest instant is marked.

    `card` are the bytes that a card has, drawn as a line. Without `mark` no bar is: each may be the peak of a run of its own.
    """
    totals = {instant: sum(parts.values()) for instant, parts in by_instant.items()}
    peak = max(totals.values())
    notes = {name: f"{format_bytes(peak)}  ← peak" for name, total in totals.items() if mark and total == peak}
    return bars(by_instant, title, "memory in use", notes=notes, limit=("the card", card) if card else None)


def timeline_figure(usage: Usage, title: str = "") -> tuple[Figure, str]:
    """The memory of a step as stacked steps, one per birth or death of a piece; phases along the top, the peak marked.

    Raises `CourseError` when nothing was logged.
    """
    unit, size = unit_for(usage.peak)
    timeline = usage.timeline
    end = len(timeline)
    figure, axes = panels(height=3.8)
    tops = timeline[list(KINDS)].to_numpy().cumsum(axis=1) / size
    below = np.zeros(end)
    for kind, top in zip(KINDS, tops.T, strict=True):
        # Without an edge a piece that dies at once is thinner than a dot, and fades; without the line readers need color.
        (starts,) = np.nonzero(top > below)
        style = {"fill": True, "color": COLORS[kind], "linewidth": 0.4, "snap": False}
        axes.stairs(np.where(top > below, top, np.nan), baseline=below, **style)
        axes.hlines(below[starts], starts, starts + 1, colors=COLORS["paper"], linewidth=0.4)
        below = top
    peak = (int(below.argmax()) + 0.5, usage.peak / size)
    axes.plot(*peak, "v", color=COLORS["ink"], markersize=6, clip_on=False)
    offset = (-7 if peak[0] > end / 2 else 7, 6)
    note(axes, f"peak: {format_bytes(usage.peak)}", peak, offset, weight="bold", fontsize=10)
    axes.set(xlabel="events of the step: memory allocated or freed", ylabel=f"memory in use, {unit}", title=title)
    axes.set(xlim=(0, end), ylim=(0, 1.16 * usage.peak / size))
    axes.grid(axis="x", visible=False)
    _draw_phases(axes, timeline["phase"])
    visible = [kind for kind in KINDS if timeline[kind].max() >= VISIBLE * usage.peak]
    figure.legend(*patches(*((add_letter(kind), kind) for kind in reversed(visible))), loc="outside right center")
    split = ", ".join(f"{kind} {format_bytes(count)}" for kind, count in usage.split.items())
    peaks = ", ".join(f"{phase} {format_bytes(count)}" for phase, count in usage.by_phase.items())
    return figure, f"Memory in use, event by event. The peak is {format_bytes(usage.peak)}: {split}. By phase: {peaks}."


def _draw_phases(axes: Axes, phase_of_event: Sequence[str]) -> None:
    """Every second phase shaded, and each name above its phase: level where all have room, else upright or left out."""
    lengths = [(name, len(list(events))) for name, events in groupby(phase_of_event)]
    ends = np.cumsum([0, *(length for _, length in lengths)])
    for first, end in list(pairwise(ends))[1::2]:
        axes.axvspan(first, end, color=COLORS["grid"], alpha=0.45, linewidth=0, zorder=0)
    wide = [row for row, (_, length) in enumerate(lengths) if length >= 0.025 * ends[-1]]
    names = [lengths[row][0] for row in wide]
    centers = (ends[:-1] + ends[1:])[wide] / 2
    half_widths = 0.0085 * ends[-1] * np.array([len(name) for name in names])
    has_room = (np.diff(centers) >= half_widths[:-1] + half_widths[1:]).all()
    above = axes.secondary_xaxis("top")
    above.set_xticks(centers, names, rotation=0 if has_room else 90)
    above.tick_params(length=0, pad=2)
    above.spines["top"].set_visible(False)
