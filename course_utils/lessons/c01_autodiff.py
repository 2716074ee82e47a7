"""Chapter 01: its two expressions, the picture of a graph, and bytes by part of a model."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from course_utils.autodiff import Variable, backward_order, relu
from course_utils.units import format_bytes
from course_utils.viz.parts import byte_unit, patches, subplots
from course_utils.viz.style import COLORS, writing

_WIDTH, _HEIGHT = 0.66, 0.62  # of a node, where columns and rows are 1 apart
_NUMBERS_SHOWN = 3
_LABEL = 0.62  # how far along its last stretch an arrow has its label; arrows cross at one half


def quadratic(a, b, c, x, y) -> Variable:
    """f = ax² + bxy + cy², of five numbers or variables."""
    a, b, c, x, y = (_variable(value, name) for value, name in zip((a, b, c, x, y), "abcxy", strict=True))
    output = a * x**2 + b * x * y + c * y**2
    output.name = "f"
    return output


def cost(y, w, x, b) -> Variable:
    """C = y − max(0, w·x + b), of numbers, or of vectors w and x."""
    y, w, x, b = (_variable(value, name) for value, name in zip((y, w, x, b), "ywxb", strict=True))
    output = y - relu((w @ x if w.value.ndim else w * x) + b)
    output.name = "C"
    return output


def _variable(value, name: str) -> Variable:
    variable = value if isinstance(value, Variable) else Variable(value)
    variable.name = variable.name or name
    return variable


@dataclass(eq=False)
class _Node:
    """A box, or a bend (without a variable) where an arrow passes a column; `uses` are (where it leads, on which side)."""

    variable: Variable | None
    column: int
    row: float = 0.0
    uses: list[tuple["_Node", float]] = field(default_factory=list)

    @property
    def room(self) -> float:
        """Rows it takes."""
        return 1.0 if self.variable else 0.5

    @property
    def wish(self) -> float:
        """The mean row of its uses, a little above it for the first operand and below it for the last."""
        return float(np.mean([user.row + side for user, side in self.uses])) if self.uses else 0.0


@dataclass(frozen=True)
class _Arrow:
    start: Variable
    end: Variable
    local: str
    way: tuple[_Node, ...]


def graph_figure(output: Variable, title: str = "") -> tuple[Figure, str]:
    """The graph behind `output`: a box per variable with its value and gradient, a local derivative on each arrow.

    Boxes are shaded where the value was saved for backward. Call `output.backward(retain_graph=True)` first: else
    there are no gradients to draw, and what was saved is not known any more.
    """
    nodes = _columns(output)
    saved = _saved_values(nodes)
    arrows = [arrow for node in list(nodes.values()) for arrow in _arrows_into(node, nodes)]
    rows = _spread([*nodes.values(), *(bend for arrow in arrows for bend in arrow.way[1:-1])])
    figure, axes = subplots(figsize=(7.6, 0.5 + 0.82 * rows), layout="constrained")
    for arrow in arrows:
        _draw_arrow(axes, arrow)
    for node in nodes.values():
        _draw_node(axes, node, id(node.variable.value) in saved)
    axes.set(xlim=(-0.4, nodes[output].column + 0.4), ylim=(rows - 0.5, -0.5), title=title)
    axes.axis("off")
    _legend(figure, axes)
    return figure, _describe(nodes, arrows, saved)


def quadratic_figure(a: float = 1, b: float = 2, c: float = 3, x: float = 2, y: float = -1) -> tuple[Figure, str]:
    """The graph of f = ax² + bxy + cy² at these values, after backward."""
    return _after_backward(quadratic(a, b, c, x, y), "f = ax² + bxy + cy²")


def cost_figure(y: float = 1, w: float = 2, x: float = 3, b: float = -1) -> tuple[Figure, str]:
    """The graph of C = y − max(0, w·x + b) at these values, after backward; the title says whether max lets through."""
    through = w * x + b > 0
    state = "w·x + b is above 0: gradients pass max" if through else "w·x + b is not above 0: max stops all gradients"
    return _after_backward(cost(y, w, x, b), f"C = y − max(0, w·x + b);  {state}")


def _after_backward(output: Variable, title: str) -> tuple[Figure, str]:
    output.backward(retain_graph=True)
    return graph_figure(output, title)


def _columns(output: Variable) -> dict[Variable, _Node]:
    """A node for every variable: one column right of all it was computed from, leaves just left of their first use."""
    order = backward_order(output)
    column: dict[Variable, int] = {}
    for variable in reversed(order):
        column[variable] = 1 + max((column[x] for x in _parents(variable)), default=-1)
    for variable in order:
        users = [user for user in order if variable in _parents(user)]
        if variable.grad_fn is None and users:
            column[variable] = min(column[user] for user in users) - 1
    return {variable: _Node(variable, column[variable]) for variable in order}


def _parents(variable: Variable) -> list[Variable]:
    return variable.grad_fn.parents if variable.grad_fn else []


def _arrows_into(node: _Node, nodes: dict[Variable, _Node]) -> list[_Arrow]:
    """An arrow per operand, with its local derivative where all are single numbers."""
    ctx = node.variable.grad_fn
    if ctx is None:
        return []
    scalar = ctx.saved is not None and all(x.value.ndim == 0 for x in [node.variable, *ctx.parents])
    # A local derivative is what backward gives for a gradient of 1.
    locals_ = ctx.function.backward(ctx, np.ones(())) if scalar else [None] * len(ctx.inputs)
    pairs = [(x, local) for x, local in zip(ctx.inputs, locals_, strict=True) if isinstance(x, Variable)]
    return [
        _Arrow(
            x, node.variable, "" if local is None else _number(local), _way(nodes[x], node, i - (len(pairs) - 1) / 2)
        )
        for i, (x, local) in enumerate(pairs)
    ]


def _way(start: _Node, end: _Node, side: float) -> tuple[_Node, ...]:
    """From node to node, with a bend in every column between them."""
    way = (start, *(_Node(None, column) for column in range(start.column + 1, end.column)), end)
    for here, there in zip(way[:-1], way[1:], strict=True):
        here.uses.append((there, side if there is end else 0.0))
    return way


def _spread(nodes: list[_Node]) -> float:
    """Give every node its row, column by column from the right, as near to its wish as there is room; returns the rows."""
    for column in sorted({node.column for node in nodes}, reverse=True):
        inside = sorted((node for node in nodes if node.column == column), key=lambda node: node.wish)
        wished = [node.wish for node in inside]
        for i, node in enumerate(inside):
            above = inside[i - 1].row + (inside[i - 1].room + node.room) / 2 if i else wished[0]
            node.row = max(wished[i], above)
        too_low = np.mean([node.row - wish for node, wish in zip(inside, wished, strict=True)])
        for node in inside:
            node.row -= too_low
    highest = min(node.row for node in nodes)
    for node in nodes:
        node.row -= highest
    return 1 + max(node.row for node in nodes)


def _saved_values(nodes: dict[Variable, _Node]) -> set[int]:
    return {id(value) for v in nodes if v.grad_fn for value, *_ in v.grad_fn.saved or ()}


def _draw_node(axes, node: _Node, saved: bool) -> None:
    x, y = node.column, node.row
    face = "#D6ECF8" if saved else COLORS["paper"]  # a light tone of the color of activations
    frame = {"boxstyle": "round,pad=0,rounding_size=0.08", "facecolor": face, "edgecolor": COLORS["ink"], "zorder": 3}
    axes.add_patch(FancyBboxPatch((x - _WIDTH / 2, y - _HEIGHT / 2), _WIDTH, _HEIGHT, linewidth=1.2, **frame))
    gradient = node.variable.grad
    lines = [(_heading(node.variable), COLORS["ink"], "bold"), (_value(node.variable.value), COLORS["ink"], "normal")]
    if gradient is not None:
        lines.append((f"grad {_value(gradient)}", writing("second"), "normal"))
    for i, (text, color, weight) in enumerate(lines):
        place = y + 0.19 * (i - (len(lines) - 1) / 2)
        axes.text(x, place, text, ha="center", va="center", color=color, weight=weight, fontsize=8.5, zorder=4)


def _heading(variable: Variable) -> str:
    """`'x'` for a leaf, `'power 2'` for what was made, with the plain numbers that went in, and its name if it has one."""
    ctx = variable.grad_fn
    if ctx is None:
        return variable.name or "leaf"
    numbers = [f"{x:g}" for x in ctx.inputs if not isinstance(x, Variable)]
    made = " ".join([ctx.function.symbol, *numbers])
    return f"{variable.name}:  {made}" if variable.name else made


def _draw_arrow(axes, arrow: _Arrow) -> None:
    first, *bends, last = arrow.way
    points = [(first.column + _WIDTH / 2, first.row)]
    for bend in bends:  # level while it passes a column of boxes
        points += [(bend.column - _WIDTH / 2, bend.row), (bend.column + _WIDTH / 2, bend.row)]
    tip = (last.column - _WIDTH / 2, last.row)
    axes.plot(*zip(*points, strict=True), color=COLORS["ink"], linewidth=1.1, zorder=1)
    shape = {"arrowstyle": "-|>", "color": COLORS["ink"], "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=tip, xytext=points[-1], arrowprops=shape, zorder=1)
    if arrow.local:
        at = [(1 - _LABEL) * a + _LABEL * b for a, b in zip(points[-1], tip, strict=True)]
        paper = {"facecolor": COLORS["paper"], "edgecolor": "none", "pad": 0.6}
        axes.text(
            *at, arrow.local, ha="center", va="center", color=writing("third"), fontsize=8.5, bbox=paper, zorder=2
        )


def _legend(figure: Figure, axes) -> None:
    entries = [
        axes.plot([], [], "s", color="#D6ECF8", markeredgecolor=COLORS["ink"], label="saved for backward")[0],
        axes.plot([], [], "-", color=COLORS["third"], label="on an arrow: local derivative")[0],
        axes.plot([], [], "-", color=COLORS["second"], label="gradient of the output")[0],
    ]
    figure.legend(handles=entries, loc="outside lower center", ncols=3)


def _number(value) -> str:
    return f"{float(value) + 0.0:.3g}".replace("-", "−")  # + 0.0 turns −0 into 0


def _value(value: np.ndarray) -> str:
    if value.size == 1:
        return _number(value.reshape(()))
    if value.size <= _NUMBERS_SHOWN:
        return f"({', '.join(map(_number, value.ravel()))})"
    return " × ".join(map(str, value.shape))


def _describe(nodes: dict[Variable, _Node], arrows: list[_Arrow], saved: set[int]) -> str:
    boxes = []
    for variable in reversed(nodes):
        gradient = "" if variable.grad is None else f", gradient {_value(variable.grad)}"
        note = ", saved" if id(variable.value) in saved else ""
        boxes.append(f"{_heading(variable)} = {_value(variable.value)}{gradient}{note}")
    links = [f"{_heading(arrow.start)} to {_heading(arrow.end)} {arrow.local}".strip() for arrow in arrows]
    return f"A graph of {len(nodes)} boxes: {'; '.join(boxes)}. Arrows with local derivatives: {'; '.join(links)}."


def saved_by_part_figure(parts: Mapping[str, tuple[int, int]], title: str = "") -> tuple[Figure, str]:
    """Two bars per part of a model: bytes saved as predicted, and as measured. `parts` are in the order of the forward."""
    unit, size = byte_unit(max(max(pair) for pair in parts.values()))
    figure, axes = subplots(figsize=(7.6, 1.2 + 0.55 * len(parts)), layout="constrained")
    for place, (predicted, measured) in enumerate(parts.values()):
        for side, value, color in ((-1, predicted, "predicted"), (1, measured, "measured")):
            axes.barh(place + side * 0.19, value / size, 0.36, color=COLORS[color])
        axes.text(max(predicted, measured) / size, place, f"  {format_bytes(measured)}", va="center", fontsize=9)
    axes.set(yticks=range(len(parts)), yticklabels=list(parts), xlabel=f"saved for backward, {unit}", title=title)
    axes.set_xlim(0, 1.15 * max(max(pair) for pair in parts.values()) / size)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    figure.legend(*patches(("predicted", "predicted"), ("measured", "measured")), loc="outside upper center", ncols=2)
    listed = "; ".join(f"{name}: {format_bytes(p)} and {format_bytes(m)}" for name, (p, m) in parts.items())
    return figure, f"Bytes saved for backward by part of the model, predicted and measured. {listed}."
