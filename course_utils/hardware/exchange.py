"""How fast two processes on this machine exchange bytes: measured in two real ones, over gloo and the loopback interface."""

import statistics
import time

from course_utils.distributed import launch
from course_utils.errors import CourseError
from course_utils.units import MiB

_BYTES, _TIMES = 8 * MiB, 7


def process_bandwidth(timeout: float = 60.0) -> float:
    """Bytes a second from one process to another, one way.

    Raises `CourseError` when one of them fails, and when they are not done within `timeout` seconds; none is left behind.
    """
    try:
        return _BYTES / launch(_exchange, 2, seconds=timeout)[0]
    except CourseError as error:
        raise CourseError(f"{error} Or leave the exchange out, with calibrate(exchange=False).") from error


def _exchange() -> float:
    import torch
    import torch.distributed as dist

    message, answer = torch.ones(_BYTES, dtype=torch.uint8), torch.ones(1)
    first, seconds = dist.get_rank() == 0, []
    for _ in range(_TIMES + 1):
        start = time.perf_counter()
        (dist.send if first else dist.recv)(message, int(first))
        # Sending alone may return while the bytes still wait in a buffer; the answer says that they have come.
        (dist.recv if first else dist.send)(answer, int(first))
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])
