"""Answers that are each good at something else: bytes, operations and accuracy in one picture, and which of them nobody beats."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from course_utils.units import BYTE_UNITS, format_bytes, three_digits
from course_utils.viz.parts import byte_unit, subplots
from course_utils.viz.plots import note
from course_utils.viz.style import COLORS

_POWERS = (("× 10¹⁵", 1e15), ("× 10¹²", 1e12), ("× 10⁹", 1e9), ("× 10⁶", 1e6), ("", 1.0))
_WIDE = 20  # largest by smallest, from which on an axis is logarithmic
_NAMED = 3  # letters at one point that are written out
_PLACES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))  # of a label beside its point
# In points of the page: width and height of a character, and half of a dot.
_CHARACTER_WIDTH = 5.8
_LINE_HEIGHT = 11.0
_DOT = 6.0


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
        mine, others = ((entry.bytes, entry.operations, -entry.accuracy) for entry in (self, other))
        return mine != others and all(a <= b for a, b in zip(mine, others, strict=True))


@dataclass(frozen=True)
class Leaderboard:
    """One question's entries: first the `front` that nobody beats, then the others; each part by bytes."""

    id: str
    title: str
    entries: tuple[Entry, ...]
    front: int

    @classmethod
    def of(cls, name: str, title: str, entries: Sequence[Entry]) -> "Leaderboard":
        beaten = {entry.letter: any(other.beats(entry) for other in entries) for entry in entries}
        order = sorted(
            entries,
            key=lambda entry: (beaten[entry.letter], entry.bytes, entry.operations, -entry.accuracy, entry.letter),
        )
        return cls(name, title, tuple(order), sum(not lost for lost in beaten.values()))


def format_operations(number: float) -> str:
    """Operations for people: `'1.25 × 10⁹'`, below a million all digits."""
    power, size = next((unit for unit in _POWERS if number >= unit[1]), _POWERS[-1])
    return f"{three_digits(number / size)} {power}" if power else f"{number:,.0f}"


def tradeoff_figure(board: Leaderboard) -> tuple[Figure, str]:
    """Each entry at its bytes and operations with its accuracy, those of the front filled; and what is seen, in words.

    The board has entries.
    """
    entries, front = board.entries, board.entries[: board.front]
    unit, size = byte_unit(max(entry.bytes for entry in entries), (*BYTE_UNITS, ("bytes", 1)))
    power, scale = byte_unit(max(entry.operations for entry in entries), _POWERS)
    places = [(entry.bytes / size, entry.operations / scale) for entry in entries]
    figure, axes = subplots(figsize=(7.6, 4.6), layout="constrained")
    filled = [COLORS["first" if place < board.front else "paper"] for place in range(len(entries))]
    axes.scatter(*zip(*places, strict=True), s=64, c=filled, edgecolors=COLORS["first"], linewidths=1.5)
    for axis, values in zip(("x", "y"), zip(*places, strict=True), strict=True):
        if max(values) > _WIDE * min(values) > 0:
            axes.set(**{f"{axis}scale": "log"})
            getattr(axes, f"{axis}axis").set_major_formatter("{x:g}")
    axes.margins(0.14)
    axes.set_xlabel(f"bytes, in {unit}: fewer is better" if size > 1 else "bytes: fewer is better")
    axes.set_ylabel(f"operations {power}: fewer is better".replace(" :", ":"))
    verb = "is" if board.front == 1 else "are"
    axes.set_title(f"{board.front} of {len(entries)} {verb} on the Pareto front (filled)", loc="left")
    _write_labels(figure, axes, _labels(board, places))
    best = [
        f"{entry.letter} takes {format_bytes(entry.bytes)} and {format_operations(entry.operations)} operations, "
        f"{entry.accuracy:.1f} %"
        for entry in front
    ]
    others = (
        f" Beaten: {', '.join(entry.letter for entry in entries[board.front :])}." if entries[board.front :] else ""
    )
    return figure, f"Operations over bytes of each entry, with its accuracy. On the front: {'; '.join(best)}.{others}"


def _labels(board: Leaderboard, places: Sequence[tuple[float, float]]) -> list[tuple[tuple[float, float], str]]:
    """What to write beside each place: its letters with the accuracy; of many the first few and how many more."""
    at: dict[tuple, list[Entry]] = {}
    for place, entry in zip(places, board.entries, strict=True):
        at.setdefault((place, entry.accuracy), []).append(entry)
    labels = []
    for (place, accuracy), there in at.items():
        letters = ", ".join(entry.letter for entry in there[:_NAMED])
        more = f" and {len(there) - _NAMED} more" if len(there) > _NAMED else ""
        labels.append((place, f"{letters}{more}, {accuracy:.1f} %"))
    return labels


def _write_labels(figure: Figure, axes: Axes, labels: Sequence[tuple[tuple[float, float], str]]) -> None:
    """Each label on that side of its point where it covers least of the points and of what is written already."""
    figure.draw_without_rendering()  # only now does the layout say where a point lies
    points = axes.transData.transform([place for place, _ in labels]) * 72 / figure.dpi
    taken = [_make_box(point, _DOT, _DOT) for point in points]
    (left, bottom), (right, top) = axes.get_window_extent().get_points() * 72 / figure.dpi
    for (place, text), point in zip(labels, points, strict=True):
        half = np.array([_CHARACTER_WIDTH * len(text), _LINE_HEIGHT]) / 2
        sides = [_make_box(point + np.array(side) * (half + _DOT + 1), *half) for side in _PLACES]

        def cost(side: Bbox) -> float:
            covered = sum(both.width * both.height for other in taken if (both := Bbox.intersection(side, other)))
            return covered + 20 * max(0, left - side.x0, side.x1 - right, bottom - side.y0, side.y1 - top)

        best = min(sides, key=cost)
        taken.append(best)
        note(axes, text, place, (best.get_points().mean(axis=0) - point).tolist(), ha="center")


def _make_box(center: Sequence[float], half_width: float, half_height: float) -> Bbox:
    x, y = center
    return Bbox([[x - half_width, y - half_height], [x + half_width, y + half_height]])
