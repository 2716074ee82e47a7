"""What a training step takes, measured (`measure`, `Meter`) and predicted (`dry_run`, `estimate`), and what fits (`plan`)."""

from course_utils import import_when_used

_NAMES = {
    "trace.dry_run": ("dry_run", "predict_seconds"),
    "formulas.estimate": ("Estimate", "estimate"),
    "formulas.instants": ("instants", "predicted_peak"),
    "planning.check": ("check",),
    "planning.guard": ("guard",),
    "trace.measure": ("Measurement", "measure"),
    "trace.meter": ("Meter",),
    "trace.phases": ("phase",),
    "planning.plan": ("plan",),
    "planning.result": ("Plan",),
    "step.recipe": ("Recipe",),
    "trace.saved": ("distinct_bytes", "saved_bytes", "saved_list"),
    "trace.state": ("StateSize", "optimizer_state_size"),
    "trace.log": ("Usage",),
    "step.workload": ("Workload",),
}
# By need, since a recipe and a stored answer need no torch, which takes seconds to import.
__getattr__, __dir__, __all__ = import_when_used(__name__, _NAMES)
