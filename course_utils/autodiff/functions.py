"""Products of matrices, sums, and two functions of one number, whose output tells the derivative."""

import numpy as np

from course_utils.autodiff.engine import Context, Function, Gradients, Variable


class MatMul(Function):
    """a @ b for vectors and matrices, as NumPy has it."""

    symbol = "@"

    @staticmethod
    def forward(ctx: Context, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        needs_a, needs_b = ctx.needs_input_grad
        ctx.save_for_backward(a if needs_b else None, b if needs_a else None)
        return a @ b

    @staticmethod
    def backward(ctx: Context, gradient: np.ndarray) -> Gradients:
        """g @ bᵀ and aᵀ @ g; a vector counts as a matrix of one row (left) or one column (right)."""
        a, b = ctx.saved_values
        rows, columns = (x.value.shape for x in ctx.inputs)
        g = np.reshape(gradient, (-1, 1 if len(columns) == 1 else columns[1]))
        left = None if b is None else (g @ b.reshape(columns[0], -1).T).reshape(rows)
        right = None if a is None else (a.reshape(-1, rows[-1]).T @ g).reshape(columns)
        return left, right


class Sum(Function):
    """The sum of all elements; each has the local derivative 1, so only the shape is remembered."""

    symbol = "sum"

    @staticmethod
    def forward(ctx: Context, a: np.ndarray) -> np.ndarray:
        ctx.shape = a.shape
        return a.sum()

    @staticmethod
    def backward(ctx: Context, gradient: np.ndarray) -> Gradients:
        return (np.broadcast_to(gradient, ctx.shape),)


class Relu(Function):
    """max(0, a); the local derivative is 1 where the output is positive, else 0."""

    symbol = "max(0, ·)"

    @staticmethod
    def forward(ctx: Context, a: np.ndarray) -> np.ndarray:
        output = np.maximum(a, 0)
        ctx.save_for_backward(output)
        return output

    @staticmethod
    def backward(ctx: Context, gradient: np.ndarray) -> Gradients:
        (output,) = ctx.saved_values
        return (gradient * (output > 0),)


class Exp(Function):
    """eᵃ, its own derivative: the output is saved, not the input."""

    symbol = "exp"

    @staticmethod
    def forward(ctx: Context, a: np.ndarray) -> np.ndarray:
        output = np.exp(a)
        ctx.save_for_backward(output)
        return output

    @staticmethod
    def backward(ctx: Context, gradient: np.ndarray) -> Gradients:
        (output,) = ctx.saved_values
        return (gradient * output,)


relu, exp = Relu.apply, Exp.apply
Variable.__matmul__ = lambda a, b: MatMul.apply(a, b)
Variable.sum = lambda a: Sum.apply(a)
Variable.mean = lambda a: a.sum() / a.value.size
