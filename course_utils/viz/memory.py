"""Figures about bytes."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from course_utils.units import format_bytes, three_digits
from course_utils.viz.parts import byte_unit, legend_columns, patches, subplots
from course_utils.viz.style import COLORS, writing

_ROOM = 1.42  # beyond the longest bar, for its size and the mark of the peak
_LETTERS = {"parameters": "P", "gradients": "G", "optimizer state": "O", "activations": "A"}


def instants_figure(
    by_instant: Mapping[str, Mapping[str, int]], title: str = "", card: int | None = None
) -> tuple[Figure, str]:
    """Stacked bars, one per instant: bytes by kind, as `memory.instants` gives them; the fullest instant is marked.

    `card` are the bytes that a card has, drawn as a line.
    """
    totals = {instant: sum(parts.values()) for instant, parts in by_instant.items()}
    unit, size = byte_unit(max(totals.values()))
    figure, axes = subplots(figsize=(7.6, 1 + 0.58 * len(by_instant)), layout="constrained")
    for row, parts in enumerate(by_instant.values()):
        stack(axes, row, parts, size)
    for row, total in enumerate(totals.values()):
        note = "  ← peak" if total == max(totals.values()) else ""
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


def stack(axes, row: int, parts: Mapping[str, int], size: int) -> None:
    """A horizontal bar of kinds at `row`, in units of `size` bytes."""
    left = 0.0
    for kind, count in parts.items():
        axes.barh(row, count / size, 0.62, left=left, color=COLORS[kind], edgecolor=COLORS["paper"])
        left += count / size


def legend_of_kinds(figure: Figure, by_instant: Mapping[str, Mapping[str, int]]) -> None:
    """A legend above the figure of all kinds that occur."""
    kinds = list(dict.fromkeys(kind for parts in by_instant.values() for kind in parts))
    labels = [f"{_LETTERS[kind]}: {kind}" if kind in _LETTERS else kind for kind in kinds]
    handles, labels = patches(*zip(labels, kinds, strict=True))
    figure.legend(handles, labels, loc="outside upper center", ncols=legend_columns(len(kinds)))
