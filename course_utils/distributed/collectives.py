"""The collectives that the wrappers use: torch.distributed's own, or the ring by hand."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from course_utils.distributed import ring
from course_utils.errors import CourseError

WAYS = ("torch", "ring")


def require_way(by: str) -> str:
    """`by` itself; raises `CourseError` where it is none of `WAYS`."""
    if by not in WAYS:
        raise CourseError(f"Collectives are made by {' or by '.join(map(repr, WAYS))}, not by {by!r}.")
    return by


def begin_all_reduce(tensor: torch.Tensor, by: str = "torch") -> Callable[[], object]:
    """Begin to sum `tensor` over all ranks, in place; call the result to wait for the end.

    torch's own works on in the background. The ring is done when it returns, so nothing overlaps with it.
    """
    if by == "ring":
        ring.all_reduce(tensor)
        return lambda: None
    return dist.all_reduce(tensor, async_op=True).wait
