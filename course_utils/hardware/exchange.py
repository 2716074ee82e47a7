"""How fast two processes on this machine exchange bytes: measured in two real ones, over gloo and the loopback interface.

Run as a module, this file is one of the two: `python -m course_utils.hardware.exchange RANK FOLDER`.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from course_utils.errors import CourseError
from course_utils.settings import environment_for_child
from course_utils.units import MiB

_BYTES, _TIMES = 8 * MiB, 7


def process_bandwidth(timeout: float = 60.0) -> float:
    """Bytes a second from one process to another, one way.

    The processes start afresh, since one forked from a process that has computed would hang. Raises `CourseError` when one
    of them fails, with its last words, and when they are not done within `timeout` seconds; none is left behind.
    """
    with tempfile.TemporaryDirectory() as folder:
        module = [sys.executable, "-m", "course_utils.hardware.exchange"]
        answer = run_together([[*module, str(rank), folder] for rank in range(2)], timeout)
    return _BYTES / json.loads(answer[0].splitlines()[-1])


def run_together(commands: Sequence[Sequence[str]], timeout: float) -> list[str]:
    """What each of the commands printed, run at the same time; errors as in `process_bandwidth`."""
    processes = [_start(command) for command in commands]
    try:
        _await(processes, time.monotonic() + timeout, timeout)
        return [process.communicate()[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _start(command: Sequence[str]) -> subprocess.Popen:
    # Gloo would look up the host's name to find its interface, and many a laptop's name leads nowhere.
    loopback = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)
    environment = environment_for_child(**({"GLOO_SOCKET_IFNAME": loopback} if loopback else {}))
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def _await(processes: list[subprocess.Popen], deadline: float, timeout: float) -> None:
    while any(process.poll() is None for process in processes):
        _refuse_dead(processes)
        if time.monotonic() > deadline:
            raise CourseError(
                f"The processes were not done exchanging bytes after {timeout:g} s; close other programs, "
                "give process_bandwidth a longer timeout, or leave the exchange out with calibrate(exchange=False)."
            )
        time.sleep(0.01)
    _refuse_dead(processes)


def _refuse_dead(processes: list[subprocess.Popen]) -> None:
    for process in processes:
        if process.poll():
            last_words = (process.communicate()[1].strip().splitlines() or ["it said nothing"])[-1]
            raise CourseError(
                f"A process that was to exchange bytes died (exit code {process.returncode}: {last_words}); "
                "put that right, or leave the exchange out with calibrate(exchange=False)."
            )


def _work(rank: int, folder: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    # A file to meet at, since a free port found beforehand may be taken a moment later.
    meeting = (Path(folder) / "meeting").as_uri()
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    message, answer = torch.ones(_BYTES, dtype=torch.uint8), torch.ones(1)
    seconds = [_one_exchange(rank, message, answer) for _ in range(_TIMES + 1)]
    print(json.dumps(statistics.median(seconds[1:])))
    dist.destroy_process_group()


def _one_exchange(rank: int, message, answer) -> float:
    import torch.distributed as dist

    start = time.perf_counter()
    (dist.send if rank == 0 else dist.recv)(message, 1 - rank)
    # Sending alone may return while the bytes still wait in a buffer; the answer says that they have come.
    (dist.recv if rank == 0 else dist.send)(answer, 1 - rank)
    return time.perf_counter() - start


if __name__ == "__main__":
    _work(int(sys.argv[1]), sys.argv[2])
