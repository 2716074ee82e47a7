"""What machines can do: named ones by their makers' data sheets, and this one by a few seconds of measurement."""

from course_utils.hardware.calibration import calibrate
from course_utils.hardware.exchange import process_bandwidth
from course_utils.hardware.kernels import CHANNELS_LAST, MIXED, STRIDED, UNEVEN
from course_utils.hardware.machine import ON_HOST, Curve, Machine, Work
from course_utils.hardware.named import MACHINES, machine

__all__ = [
    "CHANNELS_LAST",
    "MACHINES",
    "MIXED",
    "ON_HOST",
    "STRIDED",
    "UNEVEN",
    "Curve",
    "Machine",
    "Work",
    "calibrate",
    "machine",
    "process_bandwidth",
]
