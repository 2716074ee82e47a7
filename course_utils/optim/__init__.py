"""Optimizers by hand, each a difference from the one before; constructor arguments as torch's."""

from course_utils.optim.adam import Adam, AdamW
from course_utils.optim.adam8bit import Adam8bit, AdamW8bit
from course_utils.optim.groups import decay_groups

__all__ = ["Adam", "Adam8bit", "AdamW", "AdamW8bit", "decay_groups"]
