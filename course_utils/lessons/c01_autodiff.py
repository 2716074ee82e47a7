"""Chapter 01: its cost function, and the picture of a graph."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from course_utils.autodiff import Variable, backward_order, relu
from course_utils.viz.labels import TEXT_GROUND, note
from course_utils.viz.parts import draw_cell, hide_axes
from course_utils.viz.plots import legend, panels
from course_utils.viz.style import COLORS, text_color

_WIDTH, _HEIGHT = 0.66, 0.62  # of a node, where columns and rows are 1 apart
_NUMBERS_SHOWN = 3


def cost(
    y: ArrayLike | Variable, w: ArrayLike | Variable, x: ArrayLike | Variable, b: ArrayLike | Variable
) -> Variable:
    """C = y − max(0, w·x + b), of numbers, or of vectors w and x."""
    y, w, x, b = (value if isinstance(value, Variable) else Variable(value) for value in (y, w, x, b))
    for variable, name in zip((y, w, x, b), "ywxb", strict=True):
        variable.name = variable.name or name
    output = y - relu((w @ x if w.value.ndim else w * x) + b)
    output.name = "C"
    return output


def graph_figure(output: Variable, title: str = "") -> tuple[Figure, str]:
    """The graph behind `output`: a box per variable with its value and gradient, a local derivative on each arrow.

    Boxes are blue where the value was saved for backward. Call `output.backward(retain_graph=True)` first: else
    there are no gradients to draw, and what was saved is not known any more.
    """
    order = backward_order(output)
    places = _lay_out(order)
    saved = {id(value) for v in order if v.grad_fn for value, *_ in v.grad_fn.saved or ()}
    rows = 1 + max(row for _, row in places.values())
    figure, axes = panels(height=0.5 + 0.82 * rows)
    boxes, arrows = [], []
    for variable in order:
        operands = zip(_operands(variable), _local_derivatives(variable), strict=True)
        for number, (operand, local) in enumerate(operands):
            between = range(places[operand][0] + 1, places[variable][0])
            bends = [places[Bend(operand, variable, number, column)] for column in between]
            _draw_arrow(axes, places[operand], bends, places[variable], local)
            arrows.append(f"{_heading(operand)} to {_heading(variable)} {local}".strip())
        is_saved = id(variable.value) in saved
        _draw_box(axes, *places[variable], variable, is_saved)
        gradient = "" if variable.grad is None else f", gradient {_format_value(variable.grad)}"
        remark = ", saved" if is_saved else ""
        boxes.insert(0, f"{_heading(variable)} = {_format_value(variable.value)}{gradient}{remark}")
    hide_axes(axes, (-0.4, places[output][0] + 0.4), (rows - 0.5, -0.5), title)
    legend(axes, ("saved for backward", "activations"), ("local derivative", "third"), ("gradient", "second"))
    return figure, f"Boxes: {'; '.join(boxes)}. Arrows with local derivatives: {'; '.join(arrows)}."


def cost_figure(y: float = 1, w: float = 2, x: float = 3, b: float = -1) -> tuple[Figure, str]:
    """The graph of C = y − max(0, w·x + b) at these values, after backward; the title says whether max lets through."""
    output = cost(y, w, x, b)
    output.backward(retain_graph=True)
    state = "above 0: gradients pass max" if w * x + b > 0 else "not above 0: max stops all gradients"
    return graph_figure(output, f"C = y − max(0, w·x + b);  w·x + b is {state}")


def _operands(variable: Variable) -> list[Variable]:
    return variable.grad_fn.parents if variable.grad_fn else []


def _local_derivatives(variable: Variable) -> list[str]:
    """Each operand's gradient where that of the result is 1, in words; nothing where not all are single numbers."""
    ctx = variable.grad_fn
    operands = _operands(variable)
    if not operands or ctx.saved is None or any(x.value.ndim for x in [variable, *operands]):
        return [""] * len(operands)
    gradients = ctx.function.backward(ctx, np.ones(()))
    return [_format_number(g) for x, g in zip(ctx.inputs, gradients, strict=True) if isinstance(x, Variable)]


class Bend(NamedTuple):
    """Where the arrow from `operand`, the one of this `number` of `user`, passes a `column`."""

    operand: Variable
    user: Variable
    number: int
    column: int


def _lay_out(order: list[Variable]) -> dict[Variable | Bend, tuple[int, float]]:
    """Column and row of all variables, and of bends where an arrow passes columns."""
    columns = _columns(order)
    uses = _uses(order, columns)
    columns |= {place: place.column for place in uses if isinstance(place, Bend)}
    rows = _rows(uses, columns)
    highest = min(rows.values())
    return {place: (columns[place], row - highest) for place, row in rows.items()}


