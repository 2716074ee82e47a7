"""Figures of a profiler's trace: steps along the clock with their gaps, and seconds by operator."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils.training.trace import ELSEWHERE, LOADING, PHASES, Trace
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


def trace_figure(trace: Trace, gaps: pd.DataFrame | None = None, title: str = "") -> tuple[Figure, str]:
    """What ran when: a row each for the data loader, the phases and the model's operators; `gaps` are hatched."""
    unit, size = second_unit(trace.end)
    gaps = trace.gaps().head(0) if gaps is None else gaps
    phases = trace.of("phase")
    rows = {LOADING: trace.of(LOADING)} | {name: phases[phases["name"] == name] for name in PHASES}
    figure, axes = subplots(figsize=(7.6, 2.9), layout="constrained")
    for row, (name, spans) in enumerate({**rows, _COMPUTES: trace.computing()}.items()):
        color = COLORS["ink" if name == _COMPUTES else _COLORS[name]]
        bars = zip(spans["start"] / size, (spans["end"] - spans["start"]) / size, strict=True)
        axes.broken_barh(list(bars), (row - 0.36, 0.72), facecolor=color)
    for start in trace.of("step")["start"][1:]:
        axes.axvline(start / size, color=COLORS["not attributed"], linewidth=0.8, linestyle=":")
    look = {"facecolor": "none", "edgecolor": COLORS["warning"], "hatch": "////", "linewidth": 0.8}
    for gap in gaps.itertuples():
        axes.add_patch(Rectangle((gap.start / size, -0.5), gap.seconds / size, 5.0, **look))
        if gap.seconds >= _NAMED_SHARE * trace.end:
            middle = (gap.start + gap.end) / 2 / size
            text = {"ha": "center", "va": "bottom", "color": writing("warning")}
            axes.text(middle, -0.55, format_seconds(gap.seconds), **text)
    axes.set(yticks=range(len(rows) + 1), yticklabels=[*rows, _COMPUTES], xlim=(0, trace.end / size))
    axes.set(xlabel=f"time since the first recorded step, {unit}; dotted: a new step begins", title=title)
    axes.set_ylim(len(rows) + 0.6, -0.6 if gaps.empty else -1.0)
    axes.grid(axis="y", visible=False)
    if len(gaps):
        figure.legend([Rectangle((0, 0), 1, 1, **look)], ["no operator of the model runs"], loc="outside upper right")
    sums = {name: (spans["end"] - spans["start"]).sum() for name, spans in rows.items()}
    split = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in sums.items())
    found = "; ".join(f"{format_seconds(gap.seconds)} ({gap.where})" for gap in gaps.itertuples())
    return figure, (
        f"A timeline of {len(trace.of('step'))} steps in {format_seconds(trace.end)}: {split}. "
        f"Gaps in which no operator of the model ran: {found or 'none'}."
    )


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
