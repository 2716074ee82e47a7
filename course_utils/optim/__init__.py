"""Optimizers by hand, each a difference from the one before; constructor arguments as torch's."""

from course_utils.optim.adafactor import Adafactor
from course_utils.optim.adam import Adam, AdamW
from course_utils.optim.groups import decay_groups

__all__ = ["Adafactor", "Adam", "AdamW", "decay_groups"]
