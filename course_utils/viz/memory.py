"""Figures about bytes: of a step's instants, and of a step event by event."""

from collections.abc import Mapping
from itertools import groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_utils.memory.trace.log import KINDS, Usage
from course_utils.units import format_bytes
from course_utils.viz.labels import note
from course_utils.viz.parts import VISIBLE, patches, subplots, unit_for
from course_utils.viz.plots import add_letter, bars
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
    limit = ("the card", card) if card else None
    return bars(by_instant, title, "memory in use", notes=notes, limit=limit)


def timeline_figure(usage: Usage, title: str = "") -> tuple[Figure, str]:
    """The memory of a step as stacked steps, one per birth or death of a piece; phases along the top, the peak marked.

    Raises `CourseError` when nothing was logged.
    """
    unit, size = unit_for(usage.peak)
    timeline = usage.timeline
    phases, end = [], 0  # name, first event, and the event after the last
    for name, events in groupby(timeline["phase"]):
        phases.append((name, end, end := end + len(list(events))))
    figure, axes = subplots(figsize=(7.6, 3.8), layout="constrained")
    tops = timeline[list(KINDS)].to_numpy().cumsum(axis=1) / size
    _draw_layers(axes, tops)
    _draw_phases(axes, phases, end)
    peak_event = int(tops[:, -1].argmax())
    peak = (peak_event + 0.5, tops[peak_event, -1])
    axes.plot(*peak, "v", color=COLORS["ink"], markersize=6, clip_on=False)
    offset = (-7 if peak_event > end / 2 else 7, 6)
    note(axes, f"peak: {format_bytes(usage.peak)}", peak, offset, color=COLORS["ink"], weight="bold", fontsize=10)
    axes.set(xlabel="events of the step: memory allocated or freed", ylabel=f"memory in use, {unit}", title=title)
    axes.set(xlim=(0, end), ylim=(0, 1.16 * usage.peak / size))
    axes.grid(axis="x", visible=False)
    visible = [kind for kind in KINDS if timeline[kind].max() >= VISIBLE * usage.peak]
    figure.legend(*patches(*((add_letter(kind), kind) for kind in reversed(visible))), loc="outside right center")
    split = ", ".join(f"{kind} {format_bytes(count)}" for kind, count in usage.split.items())
    peaks = ", ".join(f"{phase} {format_bytes(count)}" for phase, count in usage.by_phase.items())
    return figure, (
        f"Memory in use over the {len(usage.events)} events of a step, stacked by kind; phases in order: "
        f"{', '.join(name for name, *_ in phases)}. The peak is {format_bytes(usage.peak)}, in {usage.peak_phase}: {split}. "
        f"Peaks by phase: {peaks}."
    )


def _draw_layers(axes: Axes, tops: np.ndarray) -> None:
    """Each kind over those before it, with a thin line between them for readers who see no color."""
    starts = np.arange(len(tops))
    corners = np.repeat(np.arange(len(tops) + 1), 2)[1:-1]  # each event has a left and a right one
    below = np.zeros(len(tops))
    for kind, top in zip(KINDS, tops.T, strict=True):
        has_height = top > below
        color = COLORS[kind]
        low, high, mask = (np.repeat(values, 2) for values in (below, top, has_height))
        # Without an edge a piece that dies at once is thinner than a dot, and fades.
        axes.fill_between(corners, low, high, where=mask, facecolor=color, edgecolor=color, linewidth=0.4)
        left = starts[has_height]
        axes.hlines(below[has_height], left, left + 1, colors=COLORS["paper"], linewidth=0.4)
        below = top


def _draw_phases(axes: Axes, phases: list[tuple[str, int, int]], events: int) -> None:
    """Every second phase shaded, and each name above its phase: level where all have room, else upright or left out."""
    for _, first, end in phases[1::2]:
        axes.axvspan(first, end, color=COLORS["grid"], alpha=0.45, linewidth=0, zorder=0)
    wide = [(name, first, end) for name, first, end in phases if end - first >= 0.025 * events]
    centers = [(first + end) / 2 for _, first, end in wide]
    names = [name for name, *_ in wide]
    widths = [0.017 * len(name) * events for name in names]
    has_room = all(b - a >= (v + w) / 2 for a, b, v, w in zip(centers, centers[1:], widths, widths[1:], strict=False))
    above = axes.secondary_xaxis("top")
    above.set_xticks(centers, names, rotation=0 if has_room else 90)
    above.tick_params(length=0, pad=2)
    above.spines["top"].set_visible(False)
