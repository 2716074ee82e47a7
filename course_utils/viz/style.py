"""Colors and sizes of every figure."""

# Okabe & Ito (2008), told apart by readers with any common color blindness.
_BLACK, _ORANGE, _SKY, _GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
_YELLOW, _BLUE, _VERMILION, _PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
# Tol (2021), "muted": darker than all of the above, so that they stay apart in gray.
_INDIGO, _WINE = "#332288", "#882255"
_BROWN = "#604800"

COLORS = {
    "parameters": _BLUE,
    "gradients": _ORANGE,
    "optimizer state": _GREEN,
    "activations": _SKY,
    "temporaries": _PURPLE,
    "buffers": _BLACK,
    "inputs": _YELLOW,
    "recomputed": _INDIGO,
    "communication": _BROWN,
    "backward temporaries": _PURPLE,
    "optimizer temporaries": _WINE,
    "not attributed": "#999999",
    "predicted": "#999999",
    "measured": _BLUE,
    "warning": _VERMILION,
    "first": _BLUE,
    "second": _VERMILION,
    "third": _GREEN,
    "fourth": _PURPLE,
    "ink": "#222222",
    "paper": "#FFFFFF",
    "grid": "#DDDDDD",
}

SERIES = ("first", "second", "third", "fourth", "recomputed", "gradients", "activations")
"""Names of the colors of lines and points that stand beside each other, in order."""
LINES, MARKS = ("-", "--", "-.", ":"), "osD^vP*X"
"""Styles of lines and marks of points, in the same order, for readers who see no color."""

BIT_COLORS = {"sign": "second", "exponent": "gradients", "mantissa": "activations"}
"""Names of the colors of a number's bits, in figures and on buttons."""
BIT_INK = _BLACK

# Letters need more contrast with their ground than lines and areas do (WCAG 2.2: 4.5 to 1, not 3 to 1).
_DARK_SHADES = {_VERMILION: "#A84A00", _GREEN: "#007A59", _PURPLE: "#94456F", "#999999": "#6B6B6B", _ORANGE: "#8A5F00"}


def text_color(name: str) -> str:
    """The color called `name`, for letters: as it is where it is dark enough to be read on paper, else a darker shade."""
    return _DARK_SHADES.get(COLORS[name], COLORS[name])


STYLE = {
    "figure.figsize": (7.6, 3.6),
    "figure.facecolor": COLORS["paper"],
    "axes.facecolor": COLORS["paper"],
    "axes.edgecolor": COLORS["ink"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "grid.color": COLORS["grid"],
    "grid.linewidth": 0.7,
    "font.size": 10,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
}
