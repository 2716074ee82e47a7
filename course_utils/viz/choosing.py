"""Figures that help to choose an optimizer: a decision chart, and the bytes of a training by optimizer."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from course_utils.units import format_bytes
from course_utils.viz.memory import legend_of_kinds, stack
from course_utils.viz.parts import byte_unit, subplots
from course_utils.viz.style import COLORS, writing

_QUESTIONS = (
    ("Do P, G and AdamW's O fit,\nwith room for A?", "AdamW\n(hidden matrices: try Muon)"),
    ("With O at a quarter?", "AdamW in 8 bits"),
    ("With next to no O?", "Adafactor"),
    ("And without G?", "Adafactor,\nupdated in backward"),
)
_NO_WAY_OUT = "shard the model over several devices,\ntrain adapters only, or a smaller model"


def decision_figure() -> tuple[Figure, str]:
    """Questions from the top down; the first "yes" names the optimizer."""
    figure, axes = subplots(figsize=(7.6, 4.6), layout="constrained")
    rows = [0.92 - 0.2 * i for i in range(len(_QUESTIONS) + 1)]
    asked = [_box(axes, 0.3, y, question, "ink") for y, (question, _) in zip(rows, _QUESTIONS, strict=False)]
    asked.append(_box(axes, 0.3, rows[-1], _NO_WAY_OUT, "warning"))
    for before, after in zip(asked[:-1], asked[1:], strict=True):
        _arrow(axes, before, after, "no", (0.03, 0))
    for question, y, (_, answer) in zip(asked[:-1], rows, _QUESTIONS, strict=False):
        _arrow(axes, question, _box(axes, 0.8, y, answer, "first"), "yes", (0, 0.025))
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.axis("off")
    said = [f"{question} yes: {answer}" for question, answer in _QUESTIONS]
    text = f"A decision chart, from the top down. {'; no: '.join(said)}; no: {_NO_WAY_OUT}."
    return figure, text.replace("\n", " ")


def bytes_by_optimizer(
    parameters: int, state_bytes: Mapping[str, float], itemsize: int = 4, in_backward: bool = False
) -> tuple[Figure, str]:
    """Bars of P, G and O for a model of so many `parameters` of `itemsize` bytes.

    `state_bytes` are bytes of state for each parameter, by optimizer. With `in_backward` no gradient is kept.
    """
    kinds = {"parameters": parameters * itemsize, "gradients": 0 if in_backward else parameters * itemsize}
    bars = {name: {**kinds, "optimizer state": round(parameters * each)} for name, each in state_bytes.items()}
    totals = {name: sum(parts.values()) for name, parts in bars.items()}
    unit, size = byte_unit(max(totals.values()))
    figure, axes = subplots(figsize=(7.6, 1.2 + 0.5 * len(bars)), layout="constrained")
    for row, (name, parts) in enumerate(bars.items()):
        stack(axes, row, parts, size)
        axes.text(totals[name] / size, row, f"  {format_bytes(totals[name])}", va="center")
    axes.set(yticks=range(len(bars)), yticklabels=list(bars), xlabel=f"P + G + O, {unit}")
    axes.set(xlim=(0, 1.2 * max(totals.values()) / size), title=f"{parameters:,} parameters of {itemsize} bytes")
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    legend_of_kinds(figure, bars)
    said = "; ".join(f"{name} {format_bytes(total)}" for name, total in totals.items())
    return (
        figure,
        f"Parameters, gradients and optimizer state of a model of {parameters:,} parameters, by optimizer: {said}.",
    )


def _box(axes, x: float, y: float, text: str, color: str):
    frame = {"boxstyle": "round,pad=0.45", "facecolor": COLORS["paper"], "edgecolor": COLORS[color], "linewidth": 1.6}
    return axes.text(x, y, text, ha="center", va="center", bbox=frame, color=writing(color))


def _arrow(axes, start, end, label: str, beside: tuple[float, float]) -> None:
    ends = {"patchA": start.get_bbox_patch(), "patchB": end.get_bbox_patch(), "shrinkA": 2, "shrinkB": 2}
    shape = {"arrowstyle": "-|>", "color": COLORS["ink"], "linewidth": 1.4}
    (x0, y0), (x1, y1) = start.get_position(), end.get_position()
    axes.annotate("", xy=(x1, y1), xytext=(x0, y0), arrowprops=shape | ends)
    # The middle between the boxes, which are wider than they are high.
    middle = (0.58 if y0 == y1 else x0) + beside[0], (y0 + y1) / 2 + beside[1]
    axes.text(*middle, label, ha="center", va="center", color=COLORS["ink"])
