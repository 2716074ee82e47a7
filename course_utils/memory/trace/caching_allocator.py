"""What CUDA's caching allocator reserves on the device for a step: rounded blocks, whole segments, and gaps that nothing fits.

It follows the rules of `CUDACachingAllocator.cpp` in its default setting (no `expandable_segments`). Sizes of blocks are
multiples of 512 bytes. Blocks up to 1 MiB come from segments of 2 MiB, those from 1 to 10 MiB from segments of 20 MiB, and each
larger one from a segment of its own, a multiple of 2 MiB. The smallest free block that is large enough is taken, and split if
enough of it is left.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from course_utils.units import MiB, round_up

_GRAIN, _MAX_SMALL, _MAX_MIDDLE = 512, MiB, 10 * MiB
# Steps replayed. From the second on, the segments of the step before can be used again.
_REPLAYED_STEPS = 3


class Block(NamedTuple):
    """A stretch of a segment, with sizes in bytes. Blocks up to 1 MiB are `small` and have segments of their own."""

    size: int
    segment: int
    start: int
    small: bool


class Cache:
    """The allocator's state: `reserved` bytes so far, and the free blocks."""

    def __init__(self):
        self.reserved = 0
        self._free: dict[bool, list[Block]] = {True: [], False: []}  # sorted
        self._ends: dict[tuple[int, int], Block] = {}  # free blocks by (segment, end)
        self._starts: dict[tuple[int, int], Block] = {}
        self._segments = 0

    def take(self, size: int) -> Block:
        """Take a block of at least `size` bytes, from a new segment if no free block is large enough."""
        block_size = max(_GRAIN, round_up(size, _GRAIN))
        small = block_size <= _MAX_SMALL
        free = self._free[small]
        index = bisect_left(free, (block_size,))
        block = self._drop(free[index]) if index < len(free) else self._reserve_segment(block_size, small)
        rest = block.size - block_size
        is_split = rest >= _GRAIN if small else rest > _MAX_SMALL
        if is_split:
            self._keep(Block(rest, block.segment, block.start + block_size, small))
            block = block._replace(size=block_size)
        return block

    def give(self, block: Block) -> None:
        """Give a block back to the allocator, which joins it to its free neighbors."""
        size, segment, start, small = block
        if before := self._ends.get((segment, start)):
            self._drop(before)
            size, start = size + before.size, before.start
        if after := self._starts.get((segment, start + size)):
            self._drop(after)
            size += after.size
        self._keep(Block(size, segment, start, small))

    def _reserve_segment(self, block_size: int, small: bool) -> Block:
        size = round_up(block_size, 2 * MiB)
        if not small and block_size < _MAX_MIDDLE:
            size = 20 * MiB
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


def replay_reserved(events: Sequence[tuple[int, Hashable]], before_step: int) -> int:
    """Bytes reserved after some steps. `events` are changes in bytes, each with a key of what is allocated or freed.

    The first `before_step` events happen once, before the steps. Of several blocks with equal size and key the youngest is freed.
    """
    cache = Cache()
    alive: dict[tuple[int, Hashable], list[Block]] = {}
    for step in range(_REPLAYED_STEPS):
        for change, piece in events[before_step if step else 0 :]:
            blocks = alive.setdefault((abs(change), piece), [])
            if change > 0:
                blocks.append(cache.take(change))
            elif blocks:
                cache.give(blocks.pop())
    return cache.reserved
