"""Optimizers by hand, each a difference from the one before; constructor arguments as torch's."""

from course_utils.optim.adam import Adam, AdamW
from course_utils.optim.groups import decay_groups
from course_utils.optim.together import Together, hidden_matrices

__all__ = ["Adam", "AdamW", "Together", "decay_groups", "hidden_matrices"]
