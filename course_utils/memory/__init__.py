"""What a training step takes, measured (`measure`, `Meter`) and predicted (`dry_run`, `estimate`), and what fits (`plan`)."""

from course_utils.memory.dry_run import dry_run, predict_seconds
from course_utils.memory.estimate import Estimate, estimate
from course_utils.memory.guard import check, guard
from course_utils.memory.instants import instants, predicted_peak
from course_utils.memory.measure import Measurement, measure
from course_utils.memory.meter import Meter
from course_utils.memory.phases import phase
from course_utils.memory.plan import Plan, plan
from course_utils.memory.recipe import Recipe
from course_utils.memory.saved import distinct_bytes, saved_bytes, saved_list
from course_utils.memory.state import StateSize, optimizer_state_size
from course_utils.memory.usage import Usage
from course_utils.memory.workload import Workload

__all__ = [
    "Estimate",
    "Measurement",
    "Meter",
    "Plan",
    "Recipe",
    "StateSize",
    "Usage",
    "Workload",
    "check",
    "distinct_bytes",
    "dry_run",
    "estimate",
    "guard",
    "instants",
    "measure",
    "optimizer_state_size",
    "phase",
    "plan",
    "predict_seconds",
    "predicted_peak",
    "saved_bytes",
    "saved_list",
]
