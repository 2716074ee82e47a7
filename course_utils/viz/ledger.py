"""The ledger as a picture: each prediction beside its measurement."""

from collections.abc import Sequence
from math import floor, log10

from matplotlib.figure import Figure

from course_utils.errors import CourseError
from course_utils.ledger import UNITS, Ledger, Row
from course_utils.viz.parts import byte_unit, patches, second_unit, subplots
from course_utils.viz.style import COLORS

_WIDEST_LINEAR = 50  # a bar this many times shorter than the longest is still seen on a linear axis
_THICKNESS = 0.36


def beside_figure(rows: Sequence[Row]) -> tuple[Figure, str]:
    """Two bars per row of a ledger, predicted and measured, and their difference as the ledger's table has it.

    Rows in bytes and rows in seconds have panels of their own. Where the figures of a panel are more than a factor of 50
    apart its axis is logarithmic, and says so. Raises `CourseError` when there are no rows.
    """
    panels = {unit: [row for row in rows if row.unit == unit] for unit in UNITS}
    panels = {unit: inside for unit, inside in panels.items() if inside}
    if not panels:
        raise CourseError("The ledger has no rows to draw; record one first.")
    sizes = [len(inside) for inside in panels.values()]
    shape = {"figsize": (7.6, 0.8 * len(panels) + 0.62 * sum(sizes)), "height_ratios": [0.5 + size for size in sizes]}
    figure, all_axes = subplots(len(panels), squeeze=False, layout="constrained", **shape)
    for axes, (unit, inside) in zip(all_axes[:, 0], panels.items(), strict=True):
        _draw_panel(axes, inside, unit, _names(inside))
    figure.legend(*patches(("predicted", "predicted"), ("measured", "measured")), loc="outside upper center", ncols=2)
    return figure, f"Predicted beside measured. {'; '.join(_described(row) for row in rows)}."


def ledger_figure(ledger: Ledger) -> tuple[Figure, str]:
    """`beside_figure` of all rows of `ledger`."""
    return beside_figure(ledger.rows)


def _draw_panel(axes, rows: Sequence[Row], unit: str, names: list[str]) -> None:
    figures = [figure for row in rows for figure in (row.predicted, row.measured)]
    name, size = _AXIS_UNIT[unit](max(figures))
    for place, row in enumerate(rows):
        _bar(axes, place - _THICKNESS / 2, row.predicted / size, "predicted", row.in_words(row.predicted))
        note = f"{row.in_words(row.measured)}, {_difference(row)}"
        _bar(axes, place + _THICKNESS / 2, row.measured / size, "measured", note)
    axes.set(yticks=range(len(rows)), yticklabels=names, xlabel=f"{_WHAT[unit]}, {name}")
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    _scale(axes, min(figures) / size, max(figures) / size)


def _bar(axes, place: float, length: float, color: str, note: str) -> None:
    axes.barh(place, length, _THICKNESS, color=COLORS[color])
    axes.text(length, place, f"  {note}", va="center", fontsize=9)


_WHAT = {"bytes": "memory", "seconds": "time"}
_AXIS_UNIT = {"bytes": byte_unit, "seconds": second_unit}


def _scale(axes, smallest: float, largest: float) -> None:
    """Room for the notes on the right; a logarithmic axis begins at the power of ten below the smallest bar."""
    if largest <= _WIDEST_LINEAR * smallest:
        axes.set_xlim(0, 1.6 * largest)
        return
    first = 10.0 ** (floor(log10(smallest)) - (log10(smallest) % 1 < 0.2))  # a bar as long as nothing would not be seen
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlim(first, largest * (largest / first) ** 0.5)
    axes.set_xlabel(f"{axes.get_xlabel()} (logarithmic axis)")


def _names(rows: Sequence[Row]) -> list[str]:
    """What tells the rows apart: technique and quantity, and of chapter, scale and device those of which there are several."""
    several = [field for field in ("chapter", "scale", "device") if len({getattr(row, field) for row in rows}) > 1]
    return [f"{r.technique}\n{', '.join([r.quantity, *(getattr(r, field) for field in several)])}" for r in rows]


def _difference(row: Row) -> str:
    return f"{row.error:+.1%} not attributed"


def _described(row: Row) -> str:
    figures = f"predicted {row.in_words(row.predicted)}, measured {row.in_words(row.measured)}"
    return f"{row.technique}, {row.quantity}, {row.chapter}, {row.scale}, {row.device}: {figures}, {_difference(row)}"