def _columns(order: list[Variable]) -> dict[Variable | Bend, int]:
    """One column right of all that a variable was computed from, and for leaves just left of their first use."""
    columns: dict = {}
    for variable in reversed(order):
        columns[variable] = 1 + max((columns[x] for x in _operands(variable)), default=-1)
    for variable in order:
        users = [columns[user] for user in order if variable in _operands(user)]
        if variable.grad_fn is None and users:
            columns[variable] = min(users) - 1
    return columns


def _uses(order: list[Variable], columns: Mapping) -> dict[Variable | Bend, list[tuple[Variable | Bend, float]]]:
    """The next stations of the arrows from each variable and bend, and how far below their middle the arrows arrive."""
    uses: dict = {variable: [] for variable in order}
    for user in order:
        operands = _operands(user)
        for number, operand in enumerate(operands):
            use = user, number - (len(operands) - 1) / 2
            for column in reversed(range(columns[operand] + 1, columns[user])):
                bend = Bend(operand, user, number, column)
                uses[bend] = [use]
                use = (bend, 0.0)
            uses[operand].append(use)
    return uses


def _rows(uses: Mapping, columns: Mapping) -> dict[Variable | Bend, float]:
    """Column by column from the right, as near as there is room to the mean row of the uses."""
    rows: dict = {}
    for column in sorted(set(columns.values()), reverse=True):
        stations = [place for place in uses if columns[place] == column]
        wish = {place: np.mean([rows[use] + side for use, side in uses[place]] or [0.0]) for place in stations}
        stations.sort(key=wish.get)
        room = [0.5 if isinstance(place, Bend) else 1.0 for place in stations]
        for number, place in enumerate(stations):
            above = rows[stations[number - 1]] + (room[number - 1] + room[number]) / 2 if number else wish[place]
            rows[place] = max(wish[place], above)
        too_low = np.mean([rows[place] - wish[place] for place in stations])
        rows |= {place: rows[place] - too_low for place in stations}
    return rows


def _draw_box(axes: Axes, x: float, y: float, variable: Variable, is_saved: bool) -> None:
    frame = {"edgecolor": COLORS["activations"], "linewidth": 3} if is_saved else {"edgecolor": COLORS["ink"]}
    draw_cell(axes, x - _WIDTH / 2, y - _HEIGHT / 2, "paper", width=_WIDTH, height=_HEIGHT, **frame)
    rows = [(_heading(variable), "ink", "bold"), (_format_value(variable.value), "ink", "normal")]
    if variable.grad is not None:
        rows.append((f"grad {_format_value(variable.grad)}", "second", "normal"))
    for row, (text, color, weight) in enumerate(rows):
        style = {"color": text_color(color), "weight": weight, "fontsize": 8.5}
        note(axes, text, (x, y + 0.19 * (row - (len(rows) - 1) / 2)), (0, 0), **style)


def _draw_arrow(axes: Axes, start: tuple, bends: list[tuple], end: tuple, local: str) -> None:
    """An arrow from box to box, level while it passes a column; its label stands near the start of its last piece."""
    half = _WIDTH / 2
    points = [(start[0] + half, start[1]), *((x + side, y) for x, y in bends for side in (-half, half))]
    tip = (end[0] - half, end[1])
    axes.plot(*zip(*points, strict=True), color=COLORS["ink"], linewidth=1)
    axes.annotate("", tip, points[-1], arrowprops={"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0})
    label_place = [0.75 * a + 0.25 * b for a, b in zip(points[-1], tip, strict=True)]
    note(axes, local, label_place, (0, 0), color=text_color("third"), fontsize=8.5, bbox=TEXT_GROUND)


def _heading(variable: Variable) -> str:
    """`'x'` for a leaf, `'power 2'` for what was made, with the plain numbers that went in, and its name if it has one."""
    ctx = variable.grad_fn
    if ctx is None:
        return variable.name or "leaf"
    numbers = [f"{x:g}" for x in ctx.inputs if not isinstance(x, Variable)]
    operation = " ".join([ctx.function.symbol, *numbers])
    return f"{variable.name}:  {operation}" if variable.name else operation


def _format_number(value: np.ndarray) -> str:
    return f"{float(value) + 0.0:.3g}".replace("-", "−")  # + 0.0 turns −0 into 0


def _format_value(value: np.ndarray) -> str:
    if value.size == 1:
        return _format_number(value.reshape(()))
    if value.size <= _NUMBERS_SHOWN:
        return f"({', '.join(map(_format_number, value.ravel()))})"
    return " × ".join(map(str, value.shape))
