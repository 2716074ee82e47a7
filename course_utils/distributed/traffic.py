"""Counting what a rank sends and receives, message by message and collective by collective.

It is counted where an operator of torch.distributed is called, also by DDP, FSDP2 or Accelerate. A collective counts as a ring
sends it, which is the least that leaves every rank with the same load (Patarasuk & Yuan 2009); an all-to-all sends each part
straight to the rank that it is for. A library may send more: gloo, which carries between processors, makes an all-reduce of
every reduce-scatter, and a reduce-scatter and a gather of every reduce. N is the number of ranks.
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

_pauses: list[None] = []
Counts = tuple[int, int, int]
"""Bytes out, bytes in, and messages."""
Counter = Callable[[tuple, int], Counts]
"""What counts an operator, from its arguments and the number of ranks."""


class UnknownCollectiveError(CourseError):
    """An operator of torch.distributed for which it is not known what it sends."""


@dataclass(frozen=True)
class Transfer:
    """One collective, or one message, as this rank saw it.

    `sent` and `received` are bytes without headers, in `messages` sends. `start` is in seconds since counting began.
    A message has the rank that it is sent `to`.
    """

    collective: str
    sent: int
    received: int
    messages: int
    start: float
    to: int | None = None


class Traffic:
    """The record of what one rank sent and received."""

    def __init__(self):
        self.entries: list[Transfer] = []
        self._began = time.perf_counter()

    def record(self, collective: str, sent: int, received: int, messages: int, to: int | None = None) -> None:
        self.entries.append(Transfer(collective, sent, received, messages, time.perf_counter() - self._began, to))

    @property
    def sent(self) -> int:
        return sum(entry.sent for entry in self.entries)

    @property
    def received(self) -> int:
        return sum(entry.received for entry in self.entries)

    @property
    def messages(self) -> int:
        return sum(entry.messages for entry in self.entries)

    def frame(self) -> "pd.DataFrame":
        """A row per kind of collective: its calls, bytes sent and received, and messages."""
        import pandas as pd  # ranks need none, and have to start quickly

        rows = pd.DataFrame([asdict(entry) for entry in self.entries], columns=list(Transfer.__dataclass_fields__))
        table = rows.groupby("collective", sort=False)[["sent", "received", "messages"]].sum()
        table.insert(0, "calls", rows.groupby("collective", sort=False).size())
        return table


@contextmanager
def counted() -> Iterator[Traffic]:
    """A context that counts all that this rank sends, also in the backward pass; counts may be nested."""
    traffic = Traffic()
    with _Watcher(traffic):
        yield traffic


@contextmanager
def uncounted() -> Iterator[None]:
    """A context in which nothing that torch.distributed does is counted."""
    _pauses.append(None)
    try:
        yield
    finally:
        _pauses.pop()


class _Watcher(TorchDispatchMode):
    """Records the operators of torch.distributed."""

    def __init__(self, traffic: Traffic):
        super().__init__()
        self.traffic = traffic

    def __torch_dispatch__(
        self, func: OpOverload, types: Collection[type], args: tuple = (), kwargs: dict | None = None
    ) -> object:
        if func.namespace in ("c10d", "_c10d_functional") and not _pauses:
            self._record(func.overloadpacket.__name__.strip("_"), args)
        return func(*args, **(kwargs or {}))

    def _record(self, name: str, args: tuple) -> None:
        if name in _SILENT_OPERATORS:
            return
        if name not in _COUNTERS:
            raise UnknownCollectiveError(
                f"What torch.distributed's {name} sends cannot be counted; leave it out of what is counted."
            )
        collective, count = _COUNTERS[name]
        self.traffic.record(collective, *count(args, _group_of(args).size()), args[2] if name == "send" else None)


def _group_of(args: tuple) -> dist.ProcessGroup:
    """The group that an operator was called with: as an object, or by its name."""
    for argument in args:
        if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
            return dist.ProcessGroup.unbox(argument)
    names = [argument for argument in args if isinstance(argument, str)]
    return dist.distributed_c10d._resolve_process_group(names[-1]) if names else dist.group.WORLD


def _count_bytes(tree: object) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _count_piece(position: int) -> Counter:
    """N − 1 pieces, out and in; the argument at `position` is one of them."""

    def count(args: tuple, ranks: int) -> Counts:
        size = (ranks - 1) * _count_bytes(args[position])
        return size, size, ranks - 1

    return count


def _count_whole(passes: int) -> Counter:
    """`passes` times N − 1 of the N pieces of the first argument, out and in."""

    def count(args: tuple, ranks: int) -> Counts:
        size = passes * (ranks - 1) * _count_bytes(args[0]) // ranks
        return size, size, passes * (ranks - 1)

    return count


def _count_all_to_all(tensor: int, coming: int, leaving: int) -> Counter:
    """From each rank to each other, directly, the rows that are for it; the parameters are indices of the operator's arguments.

    The arguments at `coming` and `leaving` say how many rows of the one at `tensor` these are, by rank; where they are empty
    all ranks get as many.
    """

    def count(args: tuple, ranks: int) -> Counts:
        rows = args[tensor]
        rank = _group_of(args).rank()
        row_bytes = rows.element_size() * prod(rows.shape[1:])
        sent, received = (list(args[index]) or [len(rows) // ranks] * ranks for index in (leaving, coming))
        messages = sum(count > 0 for count in sent) - (sent[rank] > 0)
        return row_bytes * (sum(sent) - sent[rank]), row_bytes * (sum(received) - received[rank]), messages

    return count


def _count_broadcast(args: tuple, ranks: int) -> Counts:
    """Handed on from rank to rank: all but the root receive it, all but the one before the root send it."""
    size = _count_bytes(args[0])
    root, rank = args[2], dist.get_rank()
    return size * ((rank + 1) % ranks != root), size * (rank != root), int((rank + 1) % ranks != root)


def _count_reduce(args: tuple, ranks: int) -> Counts:
    """Handed on around to the root: all but the root send it, all but the one behind the root receive it."""
    size = _count_bytes(args[0])
    root, rank = args[3], dist.get_rank()
    return size * (rank != root), size * ((rank - 1) % ranks != root), int(rank != root)


_SILENT_OPERATORS = {"barrier", "monitored_barrier", "wait_tensor", "wrap_tensor_autograd"}
_COUNTERS = {
    "allreduce": ("all-reduce", _count_whole(passes=2)),
    "all_reduce": ("all-reduce", _count_whole(passes=2)),
    "allgather": ("all-gather", _count_piece(1)),
    "allgather_base": ("all-gather", _count_piece(1)),
    "all_gather_into_tensor": ("all-gather", _count_piece(0)),
    "reduce_scatter": ("reduce-scatter", _count_piece(0)),
    "reduce_scatter_base": ("reduce-scatter", _count_piece(0)),
    "reduce_scatter_tensor": ("reduce-scatter", _count_whole(passes=1)),
    "alltoall_base": ("all-to-all", _count_all_to_all(tensor=1, coming=3, leaving=4)),
    "all_to_all_single": ("all-to-all", _count_all_to_all(tensor=0, coming=1, leaving=2)),
    "broadcast": ("broadcast", _count_broadcast),
    "reduce": ("reduce", _count_reduce),
    "send": ("send", lambda args, ranks: (_count_bytes(args[0]), 0, 1)),
    "recv": ("receive", lambda args, ranks: (0, _count_bytes(args[0]), 0)),
    "recv_any_source": ("receive", lambda args, ranks: (0, _count_bytes(args[0]), 0)),
}
