"""Number formats bit by bit, and training in narrow ones."""

from course_utils.precision import fp8
from course_utils.precision.exponents import exponent_counts, gradients_of, loss_in
from course_utils.precision.formats import FORMATS, Format, in_binary, in_decimal
from course_utils.precision.narrow import (
    KeepMasters,
    KeepResidual,
    RoundStochastically,
    RoundToNearest,
    unmoved_share,
)
from course_utils.precision.scaler import LossScaler
from course_utils.precision.watch import OperatorTypes, watch_finite

__all__ = [
    "FORMATS",
    "Format",
    "KeepMasters",
    "KeepResidual",
    "LossScaler",
    "OperatorTypes",
    "RoundStochastically",
    "RoundToNearest",
    "exponent_counts",
    "fp8",
    "gradients_of",
    "in_binary",
    "in_decimal",
    "loss_in",
    "unmoved_share",
    "watch_finite",
]
