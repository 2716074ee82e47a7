"""Answers that are each good at something else: bytes, operations and accuracy in one picture, and which of them nobody beats."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from course_utils.units import BYTE_UNITS, format_bytes, three_digits
from course_utils.viz.labels import note
from course_utils.viz.parts import unit_for
from course_utils.viz.plots import panels
from course_utils.viz.style import COLORS

_POWERS = (("× 10¹⁵", 1e15), ("× 10¹²", 1e12), ("× 10⁹", 1e9), ("× 10⁶", 1e6), ("", 1.0))
_LOG_RATIO = 20  # largest by smallest, from which on an axis is logarithmic
_MAX_LETTERS = 3  # that are written out at one point
_SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))  # of a label beside its point
# In points of the page: width and height of a character, and half of a dot.
_CHARACTER_WIDTH = 5.8
_LINE_HEIGHT = 11.0
_DOT_RADIUS = 6.0


@dataclass(frozen=True)
class Entry:
    """What an answer takes: `bytes` and `operations`, the fewer the better, and its `accuracy` in percent.

    It is called `letter`, and is `student`'s.
    """

    letter: str
    student: str
    bytes: float
    operations: float
    accuracy: float

    def beats(self, other: "Entry") -> bool:
        """Whether this one is at least as good in everything, and better in something."""
        own_costs, other_costs = ((entry.bytes, entry.operations, -entry.accuracy) for entry in (self, other))
        return own_costs != other_costs and all(a <= b for a, b in zip(own_costs, other_costs, strict=True))


@dataclass(frozen=True)
class Leaderboard:
    """One question's entries: first the front, the `front_size` that nobody beats, then the others; each part by bytes."""

    id: str
    title: str
    entries: tuple[Entry, ...]
    front_size: int

    @classmethod
    def from_entries(cls, name: str, title: str, entries: Sequence[Entry]) -> "Leaderboard":
        beaten = {entry.letter: any(other.beats(entry) for other in entries) for entry in entries}
        order = sorted(entries, key=lambda e: (beaten[e.letter], e.bytes, e.operations, -e.accuracy, e.letter))
        return cls(name, title, tuple(order), list(beaten.values()).count(False))


def format_operations(number: float) -> str:
    """Operations for people: `'1.25 × 10⁹'`, below a million all digits."""
    power, size = unit_for(number, _POWERS)
    return f"{three_digits(number / size)} {power}" if power else f"{number:,.0f}"


def tradeoff_figure(board: Leaderboard) -> tuple[Figure, str]:
    """Each entry at its bytes and operations with its accuracy, those of the front filled; and what is seen, in words.

    The board has entries.
    """
    entries = board.entries
    unit, size = unit_for(max(entry.bytes for entry in entries), (*BYTE_UNITS, ("bytes", 1)))
    power, scale = unit_for(max(entry.operations for entry in entries), _POWERS)
    points = [(entry.bytes / size, entry.operations / scale) for entry in entries]
    figure, axes = panels(height=4.6)
    faces = [COLORS["first" if index < board.front_size else "paper"] for index in range(len(entries))]
    axes.scatter(*zip(*points, strict=True), s=64, c=faces, edgecolors=COLORS["first"], linewidths=1.5)
    for axis, values in zip(("x", "y"), zip(*points, strict=True), strict=True):
        if max(values) > _LOG_RATIO * min(values) > 0:
            axes.set(**{f"{axis}scale": "log"})
            getattr(axes, f"{axis}axis").set_major_formatter("{x:g}")
    axes.margins(0.14)
    title = f"On the Pareto front (filled): {board.front_size} of {len(entries)}"
    axes.set(title=title, xlabel=f"fewer is better: memory in {unit}", ylabel=f"fewer is better: operations {power}")
    _write_labels(figure, axes, _label_texts(board, points))
    costs = ((e.letter, format_bytes(e.bytes), format_operations(e.operations), f"{e.accuracy:.1f} %") for e in entries)
    return (
        figure,
        f"{title}. Bytes, operations and accuracy, those on the front first: {'; '.join(map(', '.join, costs))}.",
    )


def _label_texts(board: Leaderboard, points: Sequence[tuple[float, float]]) -> list[tuple[tuple[float, float], str]]:
    """What to write beside each point: its letters with the accuracy; of many the first few and how many more."""
    letters: dict[tuple, list[str]] = {}
    for point, entry in zip(points, board.entries, strict=True):
        letters.setdefault((point, entry.accuracy), []).append(entry.letter)
    labels = []
    for (point, accuracy), names in letters.items():
        rest = f" and {len(names) - _MAX_LETTERS} more" if len(names) > _MAX_LETTERS else ""
        labels.append((point, f"{', '.join(names[:_MAX_LETTERS])}{rest}, {accuracy:.1f} %"))
    return labels


def _write_labels(figure: Figure, axes: Axes, labels: Sequence[tuple[tuple[float, float], str]]) -> None:
    """Each label on that side of its point where it covers least of the points and of what is written already."""
    figure.draw_without_rendering()  # only now does the layout say where a point lies
    centers = axes.transData.transform([point for point, _ in labels]) * 72 / figure.dpi
    covered_boxes = [_make_box(center, _DOT_RADIUS, _DOT_RADIUS) for center in centers]
    (left, bottom), (right, top) = axes.get_window_extent().get_points() * 72 / figure.dpi
    for (point, text), center in zip(labels, centers, strict=True):
        half = np.array([_CHARACTER_WIDTH * len(text), _LINE_HEIGHT]) / 2
        sides = [_make_box(center + np.array(side) * (half + _DOT_RADIUS + 1), *half) for side in _SIDES]

        def cost(side: Bbox) -> float:
            overlaps = filter(None, (Bbox.intersection(side, box) for box in covered_boxes))
            area = sum(overlap.width * overlap.height for overlap in overlaps)
            return area + 20 * max(0, left - side.x0, side.x1 - right, bottom - side.y0, side.y1 - top)

        best = min(sides, key=cost)
        covered_boxes.append(best)
        note(axes, text, point, (best.get_points().mean(axis=0) - center).tolist(), ha="center")


def _make_box(center: Sequence[float], half_width: float, half_height: float) -> Bbox:
    x, y = center
    return Bbox([[x - half_width, y - half_height], [x + half_width, y + half_height]])
