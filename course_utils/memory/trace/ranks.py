"""A process group whose other ranks are pretended: collectives return at once, with tensors of the right shape."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
import torch.distributed as dist

from course_utils.errors import CourseError
from course_utils.memory.trace.as_cuda import GPU


@contextmanager
def pretend_ranks(ranks: int, like: str = "cpu", rank: int = 0) -> Iterator[None]:
    """Inside, this process is one rank of `ranks`; with one nothing changes. Raises `CourseError` inside a real group."""
    if ranks == 1:
        yield
        return
    if dist.is_initialized():
        raise CourseError("This process is a rank already; pretend others in a process that is none.")
    from torch.distributed.fsdp._fully_shard import _fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    # FSDP2 asks the mesh for a device, which knows no second CPU.
    device = GPU if like == "cuda" else torch.device("cpu")
    here = patch.object(_fully_shard, "_get_device_from_mesh", lambda mesh: device)
    gathers = patch.object(dist, "all_gather_object", _gather_same)
    try:
        with here, gathers:
            yield
    finally:
        dist.destroy_process_group()


def _gather_same(gathered: list, one, group=None) -> None:
    gathered[:] = [one] * len(gathered)
