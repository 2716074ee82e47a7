"""Figures in one style: opaque paper (readable in light and dark notebooks), colors safe for color-blind readers."""

from course_utils.viz.calculator import calculator_figure, calculator_working, memory_calculator
from course_utils.viz.display import play, show, source, use_course_style
from course_utils.viz.ledger import beside_figure, ledger_figure
from course_utils.viz.memory import instants_figure, peak_against_batch
from course_utils.viz.optimizers import correction_figure, decay_figure, decay_paths_figure
from course_utils.viz.quantization import (
    bands_figure,
    blocks_figure,
    code_book_figure,
    code_books_figure,
    stagnation_figure,
    state_cycle_figure,
)
from course_utils.viz.style import COLORS
from course_utils.viz.timeline import timeline_figure
from course_utils.viz.training import compare_losses, learning_curves

__all__ = [
    "COLORS",
    "bands_figure",
    "beside_figure",
    "blocks_figure",
    "calculator_figure",
    "calculator_working",
    "code_book_figure",
    "code_books_figure",
    "compare_losses",
    "correction_figure",
    "decay_figure",
    "decay_paths_figure",
    "instants_figure",
    "learning_curves",
    "ledger_figure",
    "memory_calculator",
    "peak_against_batch",
    "play",
    "show",
    "source",
    "stagnation_figure",
    "state_cycle_figure",
    "timeline_figure",
    "use_course_style",
]
