"""The rates of machines: of named ones by their makers' data sheets, of this one by a few seconds of measurement."""

from course_utils import import_when_used
from course_utils.hardware.machine import Curve, Machine, Rates, Work
from course_utils.hardware.named import MACHINES, OFFERED_SHARE, canonical_name, machine

_LAZY_NAMES = {  # these need torch, which takes a second to import
    "calibration": ("calibrate", "process_bandwidth"),
    "flops": ("count_flops", "flop_formula"),
    "links": ("A100", "LINKS", "Cluster", "Link", "all_reduce_seconds"),
    "operators": ("Operator", "OperatorWatch", "Prediction", "Watch"),
}
__getattr__, __dir__, _names = import_when_used(__name__, _LAZY_NAMES)
__all__ = ["MACHINES", "OFFERED_SHARE", "Curve", "Machine", "Rates", "Work", "canonical_name", "machine", *_names]
