"""The two graphs of the chapter."""

from course_utils.autodiff.engine import Variable
from course_utils.autodiff.primitives import relu


def quadratic(a, b, c, x, y) -> Variable:
    """f = ax² + bxy + cy², of five numbers or variables."""
    a, b, c, x, y = (_variable(value, name) for value, name in zip((a, b, c, x, y), "abcxy", strict=True))
    return (a * x**2 + b * x * y + c * y**2).named("f")


def cost(y, w, x, b) -> Variable:
    """C = y − max(0, w·x + b), of numbers, or of vectors w and x."""
    y, w, x, b = (_variable(value, name) for value, name in zip((y, w, x, b), "ywxb", strict=True))
    product = w @ x if w.value.ndim else w * x
    return (y - relu(product + b)).named("C")


def _variable(value, name: str) -> Variable:
    variable = value if isinstance(value, Variable) else Variable(value)
    return variable if variable.name else variable.named(name)
