"""Bytes: what an optimizer keeps, what a forward pass saves, and the peak of each phase of a step."""

from course_utils.memory.instants import instants, predicted_peak
from course_utils.memory.peak import Peaks, peak_by_phase
from course_utils.memory.phases import phase
from course_utils.memory.saved import saved_bytes
from course_utils.memory.state import StateSize, optimizer_state_size
from course_utils.memory.storage import distinct_bytes

__all__ = [
    "Peaks",
    "StateSize",
    "distinct_bytes",
    "instants",
    "optimizer_state_size",
    "peak_by_phase",
    "phase",
    "predicted_peak",
    "saved_bytes",
]
