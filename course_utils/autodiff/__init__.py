"""Reverse-mode automatic differentiation by hand, on NumPy arrays: nothing of PyTorch's can help it."""

from course_utils.autodiff.arithmetic import Add, Divide, Multiply, Power, Subtract
from course_utils.autodiff.engine import Context, Function, Variable, backward_order
from course_utils.autodiff.functions import Exp, MatMul, Relu, Sum, exp, relu
from course_utils.autodiff.record import numerical_gradients, saved, saved_bytes

__all__ = [
    "Add", "Context", "Divide", "Exp", "Function", "MatMul", "Multiply", "Power", "Relu", "Subtract", "Sum", "Variable",
    "backward_order", "exp", "numerical_gradients", "relu", "saved", "saved_bytes",
]  # fmt: skip
