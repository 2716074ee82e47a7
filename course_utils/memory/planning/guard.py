"""Before the first step: the worst batch of a data set, run once."""

from collections.abc import Callable, Iterable

import torch

from course_utils.errors import CourseError, first_line
from course_utils.hardware.operators import list_tensors


def guard(step: Callable[[object], object], batches: Iterable) -> object:
    """Run `step` on the largest of `batches` at the beginning of training, so that a shortage shows then and not at step N.

    The largest has the most elements. `step` should make a forward and a backward pass and drop the gradients; after a first
    update the optimizer's state is there too. Returns the batch. Raises `CourseError`, with the sizes, where memory runs out.
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
