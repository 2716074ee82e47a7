"""The storages that a meter sees, and the events of their lives: births, deaths and changes of size."""

import weakref
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch


@dataclass(slots=True)
class LivePiece:
    """One storage, as long as its kind and size may still change."""

    bytes: int
    kind: str
    module: str  # at work when it was allocated; empty in backward
    node: int | None  # the number of the node that was differentiated then, in backward
    operator: object
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    bytes_before: int | None = None  # if it was there before the log began


class _Addition(NamedTuple):
    """A sum perhaps in place: the storage at `address` is the `old` piece, if that dies after just so many `events`."""

    old: int
    address: int
    events: int


class StorageLog:
    """All pieces in the order of their births, and all events: the change in bytes, the index of the piece or -1, the phase."""

    def __init__(self):
        self.pieces: list[LivePiece] = []
        self.events: list[tuple[int, int, str]] = []
        self._phase = "forward"
        self._alive: dict[int, tuple[int, weakref.ref]] = {}  # by the address of the storage: the index of its piece
        self._addition: _Addition | None = None

    def begin_phase(self, phase: str) -> None:
        """Log the phase, if it is a new one."""
        if phase != self._phase or not self.events:
            self._phase = phase
            self.events.append((0, -1, phase))

    def piece_of(self, storage: torch.UntypedStorage) -> LivePiece | None:
        """The piece of a storage that is alive; None for one that was never seen."""
        entry = self._alive.get(storage._cdata)
        return None if entry is None else self.pieces[entry[0]]

    def add(self, piece: LivePiece, storage: torch.UntypedStorage) -> None:
        """Log the birth of a piece, and watch for the death of its storage."""
        index = len(self.pieces)
        address = storage._cdata
        self._alive[address] = index, weakref.ref(storage, partial(self._log_death, address))
        self.pieces.append(piece)
        if piece.bytes_before is None:
            self.events.append((piece.bytes, index, self._phase))

    def add_passing(self, piece: LivePiece) -> None:
        """Log memory that is allocated and freed inside one operator."""
        self.events += [(change, len(self.pieces), self._phase) for change in (piece.bytes, -piece.bytes)]
        self.pieces.append(piece)

    def resize(self, storage: torch.UntypedStorage) -> None:
        """Log the storage's new size."""
        index, _ = self._alive[storage._cdata]
        piece = self.pieces[index]
        self.events.append((storage.nbytes() - piece.bytes, index, self._phase))
        piece.bytes = storage.nbytes()

    def note_sum(self, total: torch.Tensor, gradient: torch.Tensor, only_by_engine: bool) -> None:
        """Unwatched, autograd adds to a `gradient` that nobody else refers to in place; watched, it makes a new `total`.

        `InputBuffer::accumulate` adds the gradients of several uses so, and the gradient of an index fills its zeros so. If
        the old memory is given back at once, the new one takes its place in the log.
        """
        storage = gradient.untyped_storage()
        old, _ = self._alive.get(storage._cdata, (-1, None))
        # Two uses are the gradient's and ours; with more, somebody else shows the same memory.
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
        if current is not reference:  # an address may already have a new tenant
            return
        del self._alive[address]
        addition = self._addition
        if addition is not None and (addition.old, addition.events) == (index, len(self.events)):
            self.events.pop()  # the new piece turns out to be the old one in other hands
            self._alive[addition.address] = index, self._alive[addition.address][1]
            self._addition = None
        else:
            self.events.append((-self.pieces[index].bytes, index, self._phase))
