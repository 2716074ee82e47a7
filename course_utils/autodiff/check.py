"""Gradients without any derivative: by differences."""

from collections.abc import Callable

import numpy as np

from course_utils.autodiff.engine import Variable


def numerical_gradients(function: Callable[..., Variable], *values, step: float = 1e-6) -> list[np.ndarray]:
    """Gradients of a scalar `function` of variables at `values`, by central differences (f(v + h) − f(v − h)) / 2h.

    Two forward passes for each number, and an error of the order of h²: to check with, not to train with.
    """
    arrays = [np.array(value, dtype=np.float64) for value in values]
    gradients = [np.zeros_like(array) for array in arrays]
    for array, gradient in zip(arrays, gradients, strict=True):
        for place in np.ndindex(array.shape):
            gradient[place] = (
                _at(function, arrays, array, place, step) - _at(function, arrays, array, place, -step)
            ) / (2 * step)
    return gradients


def _at(function, arrays: list[np.ndarray], moved: np.ndarray, place: tuple, distance: float) -> float:
    """`function` where one number is moved; the number is put back."""
    before = moved[place]
    moved[place] = before + distance
    result = function(*(Variable(array.copy(), requires_grad=False) for array in arrays))
    moved[place] = before
    return float(result.value)
