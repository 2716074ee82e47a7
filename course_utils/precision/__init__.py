"""Number formats bit by bit, and training in narrow ones."""

from course_utils.precision import fp8
from course_utils.precision.formats import FORMATS, Format
from course_utils.precision.loss_scaler import LossScaler
from course_utils.precision.low_precision import KahanSum, MasterWeights, RoundToNearest, StochasticRounding
from course_utils.precision.nonfinite import watch_finite

__all__ = [
    "FORMATS",
    "Format",
    "KahanSum",
    "LossScaler",
    "MasterWeights",
    "RoundToNearest",
    "StochasticRounding",
    "fp8",
    "watch_finite",
]
