"""The collectives that the wrappers use: torch.distributed's own, or the ring by hand."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from course_utils.distributed import ring
from course_utils.errors import CourseError

WAYS = ("torch", "ring")
# The new names of torch 2.13.
_all_gather = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor
_reduce_scatter = dist.reduce_scatter_single if hasattr(dist, "reduce_scatter_single") else dist.reduce_scatter_tensor


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


def begin_broadcast(tensor: torch.Tensor, owner: int, by: str = "torch") -> Callable[[], object]:
    """Begin to give every rank what rank `owner` has in `tensor`, in place; call the result to wait for the end."""
    if by == "ring":
        ring.broadcast(tensor, owner)
        return lambda: None
    return dist.broadcast(tensor, owner, async_op=True).wait


def begin_reduce(tensor: torch.Tensor, owner: int, by: str = "torch") -> Callable[[], object]:
    """Begin to sum `tensor` over all ranks for rank `owner`; the others have something else in it afterwards."""
    if by == "ring":
        ring.reduce(tensor, owner)
        return lambda: None
    return dist.reduce(tensor, owner, async_op=True).wait


def begin_all_gather(whole: torch.Tensor, piece: torch.Tensor, by: str = "torch") -> Callable[[], object]:
    """Begin to fill flat `whole` with the pieces of all ranks, which are all as long; call the result to wait for the end."""
    if by == "ring":
        whole.copy_(ring.all_gather(piece, whole.numel()))
        return lambda: None
    return _all_gather(whole, piece, async_op=True).wait


def begin_reduce_scatter(piece: torch.Tensor, whole: torch.Tensor, by: str = "torch") -> Callable[[], object]:
    """Begin to fill `piece` with this rank's N-th of the sum of flat `whole` over the N ranks; call the result to wait."""
    if by == "ring":
        piece.copy_(ring.reduce_scatter(whole))
        return lambda: None
    return _reduce_scatter(piece, whole, async_op=True).wait
