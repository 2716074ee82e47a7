"""Optimizers by hand, each a difference from the one before; constructor arguments as torch's."""

from course_utils.optim import schedules
from course_utils.optim.adafactor import Adafactor
from course_utils.optim.adagrad import AdaGrad
from course_utils.optim.adam import Adam, AdamW
from course_utils.optim.adam8bit import Adam8bit, AdamW8bit
from course_utils.optim.groups import decay_groups
from course_utils.optim.rmsprop import RMSProp
from course_utils.optim.sgd import SGD
from course_utils.optim.together import Together, hidden_matrices

__all__ = [
    "SGD",
    "AdaGrad",
    "Adafactor",
    "Adam",
    "Adam8bit",
    "AdamW",
    "AdamW8bit",
    "RMSProp",
    "Together",
    "decay_groups",
    "hidden_matrices",
    "schedules",
]
