"""Figures in one style: opaque paper (readable in light and dark notebooks), colors safe for color-blind readers."""

from course_utils.viz.display import play, show, source, use_course_style
from course_utils.viz.memory import instants_figure, ledger_figure, peak_against_batch
from course_utils.viz.optimizers import correction_figure, decay_figure, decay_paths_figure
from course_utils.viz.style import COLORS
from course_utils.viz.training import compare_losses, learning_curves

__all__ = [
    "COLORS",
    "compare_losses",
    "correction_figure",
    "decay_figure",
    "decay_paths_figure",
    "instants_figure",
    "learning_curves",
    "ledger_figure",
    "peak_against_batch",
    "play",
    "show",
    "source",
    "use_course_style",
]
