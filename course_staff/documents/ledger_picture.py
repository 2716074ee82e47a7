"""All techniques of the course in one picture: each prediction with its measurement inside."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_staff.documents.themes import THEMES, style_in
from course_utils.desk.ledger import Row
from course_utils.errors import CourseError
from course_utils.units import BYTE_UNITS
from course_utils.viz.parts import subplots

_RING = "#999999"  # 3 : 1 and more against both backgrounds
_SIZE, _TALL = 8.5, 0.225  # of letters in points, of a line in inches
_NAMES, _DOTS, _NOTES = 2.72, 1.56, 1.32  # inches across one of the two columns
_HEAD, _FOOT = 0.42, 0.3  # inches for the legend, and for the axes' labels
_WORTH_A_LOOK = 0.01  # differences from here on are printed bold


def ledger_figure(rows: Sequence[Row], theme: str = "light") -> tuple[Figure, str]:
    """A line for each technique with a row in bytes: a ring where it was predicted, a dot where it was measured.

    Of several quantities of a technique the peak is drawn. `theme` is one of `THEMES`. Raises `CourseError` without rows.
    """
    in_bytes = [row for row in _choose_peaks(rows) if row.unit == "bytes"]
    if not in_bytes:
        raise CourseError("No ledger has rows in bytes to draw; execute a chapter first.")
    tall = -(-len(in_bytes) // 2)
    with plt.rc_context({**style_in(theme), "font.size": _SIZE}):
        width, height = 2 * (_NAMES + _DOTS + _NOTES), _HEAD + _TALL * tall + _FOOT
        figure, halves = subplots(1, 2, sharex=True, figsize=(width, height))
        for axes, left, part in zip(
            halves, (_NAMES, width / 2 + _NAMES), (in_bytes[:tall], in_bytes[tall:]), strict=True
        ):
            axes.set_position((left / width, _FOOT / height, _DOTS / width, _TALL * tall / height))
            _draw(axes, part, tall, THEMES[theme])
        _set_limits(halves[0], in_bytes)
        measured = "measured, and the share of it that was not predicted (a peak of memory where nothing else is said)"
        marks = halves[0].lines[:2]
        figure.legend(
            marks, ["predicted", measured], loc="upper left", ncols=2, fontsize=_SIZE + 0.5, borderaxespad=0.3
        )
    return figure, f"Predicted and measured, technique by technique. {'; '.join(map(_describe, in_bytes))}."


def _choose_peaks(rows: Sequence[Row]) -> list[Row]:
    by_technique: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = row.chapter, row.technique
        if key not in by_technique or (
            row.quantity.startswith("peak") and not by_technique[key].quantity.startswith("peak")
        ):
            by_technique[key] = row
    return list(by_technique.values())


def _draw(axes: Axes, rows: Sequence[Row], tall: int, colors: dict[str, str]) -> None:
    for index, row in enumerate(rows):
        axes.plot(row.predicted, index, "o", markersize=9, fillstyle="none", markeredgewidth=1.6, color=_RING)
        axes.plot(row.measured, index, "o", markersize=4, color=colors["dot"])
        note = f"{row.in_words(row.measured)}, {row.error:+.1%}"
        weight = "bold" if abs(row.error) >= _WORTH_A_LOOK else "normal"
        axes.text(1.04, index, note, transform=axes.get_yaxis_transform(), va="center", fontsize=_SIZE, weight=weight)
    axes.set(yticks=range(len(rows)), yticklabels=[_label(row) for row in rows], ylim=(tall - 0.5, -0.5))
    axes.tick_params(axis="both", labelsize=_SIZE, length=0)


def _label(row: Row) -> str:
    short = {"optimizer state": "state", "sent by a rank in a step": "sent", "saved for backward": "saved"}
    quantity = "" if row.quantity.startswith("peak") else f" · {short.get(row.quantity, row.quantity)}"
    return f"{row.chapter.partition('_')[0]}  {row.technique}{quantity}"


def _set_limits(axes: Axes, rows: Sequence[Row]) -> None:
    figures = [figure for row in rows for figure in (row.predicted, row.measured)]
    axes.set_xscale("log")
    axes.set_xlim(min(figures) / 1.8, max(figures) * 1.8)
    ticks = {f"{count} {name}": count * size for name, size in BYTE_UNITS for count in (1, 32)}
    visible_ticks = {name: place for name, place in ticks.items() if min(figures) / 1.8 < place < max(figures) * 1.8}
    axes.set_xticks(list(visible_ticks.values()), list(visible_ticks))
    axes.xaxis.minorticks_off()


def _describe(row: Row) -> str:
    figures = f"predicted {row.in_words(row.predicted)}, measured {row.in_words(row.measured)}, {row.error:+.1%}"
    return f"{row.chapter}, {row.technique}, {row.quantity}: {figures}"
