"""The picture that a chat or a feed shows beside a link to a page."""

import textwrap
from pathlib import Path

from matplotlib.figure import Figure

from course_utils.viz.style import COLORS

WIDTH, HEIGHT = 1200, 630
"""The size in pixels, in the proportions that are asked for most."""
_DOTS_PER_INCH = 100


def draw_card(title: str, line: str, path: Path) -> None:
    """Store at `path` a picture with the title of a page and a line under it."""
    figure = Figure(figsize=(WIDTH / _DOTS_PER_INCH, HEIGHT / _DOTS_PER_INCH), facecolor=COLORS["paper"])
    text_style = {"ha": "left", "va": "top", "parse_math": False}
    figure.text(
        0.07, 0.86, textwrap.fill(title, 26), fontsize=46, weight="bold", color=COLORS["measured"], **text_style
    )
    figure.text(0.07, 0.46, textwrap.fill(line, 52), fontsize=25, color=COLORS["ink"], **text_style)
    figure.text(0.07, 0.13, "Efficient model training with PyTorch", fontsize=20, color=COLORS["ink"], **text_style)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=_DOTS_PER_INCH, metadata={"Software": None})
