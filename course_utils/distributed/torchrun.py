"""A rank as torchrun would have announced it, for libraries that look there."""

import torch
import torch.distributed as dist

from course_utils.settings import set_variable


def announce() -> None:
    """Set the variables from which Accelerate and Trainer learn that they are one rank of several: call it before them.

    Without them they take each rank for a process alone, although a process group stands, and say nothing about it.
    """
    rank, ranks = str(dist.get_rank()), str(dist.get_world_size())
    for name in ("RANK", "LOCAL_RANK"):
        set_variable(name, rank)
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        set_variable(name, ranks)
    set_variable("OMP_NUM_THREADS", str(torch.get_num_threads()))  # else Accelerate chooses a number of its own
