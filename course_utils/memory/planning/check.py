"""An estimate compared with a measurement on this machine."""

import pandas as pd

from course_utils.memory.formulas.estimate import Estimate
from course_utils.memory.trace.measure import NOT_ATTRIBUTED, measure
from course_utils.memory.trace.phases import Step
from course_utils.units import format_bytes


def check(estimate: Estimate, step: Step | None = None) -> pd.DataFrame:
    """Run a few real steps and return a table of predicted and measured bytes, by kind at the measured peak.

    `step` is as for `measure`, by default the estimate's own. Of kinds that are off by more than 1 % of the peak, the column
    `differs` has the difference; for others it is empty.
    """
    workload = estimate.workload
    measurement = measure(workload.build, step or workload.step, timed=0)
    predicted = estimate.by_instant().get(measurement.peak_phase, estimate.peak_instant.by_kind)
    split = measurement.split
    kinds = [kind for kind in dict.fromkeys([*predicted, *split]) if predicted.get(kind) or split.get(kind)]
    rows = [{"kind": kind, "predicted": predicted.get(kind, 0), "measured": split.get(kind, 0)} for kind in kinds]
    rows.append({"kind": "peak", "predicted": estimate.peak, "measured": measurement.peak})
    frame = pd.DataFrame(rows).set_index("kind")
    excess = frame["measured"] - frame["predicted"]
    notes = {kind: format_bytes(size) if abs(size) > 0.01 * measurement.peak else "" for kind, size in excess.items()}
    if notes.get(NOT_ATTRIBUTED):
        notes[NOT_ATTRIBUTED] = "hidden inside operators"
    return frame.assign(differs=pd.Series(notes))
