"""What CUDA's caching allocator takes from the device for a step: its rounding, its segments, what it cannot give away again.

By the rules of `CUDACachingAllocator.cpp` in its default setting (no `expandable_segments`): blocks of 512 bytes; up to 1 MiB
they come from segments of 2 MiB, from 1 to 10 MiB from segments of 20 MiB, larger ones from segments of their own in whole
2 MiB; the smallest free block that is large enough is split where enough is left.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from course_utils.units import MiB, round_up

_GRAIN, _SMALL, _MIDDLE = 512, MiB, 10 * MiB
# Steps replayed: after the first the segments of the step before are there.
_STEPS = 3


class Block(NamedTuple):
    """A stretch of a segment; `small` blocks have segments of their own."""

    size: int
    segment: int
    start: int
    small: bool


class Cache:
    """The allocator's books: `reserved` bytes so far; `take` gives a block, `give` takes it back."""

    def __init__(self):
        self.reserved = 0
        self._free: dict[bool, list[Block]] = {True: [], False: []}  # sorted
        self._ends: dict[tuple[int, int], Block] = {}  # free blocks by (segment, end)
        self._starts: dict[tuple[int, int], Block] = {}
        self._segments = 0

    def take(self, size: int) -> Block:
        """A block of at least `size` bytes."""
        block_size = max(_GRAIN, round_up(size, _GRAIN))
        small = block_size <= _SMALL
        free = self._free[small]
        index = bisect_left(free, (block_size,))
        block = self._drop(free[index]) if index < len(free) else self._reserve_segment(block_size, small)
        rest = block.size - block_size
        if rest >= _GRAIN if small else rest > _SMALL:
            self._keep(Block(rest, block.segment, block.start + block_size, small))
            block = block._replace(size=block_size)
        return block

    def give(self, block: Block) -> None:
        """Take a block back, joined to its free neighbors."""
        size, segment, start, small = block
        if before := self._ends.get((segment, start)):
            self._drop(before)
            size, start = size + before.size, before.start
        if after := self._starts.get((segment, start + size)):
            self._drop(after)
            size += after.size
        self._keep(Block(size, segment, start, small))

    def _reserve_segment(self, block_size: int, small: bool) -> Block:
        size = 2 * MiB if small else 20 * MiB if block_size < _MIDDLE else round_up(block_size, 2 * MiB)
        self.reserved += size
        self._segments += 1
        return Block(size, self._segments, 0, small)

    def _keep(self, block: Block) -> None:
        insort(self._free[block.small], block)
        self._starts[block.segment, block.start] = self._ends[block.segment, block.start + block.size] = block

    def _drop(self, block: Block) -> Block:
        free = self._free[block.small]
        del free[bisect_left(free, block)]
        del self._starts[block.segment, block.start], self._ends[block.segment, block.start + block.size]
        return block


def reserved(events: Sequence[tuple[int, Hashable]], before_step: int) -> int:
    """Bytes reserved after some steps, whose `events` are changes in bytes and what is born or dies; the first `before_step` come
    once, before them.

    They do not say which of several equal blocks dies; here the youngest does.
    """
    cache = Cache()
    alive: dict[tuple[int, Hashable], list[Block]] = {}
    for step in range(_STEPS):
        for change, piece in events[before_step if step else 0 :]:
            blocks = alive.setdefault((abs(change), piece), [])
            if change > 0:
                blocks.append(cache.take(change))
            elif blocks:
                cache.give(blocks.pop())
    return cache.reserved
