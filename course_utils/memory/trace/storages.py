"""The storages that a meter sees, and their events: allocations, frees and changes of size."""

import weakref
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from course_utils.memory.trace.log import Event


@dataclass(slots=True)
class LivePiece:
    """One storage, whose kind and size may still change."""

    bytes: int
    kind: str
    module: str  # the one that ran when it was allocated; empty in backward
    node: int | None  # in backward, the number of the node that was differentiated then
    operator: object
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    bytes_before: int | None = None  # its size when the log began; None if it was allocated later


class _Addition(NamedTuple):
    """A sum that may be in place: the storage at `address` is the `old` piece if that is freed at just so many `events`."""

    old: int
    address: int
    events: int


class StorageLog:
    """All pieces in the order of allocation, and all events."""

    def __init__(self):
        self.pieces: list[LivePiece] = []
        self.events: list[Event] = []
        self._phase = "forward"
        # By the storage's address, the index of its piece and a reference that tells when it is freed.
        self._alive: dict[int, tuple[int, weakref.ref]] = {}
        self._addition: _Addition | None = None

    def begin_phase(self, phase: str) -> None:
        """Log the phase, if it is a new one."""
        if phase != self._phase or not self.events:
            self._phase = phase
            self.events.append(Event(0, -1, phase))

    def piece_of(self, storage: torch.UntypedStorage) -> LivePiece | None:
        """The piece of a storage that is in use; None for one that is not in the log."""
        entry = self._alive.get(storage._cdata)
        return None if entry is None else self.pieces[entry[0]]

    def add(self, piece: LivePiece, storage: torch.UntypedStorage) -> None:
        """Log the allocation of a piece, and watch for the end of its storage."""
        index = len(self.pieces)
        address = storage._cdata
        self._alive[address] = index, weakref.ref(storage, partial(self._log_death, address))
        self.pieces.append(piece)
        if piece.bytes_before is None:
            self.events.append(Event(piece.bytes, index, self._phase))

    def add_passing(self, piece: LivePiece) -> None:
        """Log memory that is allocated and freed inside one operator."""
        self.events += [Event(change, len(self.pieces), self._phase) for change in (piece.bytes, -piece.bytes)]
        self.pieces.append(piece)

    def resize(self, storage: torch.UntypedStorage) -> None:
        """Log the storage's new size."""
        index, _ = self._alive[storage._cdata]
        piece = self.pieces[index]
        self.events.append(Event(storage.nbytes() - piece.bytes, index, self._phase))
        piece.bytes = storage.nbytes()

    def note_sum(self, total: torch.Tensor, gradient: torch.Tensor, only_by_engine: bool) -> None:
        """Note a sum that autograd computes in place in a step without a meter, so that the log can be that step's.

        Autograd adds into a `gradient` to which nothing else refers. Under the meter, whose reference counts, it allocates a new
        `total`. So `InputBuffer::accumulate` adds the gradients of several uses, and the gradient of an index fills its zeros.
        If the old memory is freed at once, the new one takes its place in the log.
        """
        storage = gradient.untyped_storage()
        old, _ = self._alive.get(storage._cdata, (-1, None))
        # Two uses are the gradient's and this function's; with more, another tensor has the same memory.
        if old < 0 or torch._C._storage_Use_Count(storage._cdata) > 2:
            return
        address = total.untyped_storage()._cdata
        before, after = self.pieces[old], self.pieces[self._alive[address][0]]
        by_engine = (before.module, before.node) != (after.module, after.node)
        as_large = before.bytes == after.bytes == gradient.nbytes
        if as_large and (by_engine or not only_by_engine):
            self._addition = _Addition(old, address, len(self.events))

    def _log_death(self, address: int, reference: weakref.ref) -> None:
        index, current = self._alive.get(address, (-1, None))
        if current is not reference:  # a new storage may already have the address
            return
        del self._alive[address]
        addition = self._addition
        if addition is not None and (addition.old, addition.events) == (index, len(self.events)):
            self.events.pop()  # the sum was in place: the new piece is the old one
            self._alive[addition.address] = index, self._alive[addition.address][1]
            self._addition = None
        else:
            self.events.append(Event(-self.pieces[index].bytes, index, self._phase))
