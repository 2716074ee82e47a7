"""Figures in one style: opaque paper (readable in light and dark notebooks), colors safe for color-blind readers."""

from course_utils.viz.display import difference, play, show, source, use_course_style
from course_utils.viz.losses import losses_over_seeds
from course_utils.viz.memory import instants_figure, timeline_figure
from course_utils.viz.planner import planner, planner_figure, planner_working
from course_utils.viz.style import COLORS

__all__ = [
    "COLORS",
    "difference",
    "instants_figure",
    "losses_over_seeds",
    "planner",
    "planner_figure",
    "planner_working",
    "play",
    "show",
    "source",
    "timeline_figure",
    "use_course_style",
]
