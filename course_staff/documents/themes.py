"""Light and dark: the colors of a picture that a code host shows on a page of either kind."""

from course_utils.viz.style import COLORS, STYLE

THEMES = {
    "light": {"paper": COLORS["paper"], "ink": COLORS["ink"], "grid": COLORS["grid"], "dot": COLORS["measured"]},
    "dark": {"paper": "#0d1117", "ink": "#e6edf3", "grid": "#30363d", "dot": "#56B4E9"},
}
"""The colors of each."""


def style_in(theme: str) -> dict:
    """Matplotlib's settings for a picture on a page of this theme, one of `THEMES`."""
    colors = THEMES[theme]
    inks = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor")
    backgrounds = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
    return {
        **STYLE,
        **dict.fromkeys(inks, colors["ink"]),
        **dict.fromkeys(backgrounds, colors["paper"]),
        "grid.color": colors["grid"],
    }
