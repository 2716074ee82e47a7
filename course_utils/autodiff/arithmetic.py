"""The signs of arithmetic. Each saves what its derivatives mention, for the inputs whose gradient is wanted."""

import numpy as np

from course_utils.autodiff.engine import Context, Function, Gradients, Variable


class Add(Function):
    """a + b; both local derivatives are 1, so there is nothing to save."""

    symbol = "+"

    @staticmethod
    def forward(ctx: Context, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a + b

    @staticmethod
    def backward(ctx: Context, gradient: np.ndarray) -> Gradients:
        return gradient, gradient


class Subtract(Function):
    """a − b; local derivatives 1 and −1, nothing to save."""

    symbol = "−"

    @staticmethod
    def forward(ctx: Context, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a - b

    @staticmethod
    def backward(ctx: Context, gradient: np.ndarray) -> Gradients:
        return gradient, -gradient


class Multiply(Function):
    """a · b, element by element; the derivative for one factor is the other factor."""

    symbol = "×"

    @staticmethod
    def forward(ctx: Context, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        needs_a, needs_b = ctx.needs_input_grad
        ctx.save_for_backward(a if needs_b else None, b if needs_a else None)
        return a * b

    @staticmethod
    def backward(ctx: Context, gradient: np.ndarray) -> Gradients:
        a, b = ctx.saved_values
        return None if b is None else gradient * b, None if a is None else gradient * a


class Divide(Function):
    """a / b; local derivatives 1/b and −a/b²."""

    symbol = "÷"

    @staticmethod
    def forward(ctx: Context, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        ctx.save_for_backward(a if ctx.needs_input_grad[1] else None, b)
        return a / b

    @staticmethod
    def backward(ctx: Context, gradient: np.ndarray) -> Gradients:
        a, b = ctx.saved_values
        return gradient / b, None if a is None else -gradient * a / b**2


class Power(Function):
    """aⁿ for a plain number n; local derivative n·aⁿ⁻¹."""

    symbol = "power"

    @staticmethod
    def forward(ctx: Context, a: np.ndarray, n: float) -> np.ndarray:
        ctx.save_for_backward(a, n)
        return a**n

    @staticmethod
    def backward(ctx: Context, gradient: np.ndarray) -> Gradients:
        a, n = ctx.saved_values
        return gradient * (n * a ** (n - 1) if n else 0), None


# What the signs between variables mean; NumPy must not take them over when it stands on the left.
Variable.__array_ufunc__ = None
Variable.__add__ = Variable.__radd__ = lambda a, b: Add.apply(a, b)
Variable.__mul__ = Variable.__rmul__ = lambda a, b: Multiply.apply(a, b)
Variable.__sub__ = lambda a, b: Subtract.apply(a, b)
Variable.__rsub__ = lambda b, a: Subtract.apply(a, b)
Variable.__truediv__ = lambda a, b: Divide.apply(a, b)
Variable.__rtruediv__ = lambda b, a: Divide.apply(a, b)
Variable.__pow__ = lambda a, n: Power.apply(a, n)
