"""What several figures share: their making, units of an axis, the parts of a legend."""

import textwrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from course_utils.units import BYTE_UNITS
from course_utils.viz.style import COLORS, text_color

VISIBLE = 0.002
"""The least share of a figure's width or height that a reader sees."""


class Page(Figure):
    """A figure that remembers what each plot in it says, for the alternative text of the whole."""

    def __init__(self, **shape):
        super().__init__(**shape)
        self.panel_texts: list[str] = []


def subplots(
    rows: int = 1, columns: int = 1, *, figsize: tuple[float, float] | None = None, layout: str | None = None, **shape
) -> tuple[Page, object]:
    """A figure and its axes as `pyplot.subplots` makes them, which pyplot does not know.

    A notebook shows and closes what pyplot has open after each event of a control, and JupyterLab may deliver two events
    in two threads: a figure of pyplot's could be shown half drawn.
    """
    figure = Page(figsize=figsize, layout=layout)
    return figure, figure.subplots(rows, columns, **shape)


def unit_for(largest: float, units: tuple = BYTE_UNITS) -> tuple[str, float]:
    """Name and size of the unit, of bytes by default, for an axis that reaches to `largest`."""
    return next((unit for unit in units if largest >= unit[1]), units[-1])


def patches(*entries: tuple[str, str]) -> tuple[list, list[str]]:
    """Handles and labels of a legend, from pairs of label and color name."""
    return [Rectangle((0, 0), 1, 1, color=COLORS[color]) for _, color in entries], [label for label, _ in entries]


def draw_cell(
    axes: Axes, x: float, y: float, color: str, text: str = "", width: float = 0.92, height: float = 0.92, **patch_style
) -> None:
    """A rectangle with its lower left corner at (x, y), and a text in its middle."""
    axes.add_patch(Rectangle((x, y), width, height, **{"facecolor": COLORS[color], "edgecolor": "none"} | patch_style))
    if text:
        axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", color=COLORS["buffers"])


def hide_axes(
    axes: Axes, xlim: tuple[float, float] = (0, 1), ylim: tuple[float, float] = (0, 1), title: str = ""
) -> None:
    """Axes that measure nothing: a place to draw."""
    axes.set(xlim=xlim, ylim=ylim, title=title)
    axes.axis("off")


def draw_box(
    axes: Axes, x: float, y: float, text: str, color: str = "ink", ink: str | None = None, fontsize: float = 9.5
) -> Text:
    """Text in a frame for a flow chart; `ink` is the color of the text where it is not the frame's."""
    frame = {"boxstyle": "round,pad=0.4", "facecolor": COLORS["paper"], "edgecolor": COLORS[color], "linewidth": 1.6}
    text_style = {"bbox": frame, "color": text_color(ink or color), "fontsize": fontsize}
    return axes.text(x, y, text, ha="center", va="center", **text_style)


def draw_arrow(axes: Axes, start: Text, end: Text, color: str = "ink") -> None:
    """An arrow from the edge of one `draw_box` to the edge of another."""
    shape = {"arrowstyle": "-|>", "color": COLORS[color], "linewidth": 1.4}
    ends = {"patchA": start.get_bbox_patch(), "patchB": end.get_bbox_patch(), "shrinkA": 2, "shrinkB": 2}
    axes.annotate("", xy=end.get_position(), xytext=start.get_position(), arrowprops=shape | ends)


def write_sentence(sentence: str) -> tuple[Page, str]:
    """A figure that says in a sentence why there is nothing to draw, and that sentence as its alternative text."""
    figure, axes = subplots(figsize=(7.6, 1.6))
    axes.axis("off")
    axes.text(0, 0.5, textwrap.fill(sentence, 80), va="center", fontsize=11, color=COLORS["ink"])
    return figure, sentence
