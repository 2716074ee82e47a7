"""Light and dark: the colors of a picture that a code host shows on a page of either kind."""

from course_utils.viz.style import COLORS, STYLE

PAPERS = {
    "light": {"paper": COLORS["paper"], "ink": COLORS["ink"], "grid": COLORS["grid"], "dot": COLORS["measured"]},
    "dark": {"paper": "#0d1117", "ink": "#e6edf3", "grid": "#30363d", "dot": "#56B4E9"},
}
"""By the name of a paper."""


def style_on(paper: str) -> dict:
    """Matplotlib's settings for a picture on `paper`, one of `PAPERS`."""
    colors = PAPERS[paper]
    inks = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor")
    papers = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
    return {
        **STYLE,
        **dict.fromkeys(inks, colors["ink"]),
        **dict.fromkeys(papers, colors["paper"]),
        "grid.color": colors["grid"],
    }
