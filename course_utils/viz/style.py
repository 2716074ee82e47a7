"""Colors and sizes of every figure."""

# Okabe & Ito (2008), told apart by readers with any common color blindness.
_BLACK, _ORANGE, _SKY, _GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
_YELLOW, _BLUE, _VERMILION, _PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
_INDIGO, _WINE = (
    "#332288",
    "#882255",
)  # Tol (2021), "muted": darker than all of the above, so that they stay apart in gray

COLORS = {
    "parameters": _BLUE,
    "gradients": _ORANGE,
    "optimizer state": _GREEN,
    "activations": _SKY,
    "temporaries": _PURPLE,
    "buffers": _BLACK,
    "inputs": _YELLOW,
    "recomputed": _INDIGO,
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
