"""The pencil: what a training step needs, from formulas alone."""

from course_utils.memory.estimate.pencil import ARCHITECTURES, estimate, parameter_shapes
from course_utils.memory.estimate.report import Estimate, Instant, Term
from course_utils.memory.estimate.shards import Shards

__all__ = ["ARCHITECTURES", "Estimate", "Instant", "Shards", "Term", "estimate", "parameter_shapes"]
