"""Figures about bytes."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course_utils.ledger import Ledger
from course_utils.units import GiB, KiB, MiB, format_bytes
from course_utils.viz.style import COLORS

_LETTERS = {"parameters": "P", "gradients": "G", "optimizer state": "O", "activations": "A"}


def instants_figure(by_instant: Mapping[str, Mapping[str, int]], title: str = "") -> tuple[Figure, str]:
    """Stacked bars, one per instant: bytes by kind, as `memory.instants` gives them; the fullest instant is marked."""
    totals = {instant: sum(parts.values()) for instant, parts in by_instant.items()}
    unit, size = _unit(max(totals.values()))
    figure, axes = plt.subplots(figsize=(7.6, 0.7 + 0.62 * len(by_instant)))
    for row, parts in enumerate(by_instant.values()):
        _stack(axes, row, parts, size)
    for row, total in enumerate(totals.values()):
        note = "  ← peak" if total == max(totals.values()) else ""
        axes.text(total / size, row, f"  {total / size:,.4g} {unit}{note}", va="center")
    axes.set(yticks=range(len(totals)), yticklabels=list(totals), xlabel=f"memory in use, {unit}", title=title)
    axes.set_xlim(0, 1.3 * max(totals.values()) / size)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    _legend_of_kinds(figure, by_instant)
    described = "; ".join(
        f"{i}: {', '.join(f'{k} {format_bytes(v)}' for k, v in p.items())}" for i, p in by_instant.items()
    )
    return figure, f"Stacked bars of memory in use at {len(totals)} instants. {described}."


def peak_against_batch(
    batch_sizes: Sequence[int], measured: Sequence[int], predicted: Sequence[int], bet: int
) -> tuple[Figure, str]:
    """Measured peaks as points over the predicted line, and a bet that is the same for all; bytes against batch size."""
    unit, size = _unit(max(measured))
    figure, axes = plt.subplots()
    axes.plot(batch_sizes, [p / size for p in predicted], color=COLORS["predicted"], label="predicted")
    axes.plot(batch_sizes, [m / size for m in measured], "o", color=COLORS["measured"], label="measured")
    axes.axhline(bet / size, color=COLORS["warning"], linestyle="--", label="the bet")
    axes.set(xlabel="examples in the batch", ylabel=f"peak of a step, {unit}", ylim=(0, None), xticks=list(batch_sizes))
    axes.legend()
    points = zip(batch_sizes, predicted, measured, strict=True)
    pairs = ", ".join(f"{b}: {format_bytes(p)} and {format_bytes(m)}" for b, p, m in points)
    return (
        figure,
        f"Peak memory against batch size, a predicted line and measured points. Batch: predicted and measured. {pairs}. "
        f"The bet is {format_bytes(bet)} throughout.",
    )


def ledger_figure(ledger: Ledger) -> tuple[Figure, str]:
    """Each row as shares of its measured bytes, so that small and large rows are read alike: predicted, not attributed.

    A prediction above the measurement reaches beyond 100 %. Raises `ValueError` when the ledger is empty.
    """
    if not ledger.rows:
        raise ValueError("The ledger has no rows to draw; record one first.")
    figure, axes = plt.subplots(figsize=(7.6, 0.9 + 0.62 * len(ledger.rows)))
    for place, row in enumerate(ledger.rows):
        share = 100 * row.predicted / row.measured
        axes.barh(place, share, 0.5, color=COLORS["measured"])
        axes.barh(place, max(0, 100 - share), 0.5, left=share, color=COLORS["not attributed"])
        note = f"{format_bytes(row.predicted)} of {format_bytes(row.measured)}"
        axes.text(2, place, note, va="center", color=COLORS["paper"])
    axes.axvline(100, color=COLORS["ink"], linewidth=1)
    names = [f"{row.technique}\n{row.quantity}" for row in ledger.rows]
    axes.set(yticks=range(len(names)), yticklabels=names, xlabel="share of the measured bytes, %")
    axes.set_xlim(0, max(105, *(104 * row.predicted / row.measured for row in ledger.rows)))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    handles, labels = _patches(("predicted", "measured"), ("not attributed", "not attributed"))
    figure.legend(handles, labels, loc="lower center", bbox_to_anchor=(0.5, 0.9), ncols=2)
    return figure, f"Predicted as a share of measured bytes. {'; '.join(_described(row) for row in ledger.rows)}."


def _stack(axes, row: int, parts: Mapping[str, int], size: int) -> None:
    left = 0.0
    for kind, count in parts.items():
        axes.barh(row, count / size, 0.62, left=left, color=COLORS[kind], edgecolor=COLORS["paper"])
        left += count / size


def _legend_of_kinds(figure: Figure, by_instant: Mapping[str, Mapping[str, int]]) -> None:
    kinds = list(dict.fromkeys(kind for parts in by_instant.values() for kind in parts))
    labels = [f"{_LETTERS[kind]}: {kind}" if kind in _LETTERS else kind for kind in kinds]
    figure.legend(
        *_patches(*zip(labels, kinds, strict=True)), loc="lower center", bbox_to_anchor=(0.5, 0.97), ncols=len(kinds)
    )


def _patches(*entries: tuple[str, str]) -> tuple[list, list[str]]:
    """Handles and labels of a legend, from pairs of label and color name."""
    return [plt.Rectangle((0, 0), 1, 1, color=COLORS[color]) for _, color in entries], [label for label, _ in entries]


def _unit(largest: float) -> tuple[str, int]:
    return next(((name, size) for name, size in (("GiB", GiB), ("MiB", MiB)) if largest >= size), ("KiB", KiB))


def _described(row) -> str:
    return f"{row.technique}, {row.quantity}: predicted {format_bytes(row.predicted)}, measured {format_bytes(row.measured)}"
