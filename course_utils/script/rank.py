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
_LOOKS = 0.5  # seconds between two looks for a lock
_TRIES = 20
PATIENCE = 300.0
"""Seconds that a collective may take before its rank gives up."""


@dataclass(frozen=True)
class Place:
    """Which rank this is, of how many; `agent` says that one watches over it.

    `part` of `parts` is its share of every batch: by rank, or by `member` for those that meet at a store and are ranks of
    nothing. `stale`: that agent keeps the addresses of ranks that have ended (`FRESH_ADDRESSES`).
    """

    rank: int = 0
    ranks: int = 1
    local: int = 0
    agent: bool = False
    stale: bool = False
    member: tuple[int, int] | None = None

    @property
    def part(self) -> int:
        """Which share of every batch is this process's."""
        return self.rank if self.member is None else self.member[0]

    @property
    def parts(self) -> int:
        """In how many shares a batch is cut."""
        return self.ranks if self.member is None else self.member[1]

    @property
    def device(self) -> torch.device:
        """Its own."""
        return torch.device("cuda", self.local) if settings().device.type == "cuda" else torch.device("cpu")


def place() -> Place:
    """As the environment says, or as a process group that stands."""
    said = variables("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_")
    local = int(said.get("LOCAL_RANK", torch.cuda.current_device() if torch.cuda.is_available() else 0))
    if dist.is_initialized():
        return Place(dist.get_rank(), dist.get_world_size(), local)
    if "RANK" not in said or "WORLD_SIZE" not in said:
        return Place()
    stale = said.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and said.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    return Place(int(said["RANK"]), int(said["WORLD_SIZE"]), local, "TORCHELASTIC_RUN_ID" in said, stale)


@contextmanager
def joined(here: Place) -> Iterator[None]:
    """Inside, the process group stands, unless this process is alone or it stood already."""
    if here.ranks == 1 or dist.is_initialized():
        yield
        return
    if here.device.type == "cuda":
        torch.cuda.set_device(here.device)
    dist.init_process_group(_BACKEND[here.device.type], timeout=timedelta(seconds=PATIENCE))
    try:
        yield
    finally:
        dist.destroy_process_group()


def mean_over_ranks(values: list[float], device: torch.device) -> list[float]:
    """The mean of each number over the ranks; one collective."""
    if not dist.is_initialized():
        return values
    sums = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(sums)
    return (sums / dist.get_world_size()).tolist()


def refuse_gpus_that_are_missing(here: Place) -> None:
    """Raises `CourseError` where there are more ranks on this machine than GPUs."""
    if here.device.type == "cuda" and here.local >= torch.cuda.device_count():
        raise CourseError(
            f"Rank {here.rank} would use GPU {here.local}, and this machine has {torch.cuda.device_count()}; start fewer ranks."
        )


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Inside, no other process works in this folder; one that is about to end is waited for. Raises `CourseError`."""
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
            time.sleep(_LOOKS)
        else:
            raise CourseError(f"Another run is at work in {folder}; wait until it has ended, or give another --out.")
        yield
