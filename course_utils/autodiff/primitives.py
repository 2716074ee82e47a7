"""The primitives. What each saves is what its derivative needs, and only for inputs whose gradient is wanted."""

import numpy as np

from course_utils.autodiff.engine import Primitive, Variable


class Add(Primitive):
    """a + b; both local derivatives are 1, so there is nothing to save."""

    symbol = "+"

    def forward(self, a, b):
        """See `Primitive`."""
        return a + b

    def backward(self, gradient):
        """See `Primitive`."""
        return gradient, gradient


class Subtract(Primitive):
    """a − b; local derivatives 1 and −1, nothing to save."""

    symbol = "−"

    def forward(self, a, b):
        """See `Primitive`."""
        return a - b

    def backward(self, gradient):
        """See `Primitive`."""
        return gradient, -gradient


class Multiply(Primitive):
    """a · b, element by element; the derivative for one factor is the other factor."""

    symbol = "×"

    def forward(self, a, b):
        """See `Primitive`."""
        self.save(a if self.needs[1] else None, b if self.needs[0] else None)
        return a * b

    def backward(self, gradient):
        """See `Primitive`."""
        a, b = self.saved
        return (gradient * b if self.needs[0] else None), (gradient * a if self.needs[1] else None)


class Divide(Primitive):
    """a / b; local derivatives 1/b and −a/b²."""

    symbol = "÷"

    def forward(self, a, b):
        """See `Primitive`."""
        self.save(a if self.needs[1] else None, b)
        return a / b

    def backward(self, gradient):
        """See `Primitive`."""
        a, b = self.saved
        return gradient / b, (-gradient * a / b**2 if self.needs[1] else None)


class Power(Primitive):
    """aⁿ for a plain number n; local derivative n·aⁿ⁻¹."""

    symbol = "power"

    def forward(self, a, n):
        """See `Primitive`."""
        self.save(a, n)
        return a**n

    def backward(self, gradient):
        """See `Primitive`."""
        a, n = self.saved
        return (gradient * n * a ** (n - 1) if n else 0 * gradient * a), None


class MatMul(Primitive):
    """a @ b for vectors and matrices, as NumPy has it."""

    symbol = "@"

    def forward(self, a, b):
        """See `Primitive`."""
        self.save(a if self.needs[1] else None, b if self.needs[0] else None)
        return a @ b

    def backward(self, gradient):
        """g @ bᵀ and aᵀ @ g; a vector counts as a matrix of one row (left) or one column (right)."""
        a, b = self.saved
        rows, columns = (self.inputs[i].value.shape for i in (0, 1))
        g = np.reshape(gradient, (-1, 1 if len(columns) == 1 else columns[1]))
        left = (g @ b.reshape(columns[0], -1).T).reshape(rows) if self.needs[0] else None
        right = (a.reshape(-1, rows[-1]).T @ g).reshape(columns) if self.needs[1] else None
        return left, right


class Relu(Primitive):
    """max(0, a); the local derivative is 1 where the output is positive, else 0, so the output tells it."""

    symbol = "max(0, ·)"

    def forward(self, a):
        """See `Primitive`."""
        output = np.maximum(a, 0)
        self.save(output)
        return output

    def backward(self, gradient):
        """See `Primitive`."""
        (output,) = self.saved
        return (gradient * (output > 0),)


class Exp(Primitive):
    """eᵃ, its own derivative: the output is saved, not the input."""

    symbol = "exp"

    def forward(self, a):
        """See `Primitive`."""
        output = np.exp(a)
        self.save(output)
        return output

    def backward(self, gradient):
        """See `Primitive`."""
        (output,) = self.saved
        return (gradient * output,)


class Log(Primitive):
    """ln a; local derivative 1/a."""

    symbol = "log"

    def forward(self, a):
        """See `Primitive`."""
        self.save(a)
        return np.log(a)

    def backward(self, gradient):
        """See `Primitive`."""
        (a,) = self.saved
        return (gradient / a,)


class Tanh(Primitive):
    """tanh a; local derivative 1 − tanh²a, from the output."""

    symbol = "tanh"

    def forward(self, a):
        """See `Primitive`."""
        output = np.tanh(a)
        self.save(output)
        return output

    def backward(self, gradient):
        """See `Primitive`."""
        (output,) = self.saved
        return (gradient * (1 - output**2),)


class Softplus(Primitive):
    """ln(1 + eᵃ), a smooth max(0, a); local derivative 1 / (1 + e⁻ᵃ), saved as the input, as torch does."""

    symbol = "softplus"

    def forward(self, a):
        """See `Primitive`."""
        self.save(a)
        return np.logaddexp(a, 0)

    def backward(self, gradient):
        """See `Primitive`."""
        (a,) = self.saved
        return (gradient * (0.5 + 0.5 * np.tanh(a / 2)),)


class Sum(Primitive):
    """The sum of all elements; each has the local derivative 1, and only the shape is remembered."""

    symbol = "sum"

    def forward(self, a):
        """See `Primitive`."""
        self.shape = a.shape
        return a.sum()

    def backward(self, gradient):
        """See `Primitive`."""
        return (np.broadcast_to(gradient, self.shape),)


class Mean(Primitive):
    """The mean of all elements; each has the local derivative 1/n."""

    symbol = "mean"

    def forward(self, a):
        """See `Primitive`."""
        self.shape, self.count = a.shape, a.size
        return a.mean()

    def backward(self, gradient):
        """See `Primitive`."""
        return (np.broadcast_to(gradient / self.count, self.shape),)


exp, log, tanh, relu, softplus = Exp.apply, Log.apply, Tanh.apply, Relu.apply, Softplus.apply


def _method(primitive: type[Primitive]):
    return lambda *inputs: primitive.apply(*inputs)


def _reflected(primitive: type[Primitive]):
    return lambda right, left: primitive.apply(left, right)


# What Variable's operators mean; NumPy must not take them over when it stands on the left.
Variable.__array_ufunc__ = None
Variable.__add__, Variable.__radd__ = _method(Add), _reflected(Add)
Variable.__sub__, Variable.__rsub__ = _method(Subtract), _reflected(Subtract)
Variable.__mul__, Variable.__rmul__ = _method(Multiply), _reflected(Multiply)
Variable.__truediv__, Variable.__rtruediv__ = _method(Divide), _reflected(Divide)
Variable.__pow__, Variable.__matmul__ = _method(Power), _method(MatMul)
Variable.sum, Variable.mean = _method(Sum), _method(Mean)
