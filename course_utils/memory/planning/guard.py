"""A run of the largest batch of a data set before training begins."""

from collections.abc import Callable, Iterable

import torch

from course_utils.errors import CourseError, first_line
from course_utils.hardware.operators import list_tensors


def guard(step: Callable[[object], object], batches: Iterable) -> object:
    """Run `step` on the batch with the most elements, so that a shortage of memory shows before training and not at step N.

    `step` should make a forward and a backward pass and drop the gradients. To include the optimizer's state, call this after a
    first update. Returns the batch. Raises `CourseError`, with the number of elements, if memory runs out.
    """
    largest = max(batches, key=_elements)
    try:
        step(largest)
    except torch.OutOfMemoryError as error:
        raise CourseError(
            f"The largest batch, of {_elements(largest):,} elements, does not fit ({first_line(error)}); "
            "course plan says what would."
        ) from error
    return largest


def _elements(batch: object) -> int:
    return sum(tensor.numel() for tensor in list_tensors(dict(batch) if hasattr(batch, "keys") else batch))
