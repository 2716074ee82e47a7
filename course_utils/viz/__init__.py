"""Figures in one style: opaque paper (readable in light and dark notebooks), colors safe for color-blind readers."""

from course_utils.viz.adafactor import (
    adafactor_schedules_figure,
    estimate_figure,
    factoring_figure,
    play_estimate,
    small_gradients_figure,
)
from course_utils.viz.choosing import bytes_by_optimizer, decision_figure
from course_utils.viz.descent import (
    STEERED,
    family_figure,
    noise_figure,
    paths_figure,
    schedules_figure,
    steering_figure,
)
from course_utils.viz.display import difference, play, show, source, use_course_style
from course_utils.viz.local_sgd import (
    busy_figure,
    drift_figure,
    local_rounds_figure,
    losses_against_every_figure,
    losses_of_ways_figure,
    play_local_drift,
)
from course_utils.viz.losses import compare_losses, losses_against_bytes, losses_apart, losses_over_seeds
from course_utils.viz.memory import instants_figure
from course_utils.viz.optimizers import correction_figure, decay_figure, decay_paths_figure
from course_utils.viz.planner import planner, planner_figure, planner_working
from course_utils.viz.plots import bars, lines
from course_utils.viz.profile import operator_seconds_figure, trace_figure
from course_utils.viz.quantization import (
    blocks_figure,
    code_book_figure,
    code_books_figure,
    stagnation_figure,
    state_cycle_figure,
)
from course_utils.viz.sharding import lanes_figure, lengths_figure, play_sharding, sharding_figure, units_figure
from course_utils.viz.style import COLORS
from course_utils.viz.timeline import timeline_figure

__all__ = [
    "COLORS",
    "STEERED",
    "adafactor_schedules_figure",
    "bars",
    "blocks_figure",
    "busy_figure",
    "bytes_by_optimizer",
    "code_book_figure",
    "code_books_figure",
    "compare_losses",
    "correction_figure",
    "decay_figure",
    "decay_paths_figure",
    "decision_figure",
    "difference",
    "drift_figure",
    "estimate_figure",
    "factoring_figure",
    "family_figure",
    "instants_figure",
    "lanes_figure",
    "local_rounds_figure",
    "lengths_figure",
    "lines",
    "losses_against_bytes",
    "losses_against_every_figure",
    "losses_apart",
    "losses_of_ways_figure",
    "losses_over_seeds",
    "noise_figure",
    "operator_seconds_figure",
    "paths_figure",
    "planner",
    "planner_figure",
    "planner_working",
    "play",
    "play_estimate",
    "play_local_drift",
    "play_sharding",
    "schedules_figure",
    "sharding_figure",
    "show",
    "small_gradients_figure",
    "source",
    "stagnation_figure",
    "state_cycle_figure",
    "steering_figure",
    "timeline_figure",
    "trace_figure",
    "units_figure",
    "use_course_style",
]
