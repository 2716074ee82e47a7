"""This process as one of several: alone, or as torchrun and `accelerate launch` announce it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from course_utils.errors import CourseError
from course_utils.settings import settings, variables

_BACKEND = {"cpu": "gloo", "cuda": "cuda:nccl,cpu:gloo"}
_SECONDS_BETWEEN_TRIES = 0.5  # to get a lock
_TRIES = 20
_PATIENCE_SECONDS = 300.0  # seconds that a collective may take before its rank gives up


@dataclass(frozen=True)
class ThisRank:
    """This process as a rank, and whether an agent of torchrun watches over it.

    After a restart that agent may still offer the addresses of ranks that have ended, unless `FRESH_ADDRESSES` prevents it.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    has_agent: bool = False
    has_stale_addresses: bool = False

    @property
    def device(self) -> torch.device:
        """The GPU of this rank's local number, or the CPU."""
        return torch.device("cuda", self.local_rank) if settings().device.type == "cuda" else torch.device("cpu")


def find_rank() -> ThisRank:
    """This process as a rank of the process group that stands, or else as the environment announces it."""
    env = variables("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_")
    local = int(env.get("LOCAL_RANK", torch.cuda.current_device() if torch.cuda.is_available() else 0))
    if dist.is_initialized():
        return ThisRank(dist.get_rank(), dist.get_world_size(), local)
    if "RANK" not in env or "WORLD_SIZE" not in env:
        return ThisRank()
    stale = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and env.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    return ThisRank(int(env["RANK"]), int(env["WORLD_SIZE"]), local, "TORCHELASTIC_RUN_ID" in env, stale)


@contextmanager
def process_group(this_rank: ThisRank) -> Iterator[None]:
    """A context in which the process group stands; one that stood already stays, and a process alone has none."""
    if this_rank.world_size == 1 or dist.is_initialized():
        yield
        return
    if this_rank.device.type == "cuda":
        torch.cuda.set_device(this_rank.device)
    dist.init_process_group(_BACKEND[this_rank.device.type], timeout=timedelta(seconds=_PATIENCE_SECONDS))
    try:
        yield
    finally:
        dist.destroy_process_group()


def sum_over_ranks(value: float, device: torch.device) -> float:
    """The sum of a number over the ranks; one collective."""
    if not dist.is_initialized():
        return value
    total = torch.tensor(value, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return total.item()


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """A context in which no other process works in `folder`; waits for one that is about to end. Raises `CourseError`."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows has no such locks
        yield
        return
    with (folder / "lock").open("w") as lock:
        for _ in range(_TRIES):
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(_SECONDS_BETWEEN_TRIES)
        else:
            raise CourseError(f"Another run is using {folder}; wait until it ends, or give another --out.")
        yield
