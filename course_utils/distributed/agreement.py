"""What all ranks must bring alike is compared before anything is sent of it.

Gloo does not always notice: a broadcast to fewer elements may pass as a right one, and more bytes than expected abort the
process that gets them.
"""

import torch.distributed as dist

from course_utils.distributed.traffic import unbooked


def first_other(description) -> tuple[int, object, object] | None:
    """The first rank whose `description` (anything that pickles) is not that of rank 0, both descriptions; None where all agree.

    The few bytes of it are not booked.
    """
    described: list = [None] * dist.get_world_size()
    with unbooked():
        dist.all_gather_object(described, description)
    return next(((rank, other, described[0]) for rank, other in enumerate(described) if other != described[0]), None)
