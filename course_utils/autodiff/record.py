"""Two tools around the engine: what the forward pass saved, with bytes, and gradients without any derivative."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from course_utils.autodiff.engine import Variable, backward_order


def saved(output: Variable, exclude: Sequence[Variable] = ()) -> list[dict]:
    """All arrays that the functions behind `output` have saved, in the order of the forward pass.

    Memory that an earlier entry has is not counted again, nor is that of the variables in `exclude`, such as parameters.
    """
    seen = {id(owner(variable.value)) for variable in exclude}
    entries = []
    for variable in reversed(backward_order(output)):
        ctx = variable.grad_fn
        for array, name, *_ in (ctx and ctx.saved) or ():
            if isinstance(array, np.ndarray):
                entry = {"function": ctx.function.symbol, "what": name, "shape": array.shape, "dtype": str(array.dtype)}
                entries.append({**entry, "bytes": array.nbytes, "counted": id(owner(array)) not in seen})
                seen.add(id(owner(array)))
    return entries


def saved_bytes(output: Variable, exclude: Sequence[Variable] = ()) -> int:
    """Bytes that the forward pass to `output` keeps for backward, each piece of memory once; 0 after a backward."""
    return sum(entry["bytes"] for entry in saved(output, exclude) if entry["counted"])


def owner(array: np.ndarray) -> np.ndarray:
    """The array that owns the memory that `array` shows."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def numerical_gradients(function: Callable[..., Variable], *values: ArrayLike, step: float = 1e-6) -> list[np.ndarray]:
    """Gradients of a scalar `function` of variables at `values`, by central differences (f(v + h) − f(v − h)) / 2h."""
    arrays = [np.array(value, dtype=np.float64) for value in values]
    gradients = [np.zeros_like(array) for array in arrays]

    def shifted_value(array: np.ndarray, index: tuple[int, ...], distance: float) -> float:
        before = array[index]
        array[index] = before + distance
        result = function(*(Variable(array.copy()) for array in arrays)).value
        array[index] = before
        return float(result)

    for array, gradient in zip(arrays, gradients, strict=True):
        for index in np.ndindex(array.shape):
            gradient[index] = (shifted_value(array, index, step) - shifted_value(array, index, -step)) / (2 * step)
    return gradients
