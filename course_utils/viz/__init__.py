"""Figures in one style: opaque paper (readable in light and dark notebooks), colors safe for color-blind readers."""

from course_utils.viz.display import difference, play, show, source, use_course_style
from course_utils.viz.local_sgd import (
    busy_figure,
    drift_figure,
    local_rounds_figure,
    losses_against_every_figure,
    losses_of_ways_figure,
    play_local_drift,
)
from course_utils.viz.losses import compare_losses, losses_over_seeds
from course_utils.viz.memory import instants_figure
from course_utils.viz.planner import planner, planner_figure, planner_working
from course_utils.viz.sharding import lanes_figure, lengths_figure, play_sharding, sharding_figure, units_figure
from course_utils.viz.style import COLORS
from course_utils.viz.timeline import timeline_figure

__all__ = [
    "COLORS",
    "busy_figure",
    "compare_losses",
    "difference",
    "drift_figure",
    "instants_figure",
    "lanes_figure",
    "local_rounds_figure",
    "lengths_figure",
    "losses_against_every_figure",
    "losses_of_ways_figure",
    "losses_over_seeds",
    "planner",
    "planner_figure",
    "planner_working",
    "play",
    "play_local_drift",
    "play_sharding",
    "sharding_figure",
    "show",
    "source",
    "timeline_figure",
    "units_figure",
    "use_course_style",
]
