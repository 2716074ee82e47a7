"""Memory over one step, event by event."""

from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from course_utils.memory.usage import KINDS, Usage
from course_utils.units import format_bytes
from course_utils.viz.parts import byte_unit, patches, subplots
from course_utils.viz.style import COLORS

_LETTER_SHARE = 0.017  # of the width of the axes, for one letter of a phase's name
_LINE_SHARE = 0.025  # the same for a name written upright


class Stretch(NamedTuple):
    """Neighboring events of one phase, `first` up to but without `end`."""

    phase: str
    first: int
    end: int


def timeline_figure(usage: Usage, title: str = "") -> tuple[Figure, str]:
    """The memory of a step as stacked steps, one per birth or death of a piece; phases along the top, the peak marked.

    Raises `CourseError` when nothing was logged.
    """
    unit, size = byte_unit(usage.peak)
    timeline = usage.timeline
    figure, axes = subplots(figsize=(7.6, 3.8), layout="constrained")
    _draw_layers(axes, timeline, size)
    stretches = _stretches(timeline["phase"])
    _draw_phases(axes, stretches, len(timeline))
    _mark_peak(axes, timeline, size, f"peak: {format_bytes(usage.peak)}")
    axes.set(xlabel="events of the step: memory taken or given back", ylabel=f"memory in use, {unit}", title=title)
    axes.set(xlim=(0, len(timeline)), ylim=(0, 1.16 * usage.peak / size))
    axes.grid(axis="x", visible=False)
    used = [kind for kind in KINDS if timeline[kind].any()]
    handles, labels = patches(*((kind, kind) for kind in reversed(used)))
    figure.legend(handles, labels, loc="outside right center")
    return figure, _described(usage, stretches)


def _draw_layers(axes, timeline: pd.DataFrame, size: int) -> None:
    """Each kind over those before it, with a thin line between them for readers who see no color."""
    tops = timeline[list(KINDS)].to_numpy().cumsum(axis=1) / size
    places = np.arange(len(tops))
    corners = np.repeat(np.arange(len(tops) + 1), 2)[1:-1]  # each event has a left and a right one
    below = np.zeros(len(tops))
    for kind, top in zip(KINDS, tops.T, strict=True):
        there, color = top > below, COLORS[kind]
        edges = {
            "edgecolor": color,
            "linewidth": 0.4,
        }  # else a piece that dies at once is thinner than a dot, and fades
        low, high, where = (np.repeat(values, 2) for values in (below, top, there))
        axes.fill_between(corners, low, high, where=where, facecolor=color, **edges)
        axes.hlines(below[there], places[there], places[there] + 1, colors=COLORS["paper"], linewidth=0.4)
        below = top


def _stretches(phases: pd.Series) -> list[Stretch]:
    firsts = [0, *(place for place in range(1, len(phases)) if phases[place] != phases[place - 1])]
    return [Stretch(phases[a], a, b) for a, b in zip(firsts, [*firsts[1:], len(phases)], strict=True)]


def _draw_phases(axes, stretches: list[Stretch], events: int) -> None:
    """Every second phase shaded, and each name above its phase: level where all have room, else upright or left out."""
    for shaded in stretches[1::2]:
        axes.axvspan(shaded.first, shaded.end, color=COLORS["grid"], alpha=0.45, linewidth=0, zorder=0)
    named = [s for s in stretches if s.end - s.first >= _LINE_SHARE * events]
    level = all(s.end - s.first >= _LETTER_SHARE * len(s.phase) * events for s in named)
    above = axes.secondary_xaxis("top")
    above.set_xticks([(s.first + s.end) / 2 for s in named], [s.phase for s in named], rotation=0 if level else 90)
    above.tick_params(length=0, pad=2)
    above.spines["top"].set_visible(False)


def _mark_peak(axes, timeline: pd.DataFrame, size: int, text: str) -> None:
    totals = timeline[list(KINDS)].sum(axis=1).to_numpy()
    place = int(totals.argmax())
    at = (place + 0.5, totals[place] / size)
    side = "right" if place > len(totals) / 2 else "left"
    axes.plot(*at, "v", color=COLORS["ink"], markersize=6, clip_on=False)
    away = (-7 if side == "right" else 7, 3)
    axes.annotate(text, at, xytext=away, textcoords="offset points", ha=side, color=COLORS["ink"], weight="bold")


def _described(usage: Usage, stretches: list[Stretch]) -> str:
    order = ", ".join(stretch.phase for stretch in stretches)
    split = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in usage.split.items())
    phases = ", ".join(f"{phase} {format_bytes(size)}" for phase, size in usage.by_phase.items())
    return (
        f"Memory in use over the {len(usage.events)} events of a step, stacked by kind; phases in order: {order}. "
        f"The peak is {format_bytes(usage.peak)}, in {usage.peak_phase}: {split}. Peaks by phase: {phases}."
    )
