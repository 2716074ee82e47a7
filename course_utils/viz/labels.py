"""What is written beside data: notes, ticks, and names at the ends of lines."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from course_utils.viz.style import COLORS, text_color

TEXT_GROUND = {"boxstyle": "square,pad=0.05", "facecolor": COLORS["paper"], "edgecolor": "none"}
"""The ground of a text that may lie on data."""

_NAME_LENGTH = 22  # characters in a line of a name beside its curve
_LINE_HEIGHT = 12.0  # of such a line, in points of the page


def note(axes: Axes, text: str, point: tuple[float, float], offset: tuple[float, float] = (6, 0), **text_style) -> None:
    """A text beside a point of the data, on the side that `offset` (points of the page) leads to."""
    side = "left" if offset[0] > 0 else "right" if offset[0] < 0 else "center"
    text_style = {"textcoords": "offset points", "ha": side, "va": "center", "fontsize": 9} | text_style
    axes.annotate(text, point, offset, **text_style)


def tick(axes: Axes, values: Sequence[float]) -> None:
    """Ticks of the x-axis at these values alone, written in full."""
    axes.set_xticks(values, [f"{value:,.10g}" for value in values])
    axes.minorticks_off()


def select_ticks(axes: Axes, values: Iterable[float]) -> list[float]:
    """From the left, those of `values` whose ticks have room beside each other on a logarithmic x-axis."""
    left, right = np.log(axes.get_xlim())
    spec = axes.get_subplotspec()
    columns = spec.get_gridspec().ncols if spec else 1
    selected = []
    free = -np.inf
    for value in sorted(values):
        center = (np.log(value) - left) / (right - left)
        half_width = 0.006 * (len(f"{value:,.10g}") + 2) * columns
        if center - half_width > free:
            selected.append(value)
            free = center + half_width
    return selected


def tick_by_powers(axes: Axes, values: Sequence[float], size: float) -> None:
    """Ticks of a logarithmic y-axis as plain numbers; over less than two powers of ten also at 2 and 5."""
    is_narrow = max(values) < 100 * min(values)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if is_narrow else (1,)))
    if max(values) < 1e6 * size and min(values) > 1e-3 * size:
        axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())


class LineEnd(NamedTuple):
    """A line's name and color, and the point that its name stands beside; the right edge where `x` is None."""

    name: str
    color: str
    x: float | None
    y: float


def name_lines(axes: Axes, ends: Sequence[LineEnd]) -> None:
    """Each name beside the end of its line, one above the other where ends are near."""
    room = 62 * axes.get_position().height * axes.figure.get_figheight()
    axes.autoscale_view()
    right_edge = axes.get_xlim()[1]
    to_axes = axes.transData + axes.transAxes.inverted()
    positions = {end: to_axes.transform((right_edge if end.x is None else end.x, end.y)) for end in ends}
    heights = {end: float(np.clip(positions[end][1], 0, 1)) * room for end in ends}
    ends = sorted(ends, key=heights.get)
    names = [textwrap.fill(end.name, _NAME_LENGTH) for end in ends]
    name_heights = [_LINE_HEIGHT * (1 + name.count("\n")) for name in names]
    centers = _move_apart([heights[end] for end in ends], name_heights, room)
    for end, name, center in zip(ends, names, centers, strict=True):
        at_edge = positions[end][0] >= 0.8
        system = axes.get_yaxis_transform() if at_edge else "data"
        point = (1 if at_edge else end.x, end.y)
        offset = (6, center - heights[end])
        color = text_color(end.color)
        note(axes, name, point, offset, xycoords=system, color=color, annotation_clip=False, bbox=TEXT_GROUND)


def _move_apart(centers: Sequence[float], heights: Sequence[float], top: float) -> list[float]:
    """Centers of texts, the lowest first: each moved up off the one below, then down where it would stand above `top`."""
    centers = list(centers)
    for row in range(1, len(centers)):
        centers[row] = max(centers[row], centers[row - 1] + (heights[row - 1] + heights[row]) / 2)
    free = top + _LINE_HEIGHT / 2
    for row in reversed(range(len(centers))):
        centers[row] = min(centers[row], free - heights[row] / 2)
        free = centers[row] - heights[row] / 2
    return centers
