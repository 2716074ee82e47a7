"""Figures of a profiler's trace: steps along the clock with their gaps, and seconds by operator."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils.training.trace import ELSEWHERE, LOADING, PHASES, Gap, Trace
from course_utils.units import format_seconds
from course_utils.viz.parts import patches, second_unit, subplots
from course_utils.viz.style import COLORS, writing

_COLORS = {
    LOADING: "inputs",
    "forward": "activations",
    "backward": "gradients",
    "update": "optimizer state",
    ELSEWHERE: "not attributed",
}
_COMPUTES = "model computes"
_NAMED_SHARE = 0.04  # of the whole time, from which on a gap has room for its length


def trace_figure(trace: Trace, gaps: Sequence[Gap] = (), title: str = "") -> tuple[Figure, str]:
    """What ran when: a row each for the data loader, the phases and the model's operators; `gaps` are hatched."""
    unit, size = second_unit(trace.end)
    rows = {LOADING: trace.loading} | {name: [s for s in trace.phases if s.name == name] for name in PHASES}
    figure, axes = subplots(figsize=(7.6, 2.9), layout="constrained")
    for row, (name, spans) in enumerate(rows.items()):
        stretches = [(span.start, span.end) for span in spans]
        _draw_row(axes, row, stretches, COLORS[_COLORS[name]], size)
    _draw_row(axes, len(rows), trace.computing, COLORS["ink"], size)
    for step in trace.steps[1:]:
        axes.axvline(step.start / size, color=COLORS["not attributed"], linewidth=0.8, linestyle=":")
    for gap in gaps:
        _draw_gap(axes, gap, size, named=gap.seconds >= _NAMED_SHARE * trace.end)
    axes.set(yticks=range(len(rows) + 1), yticklabels=[*rows, _COMPUTES], xlim=(0, trace.end / size))
    axes.set(xlabel=f"time since the first recorded step, {unit}; dotted: a new step begins", title=title)
    axes.set_ylim(len(rows) + 0.6, -1.0 if gaps else -0.6)
    axes.grid(axis="y", visible=False)
    if gaps:
        figure.legend([_hatched((0, 0))], ["no operator of the model runs"], loc="outside upper right")
    return figure, _described(trace, gaps)


def operator_seconds_figure(table: pd.DataFrame, top: int = 8) -> tuple[Figure, str]:
    """The `top` slowest operators of `Trace.operator_seconds`, each bar split by phase; the rest is one bar.

    Raises `ValueError` for a table without operators.
    """
    if table.empty:
        raise ValueError("The trace has no operators; record steps that compute something.")
    phases = [name for name in _COLORS if table[name].any()]
    first, rest = table.iloc[:top], table.iloc[top:]
    shown = first if rest.empty else pd.concat([first, rest.sum().to_frame(f"{len(rest)} others").T])
    unit, size = second_unit(shown["seconds"].max())
    figure, axes = subplots(figsize=(7.6, 1.2 + 0.3 * len(shown)), layout="constrained")
    left = 0.0
    for phase in phases:
        axes.barh(shown.index, shown[phase] / size, 0.7, left=left, color=COLORS[_COLORS[phase]])
        left = left + shown[phase] / size
    shares = shown["seconds"] / table["seconds"].sum()
    for row, (length, share) in enumerate(zip(left, shares, strict=True)):
        axes.text(length, row, f"  {share:.0%}", va="center")
    axes.set(xlabel=f"its own time in all recorded steps, {unit}", xlim=(0, 1.12 * left.max()))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    handles, labels = patches(*((phase, _COLORS[phase]) for phase in phases))
    figure.legend(handles, labels, loc="outside upper center", ncols=len(phases))
    said = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    return figure, f"Bars of time by operator, split by phase. Shares of all operators' time: {said}."


def _draw_row(axes, row: int, stretches: Sequence[tuple[float, float]], color: str, size: float) -> None:
    bars = [(start / size, (end - start) / size) for start, end in stretches]
    axes.broken_barh(bars, (row - 0.36, 0.72), facecolor=color)


def _draw_gap(axes, gap: Gap, size: float, named: bool) -> None:
    axes.add_patch(_hatched((gap.start / size, -0.5), gap.seconds / size, 5.0))
    if named:
        middle = (gap.start + gap.end) / 2 / size
        axes.text(middle, -0.55, format_seconds(gap.seconds), ha="center", va="bottom", color=writing("warning"))


def _hatched(corner: tuple[float, float], width: float = 1.0, height: float = 1.0) -> Rectangle:
    look = {"facecolor": "none", "edgecolor": COLORS["warning"], "hatch": "////", "linewidth": 0.8}
    return Rectangle(corner, width, height, **look)


def _described(trace: Trace, gaps: Sequence[Gap]) -> str:
    parts = {LOADING: sum(span.seconds for span in trace.loading)}
    parts |= {name: sum(span.seconds for span in trace.phases if span.name == name) for name in PHASES}
    split = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in parts.items())
    found = "; ".join(f"{format_seconds(gap.seconds)} ({gap.where})" for gap in gaps)
    return (
        f"A timeline of {len(trace.steps)} steps in {format_seconds(trace.end)}: {split}. "
        f"Gaps in which no operator of the model ran: {found or 'none'}."
    )
