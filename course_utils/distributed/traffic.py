"""What a rank sends and receives, message by message and collective by collective.

It is counted where an operator of torch.distributed is called, also by DDP, FSDP2 or Accelerate. A collective counts as a
ring sends it, which is the least that leaves every rank with the same load (Patarasuk & Yuan 2009); an all-to-all sends each part
straight to the rank that it is for. A library may send more:
gloo, which carries between processors, makes an all-reduce of every reduce-scatter, and a reduce-scatter and a gather of every
reduce. N is the number of ranks.
"""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import prod
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_utils.errors import CourseError

if TYPE_CHECKING:
    import pandas as pd

_uncounted: list[None] = []
Load = tuple[int, int, int]
"""Bytes out, bytes in, and messages."""


class UnknownCollectiveError(CourseError):
    """An operator of torch.distributed for which it is not known what it sends."""


@dataclass(frozen=True)
class Entry:
    """One collective, or one message, as this rank saw it.

    `sent` and `received` are bytes without headers, in `messages` sends. `started` is in seconds since counting began.
    A message has the rank that it is sent `to`.
    """

    collective: str
    sent: int
    received: int
    messages: int
    started: float
    to: int | None = None


class Traffic:
    """What one rank sent and received."""

    def __init__(self):
        self.entries: list[Entry] = []
        self._opened = time.perf_counter()

    def record(self, collective: str, sent: int, received: int, messages: int, to: int | None = None) -> None:
        """Write one entry."""
        self.entries.append(Entry(collective, sent, received, messages, time.perf_counter() - self._opened, to))

    @property
    def sent(self) -> int:
        """Bytes that this rank sent."""
        return sum(entry.sent for entry in self.entries)

    @property
    def received(self) -> int:
        """Bytes that this rank received."""
        return sum(entry.received for entry in self.entries)

    @property
    def messages(self) -> int:
        """Sends of this rank."""
        return sum(entry.messages for entry in self.entries)

    def frame(self) -> "pd.DataFrame":
        """A row per kind of collective: its calls, bytes sent and received, and messages."""
        import pandas as pd  # ranks need none, and have to start quickly

        rows = pd.DataFrame([asdict(entry) for entry in self.entries], columns=list(Entry.__dataclass_fields__))
        table = rows.groupby("collective", sort=False)[["sent", "received", "messages"]].sum()
        table.insert(0, "calls", rows.groupby("collective", sort=False).size())
        return table


@contextmanager
def counted() -> Iterator[Traffic]:
    """Count all that this rank sends meanwhile, also in the backward pass; counts may be nested."""
    traffic = Traffic()
    with _Watcher(traffic):
        yield traffic


@contextmanager
def uncounted() -> Iterator[None]:
    """What torch.distributed does meanwhile is not counted."""
    _uncounted.append(None)
    try:
        yield
    finally:
        _uncounted.pop()


class _Watcher(TorchDispatchMode):
    """Records the operators of torch.distributed."""

    def __init__(self, traffic: Traffic):
        super().__init__()
        self.traffic = traffic

    def __torch_dispatch__(
        self, func: OpOverload, types: Collection[type], args: tuple = (), kwargs: dict | None = None
    ) -> object:
        if func.namespace in ("c10d", "_c10d_functional") and not _uncounted:
            self._record(func.overloadpacket.__name__.strip("_"), args)
        return func(*args, **(kwargs or {}))

    def _record(self, name: str, args: tuple) -> None:
        if name in _SILENT:
            return
        if name not in _LOADS:
            raise UnknownCollectiveError(
                f"What torch.distributed's {name} sends cannot be counted; leave it out of what is counted."
            )
        collective, load = _LOADS[name]
        self.traffic.record(collective, *load(args, _group(args).size()), args[2] if name == "send" else None)


def _group(args: tuple) -> dist.ProcessGroup:
    """The group that an operator was called with: as an object, or by its name."""
    for argument in args:
        if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
            return dist.ProcessGroup.unbox(argument)
    names = [argument for argument in args if isinstance(argument, str)]
    return dist.distributed_c10d._resolve_process_group(names[-1]) if names else dist.group.WORLD


def _bytes(tree: object) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _all_reduce(args: tuple, ranks: int) -> Load:
    """2 (N − 1) pieces of an N-th each, out and in."""
    load = 2 * (ranks - 1) * _bytes(args[0]) // ranks
    return load, load, 2 * (ranks - 1)


def _count_piece(position: int) -> Callable:
    """N − 1 pieces, out and in; the argument at `position` is one of them."""

    def load(args: tuple, ranks: int) -> Load:
        moved = (ranks - 1) * _bytes(args[position])
        return moved, moved, ranks - 1

    return load


def _count_whole(args: tuple, ranks: int) -> Load:
    """N − 1 of the N pieces of the first argument, out and in."""
    moved = (ranks - 1) * _bytes(args[0]) // ranks
    return moved, moved, ranks - 1


def _all_to_all(given: int, coming: int, leaving: int) -> Callable:
    """From each rank to each other, directly, the rows that are for it. The arguments at `coming` and `leaving` say how many
    rows of the tensor at `given` these are, by rank; where they are empty all ranks get as many."""

    def load(args: tuple, ranks: int) -> Load:
        tensor, rank = args[given], _group(args).rank()
        row = tensor.element_size() * prod(tensor.shape[1:])
        out, into = (list(args[place]) or [len(tensor) // ranks] * ranks for place in (leaving, coming))
        messages = sum(rows > 0 for rows in out) - (out[rank] > 0)
        return row * (sum(out) - out[rank]), row * (sum(into) - into[rank]), messages

    return load


def _broadcast(args: tuple, ranks: int) -> Load:
    """Handed on from rank to rank: all but the root receive it, all but the one before the root send it."""
    size, root, rank = _bytes(args[0]), args[2], dist.get_rank()
    return size * ((rank + 1) % ranks != root), size * (rank != root), int((rank + 1) % ranks != root)


def _reduce(args: tuple, ranks: int) -> Load:
    """Handed on around to the root: all but the root send it, all but the one behind the root receive it."""
    size, root, rank = _bytes(args[0]), args[3], dist.get_rank()
    return size * (rank != root), size * ((rank - 1) % ranks != root), int(rank != root)


_SILENT = {"barrier", "monitored_barrier", "wait_tensor", "wrap_tensor_autograd"}
_LOADS = {
    "allreduce": ("all-reduce", _all_reduce),
    "all_reduce": ("all-reduce", _all_reduce),
    "allgather": ("all-gather", _count_piece(1)),
    "allgather_base": ("all-gather", _count_piece(1)),
    "all_gather_into_tensor": ("all-gather", _count_piece(0)),
    "reduce_scatter": ("reduce-scatter", _count_piece(0)),
    "reduce_scatter_base": ("reduce-scatter", _count_piece(0)),
    "reduce_scatter_tensor": ("reduce-scatter", _count_whole),
    "alltoall_base": ("all-to-all", _all_to_all(1, 3, 4)),
    "all_to_all_single": ("all-to-all", _all_to_all(0, 1, 2)),
    "broadcast": ("broadcast", _broadcast),
    "reduce": ("reduce", _reduce),
    "send": ("send", lambda args, ranks: (_bytes(args[0]), 0, 1)),
    "recv": ("receive", lambda args, ranks: (0, _bytes(args[0]), 0)),
    "recv_any_source": ("receive", lambda args, ranks: (0, _bytes(args[0]), 0)),
}
