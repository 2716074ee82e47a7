"""Reverse-mode automatic differentiation by hand, on NumPy arrays: nothing of PyTorch's can help it."""

from course_utils.autodiff.check import numerical_gradients
from course_utils.autodiff.engine import Primitive, Variable, backward_order
from course_utils.autodiff.primitives import exp, log, relu, softplus, tanh
from course_utils.autodiff.record import Entry, saved, saved_bytes

__all__ = [
    "Entry",
    "Primitive",
    "Variable",
    "backward_order",
    "exp",
    "log",
    "numerical_gradients",
    "relu",
    "saved",
    "saved_bytes",
    "softplus",
    "tanh",
]
