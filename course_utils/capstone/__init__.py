"""The capstone: scenarios in which a recipe is weighed against budgets, and a task to train within limits."""

from course_utils import import_when_used

_HOMES = {
    "layout": ("Layout",),
    "measuring": ("measured",),
    "operations": ("Operations",),
    "scenarios": ("SCENARIOS", "Scenario", "choose", "weigh"),
    "task": ("Task", "accuracy", "draw", "fresh_model"),
}

__getattr__, __dir__, __all__ = import_when_used(__name__, _HOMES)
