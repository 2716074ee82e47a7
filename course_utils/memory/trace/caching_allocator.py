"""What CUDA's caching allocator takes from the device for a step: its rounding, its segments, what it cannot give away again.

By the rules of `CUDACachingAllocator.cpp` in its default setting (no `expandable_segments`): blocks of 512 bytes; up to 1 MiB
they come from segments of 2 MiB, from 1 to 10 MiB from segments of 20 MiB, larger ones from segments of their own in whole
2 MiB; the smallest free block that is large enough is split where enough is left.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable, Sequence

from course_utils.units import MiB

_GRAIN, _SMALL, _MIDDLE = 512, MiB, 10 * MiB
_STEPS = 3
"""Steps replayed: after the first the segments of the step before are there."""


class Cache:
    """The allocator's books: `reserved` bytes so far; `take` gives a block, `give` takes it back."""

    def __init__(self):
        self.reserved = 0
        self._free: dict[bool, list[tuple[int, int, int]]] = {True: [], False: []}  # (size, segment, start), sorted
        self._ends: dict[tuple[int, int], tuple[int, int, int]] = {}  # free blocks by (segment, end)
        self._starts: dict[tuple[int, int], tuple[int, int, int]] = {}
        self._segments = 0

    def take(self, size: int) -> tuple[int, int, int]:
        """A block of at least `size` bytes, as (size, segment, start)."""
        wanted = max(_GRAIN, -(-size // _GRAIN) * _GRAIN)
        small = wanted <= _SMALL
        free = self._free[small]
        place = bisect_left(free, (wanted,))
        length, segment, start = self._drop(free[place], small) if place < len(free) else self._segment(wanted, small)
        if length - wanted >= _GRAIN if small else length - wanted > _SMALL:
            self._keep((length - wanted, segment, start + wanted), small)
            length = wanted
        return length, segment, start

    def give(self, block: tuple[int, int, int], small: bool) -> None:
        """Back to the free ones, joined to its free neighbors."""
        size, segment, start = block
        if before := self._ends.get((segment, start)):
            self._drop(before, small)
            size, start = size + before[0], before[2]
        if after := self._starts.get((segment, start + size)):
            self._drop(after, small)
            size += after[0]
        self._keep((size, segment, start), small)

    def _segment(self, wanted: int, small: bool) -> tuple[int, int, int]:
        size = 2 * MiB if small else 20 * MiB if wanted < _MIDDLE else -(-wanted // (2 * MiB)) * 2 * MiB
        self.reserved += size
        self._segments += 1
        return size, self._segments, 0

    def _keep(self, block: tuple[int, int, int], small: bool) -> None:
        insort(self._free[small], block)
        size, segment, start = block
        self._starts[segment, start] = self._ends[segment, start + size] = block

    def _drop(self, block: tuple[int, int, int], small: bool) -> tuple[int, int, int]:
        size, segment, start = block
        del self._free[small][bisect_left(self._free[small], block)]
        del self._starts[segment, start], self._ends[segment, start + size]
        return block


def reserved(events: Sequence[tuple[int, Hashable]], before_step: int) -> int:
    """Bytes reserved after some steps, whose `events` are changes in bytes and what is born or dies; the first `before_step` come
    once, before them.

    They do not say which of several equal blocks dies; here the youngest does.
    """
    cache, alive = Cache(), {}
    for step in range(_STEPS):
        for change, piece in events[before_step if step else 0 :]:
            small = max(_GRAIN, -(-abs(change) // _GRAIN) * _GRAIN) <= _SMALL
            blocks = alive.setdefault((abs(change), piece), [])
            if change > 0:
                blocks.append(cache.take(change))
            elif blocks:
                cache.give(blocks.pop(), small)
    return cache.reserved
