"""What all ranks must bring alike is compared before anything is sent of it.

Gloo does not always notice: a broadcast to fewer elements may pass as a right one, and more bytes than expected abort the
process that gets them.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist

from course_utils.distributed.traffic import unbooked
from course_utils.errors import CourseError


def first_other(description) -> tuple[int, object, object] | None:
    """The first rank whose `description` (anything that pickles) is not that of rank 0, both descriptions; None where all agree.

    The few bytes of it are not booked.
    """
    described: list = [None] * dist.get_world_size()
    with unbooked():
        dist.all_gather_object(described, description)
    return next(((rank, other, described[0]) for rank, other in enumerate(described) if other != described[0]), None)


def require_alike(named_tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raises `CourseError` where a rank brings other parameters or buffers than rank 0."""
    if found := first_other([_described(name, tensor) for name, tensor in named_tensors]):
        rank, theirs, first = found
        other = next((each for each in theirs if each not in first), "nothing more")
        own = next((each for each in first if each not in theirs), "nothing more")
        raise CourseError(
            f"Rank {rank} brings other tensors than rank 0: it has {other} where rank 0 has {own}; build the same on all ranks."
        )


def _described(name: str, tensor: torch.Tensor) -> str:
    trained = "trained" if tensor.requires_grad else "not trained"
    return f"{name} ({list(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}, {trained})"
