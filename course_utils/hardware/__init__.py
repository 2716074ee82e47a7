"""What machines can do: named ones by their makers' data sheets, and this one by a few seconds of measurement."""

from course_utils.hardware.calibration import calibrate
from course_utils.hardware.exchange import process_bandwidth
from course_utils.hardware.machine import Curve, Machine, Work
from course_utils.hardware.named import MACHINES, OFFERED, known_as, machine
from course_utils.hardware.operators import Operator, OperatorWatch, Prediction, Watch, count_flops, flop_formula

__all__ = [
    "MACHINES",
    "OFFERED",
    "Curve",
    "Machine",
    "Operator",
    "OperatorWatch",
    "Prediction",
    "Watch",
    "Work",
    "calibrate",
    "count_flops",
    "flop_formula",
    "known_as",
    "machine",
    "process_bandwidth",
]
