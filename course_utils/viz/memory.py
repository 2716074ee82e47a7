"""Figures about bytes: of a step's instants, and of a step event by event."""

from collections.abc import Mapping
from itertools import groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_utils.memory.trace.log import KINDS, Usage
from course_utils.units import format_bytes, three_digits
from course_utils.viz.parts import byte_unit, patches, subplots
from course_utils.viz.style import COLORS, writing

_ROOM = 1.32  # beyond the longest bar, for its size and the mark of the peak
_LETTERS = {"parameters": "P", "optimizer state": "O", "gradients": "G", "activations": "A"}
_VISIBLE = 0.002  # the least share of a figure's height or width that a reader sees


def instants_figure(
    by_instant: Mapping[str, Mapping[str, int]], title: str = "", card: int | None = None, mark: bool = True
) -> tuple[Figure, str]:
    """Stacked bars, one per instant: bytes by kind, as `memory.instants` gives them; the fullest instant is marked.

    `card` are the bytes that a card has, drawn as a line. Without `mark` no bar is: each may be the peak of a run of its own.
    """
    totals = {instant: sum(parts.values()) for instant, parts in by_instant.items()}
    unit, size = byte_unit(max(totals.values()))
    figure, axes = subplots(figsize=(7.6, 1 + 0.58 * len(by_instant)), layout="constrained")
    for row, parts in enumerate(by_instant.values()):
        stack(axes, row, parts, size)
    for row, total in enumerate(totals.values()):
        note = "  ← peak" if mark and total == max(totals.values()) else ""
        axes.text(total / size, row, f"  {three_digits(total / size)} {unit}{note}", va="center")
    axes.set(yticks=range(len(totals)), yticklabels=list(totals), xlabel=f"memory in use, {unit}", title=title)
    axes.set_xlim(0, _ROOM * max(max(totals.values()), card or 0) / size)
    if card:
        axes.axvline(card / size, color=COLORS["warning"], linestyle="--")
        axes.text(card / size, -0.75, " the card", color=writing("warning"), va="center")
        axes.set_ylim(-1, len(totals) - 0.5)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    legend_of_kinds(figure, by_instant)
    described = "; ".join(
        f"{i}: {', '.join(f'{k} {format_bytes(v)}' for k, v in p.items())}" for i, p in by_instant.items()
    )
    return figure, f"Stacked bars of memory in use at {len(totals)} instants. {described}."


def stack(axes: Axes, row: int, parts: Mapping[str, int], size: int) -> None:
    """A horizontal bar of kinds at `row`, in units of `size` bytes."""
    left = 0.0
    for kind, count in parts.items():
        axes.barh(row, count / size, 0.62, left=left, color=COLORS[kind], edgecolor=COLORS["paper"])
        left += count / size


def legend_of_kinds(figure: Figure, by_instant: Mapping[str, Mapping[str, int]]) -> None:
    """A legend above the figure of all kinds that can be seen: those with a letter first."""
    enough = _VISIBLE * max(sum(parts.values()) for parts in by_instant.values())
    kinds = list(dict.fromkeys(kind for parts in by_instant.values() for kind, size in parts.items() if size >= enough))
    kinds.sort(key=lambda kind: list(_LETTERS).index(kind) if kind in _LETTERS else len(_LETTERS))
    handles, labels = patches(*((_add_letter(kind), kind) for kind in kinds))
    rows = -(-len(kinds) // 5)  # no more than five names have room beside each other
    figure.legend(handles, labels, loc="outside upper center", ncols=-(-len(kinds) // rows))


def _add_letter(kind: str) -> str:
    return f"{_LETTERS[kind]}: {kind}" if kind in _LETTERS else kind


def timeline_figure(usage: Usage, title: str = "") -> tuple[Figure, str]:
    """The memory of a step as stacked steps, one per birth or death of a piece; phases along the top, the peak marked.

    Raises `CourseError` when nothing was logged.
    """
    unit, size = byte_unit(usage.peak)
    timeline = usage.timeline
    phases, end = [], 0  # name, first event, and the event after the last
    for name, events in groupby(timeline["phase"]):
        phases.append((name, end, end := end + len(list(events))))
    figure, axes = subplots(figsize=(7.6, 3.8), layout="constrained")
    tops = timeline[list(KINDS)].to_numpy().cumsum(axis=1) / size
    _draw_layers(axes, tops)
    _draw_phases(axes, phases, end)
    place = int(tops[:, -1].argmax())
    at, is_late = (place + 0.5, tops[place, -1]), place > end / 2
    axes.plot(*at, "v", color=COLORS["ink"], markersize=6, clip_on=False)
    look = {"textcoords": "offset points", "ha": "right" if is_late else "left", "weight": "bold"}
    axes.annotate(f"peak: {format_bytes(usage.peak)}", at, (-7 if is_late else 7, 3), color=COLORS["ink"], **look)
    axes.set(xlabel="events of the step: memory taken or given back", ylabel=f"memory in use, {unit}", title=title)
    axes.set(xlim=(0, end), ylim=(0, 1.16 * usage.peak / size))
    axes.grid(axis="x", visible=False)
    used = [kind for kind in KINDS if timeline[kind].max() >= _VISIBLE * usage.peak]
    figure.legend(*patches(*((_add_letter(kind), kind) for kind in reversed(used))), loc="outside right center")
    split = ", ".join(f"{kind} {format_bytes(count)}" for kind, count in usage.split.items())
    peaks = ", ".join(f"{phase} {format_bytes(count)}" for phase, count in usage.by_phase.items())
    return figure, (
        f"Memory in use over the {len(usage.events)} events of a step, stacked by kind; phases in order: "
        f"{', '.join(name for name, *_ in phases)}. The peak is {format_bytes(usage.peak)}, in {usage.peak_phase}: {split}. "
        f"Peaks by phase: {peaks}."
    )


def _draw_layers(axes: Axes, tops: np.ndarray) -> None:
    """Each kind over those before it, with a thin line between them for readers who see no color."""
    places = np.arange(len(tops))
    corners = np.repeat(np.arange(len(tops) + 1), 2)[1:-1]  # each event has a left and a right one
    below = np.zeros(len(tops))
    for kind, top in zip(KINDS, tops.T, strict=True):
        there, color = top > below, COLORS[kind]
        low, high, where = (np.repeat(values, 2) for values in (below, top, there))
        # Without an edge a piece that dies at once is thinner than a dot, and fades.
        axes.fill_between(corners, low, high, where=where, facecolor=color, edgecolor=color, linewidth=0.4)
        axes.hlines(below[there], places[there], places[there] + 1, colors=COLORS["paper"], linewidth=0.4)
        below = top


def _draw_phases(axes: Axes, phases: list[tuple[str, int, int]], events: int) -> None:
    """Every second phase shaded, and each name above its phase: level where all have room, else upright or left out."""
    for _, first, end in phases[1::2]:
        axes.axvspan(first, end, color=COLORS["grid"], alpha=0.45, linewidth=0, zorder=0)
    wide = [(name, first, end) for name, first, end in phases if end - first >= 0.025 * events]
    places, names = [(first + end) / 2 for _, first, end in wide], [name for name, *_ in wide]
    widths = [0.017 * len(name) * events for name in names]
    has_room = all(b - a >= (v + w) / 2 for a, b, v, w in zip(places, places[1:], widths, widths[1:], strict=False))
    above = axes.secondary_xaxis("top")
    above.set_xticks(places, names, rotation=0 if has_room else 90)
    above.tick_params(length=0, pad=2)
    above.spines["top"].set_visible(False)
