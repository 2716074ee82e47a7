"""Optimizers by hand, each a difference from the one before; names and arguments as torch's."""

from course_utils.optim import schedules
from course_utils.optim.adafactor import Adafactor
from course_utils.optim.adafactor_hf import HFAdafactor
from course_utils.optim.adagrad import AdaGrad, RMSProp
from course_utils.optim.adam import Adam, AdamW
from course_utils.optim.adam8bit import Adam8bit, AdamW8bit
from course_utils.optim.chained import ChainedOptimizer, hidden_matrices
from course_utils.optim.galore import APOLLO, GaLore
from course_utils.optim.groups import decay_groups
from course_utils.optim.low_bit import AdamW4bit, AdamW16bit
from course_utils.optim.sgd import SGD, Momentum, Nesterov

__all__ = [
    "APOLLO",
    "SGD",
    "AdaGrad",
    "Adafactor",
    "Adam",
    "Adam8bit",
    "AdamW",
    "AdamW4bit",
    "AdamW8bit",
    "AdamW16bit",
    "ChainedOptimizer",
    "GaLore",
    "HFAdafactor",
    "Momentum",
    "Nesterov",
    "RMSProp",
    "decay_groups",
    "hidden_matrices",
    "schedules",
]
