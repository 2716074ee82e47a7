"""What a training step takes, measured (`measure`, `Meter`) and predicted (`dry_run`, `estimate`), and what fits (`plan`)."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from course_utils import import_when_used

_NAMES = {
    "trace.dry_run": ("dry_run", "predict_seconds"),
    "formulas.estimate": ("Estimate", "estimate"),
    "plan.guard": ("check", "guard"),
    "step.instants": ("instants", "predicted_peak"),
    "trace.measure": ("Measurement", "measure"),
    "trace.meter": ("Meter",),
    "trace.phases": ("phase",),
    "plan.plan": ("plan",),
    "plan.verdict": ("Plan",),
    "step.recipe": ("Recipe",),
    "trace.saved": ("distinct_bytes", "saved_bytes", "saved_list"),
    "trace.state": ("StateSize", "optimizer_state_size"),
    "trace.log": ("Usage",),
    "step.workload": ("Workload",),
}
# By need, since a recipe and a stored answer need no torch, which takes seconds to import.
__getattr__, __dir__, __all__ = import_when_used(__name__, _NAMES)


class _Package(ModuleType):
    """Importing a submodule binds it to its package; a function of the same name is what is meant here."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple:
        """A function that names this package may go to other ranks."""
        return import_module, (__name__,)


sys.modules[__name__].__class__ = _Package
