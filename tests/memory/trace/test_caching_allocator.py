"""The replay of CUDA's caching allocator: its rules one by one, and properties of any sequence of events."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils.memory.trace.caching_allocator import Cache
from course_utils.memory.trace.log import Label, Log
from course_utils.units import MiB


def test_segments_are_those_of_the_allocators_rules():
    cache = Cache()
    assert cache.take(100).size == 512
    assert cache.reserved == 2 * MiB
    for _ in range(2):
        cache.take(3 * MiB)
        assert cache.reserved == 22 * MiB, "1 to 10 MiB come from segments of 20 MiB"
    large = cache.take(15 * MiB)
    assert cache.reserved == 38 * MiB, "larger ones from their own, in whole 2 MiB"
    cache.give(large)
    second = cache.take(16 * MiB)
    assert (second.segment, cache.reserved) == (large.segment, 38 * MiB)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40 * MiB)), max_size=60))
@settings(deadline=None)
def test_no_two_blocks_overlap_and_all_that_is_given_back_joins_again(steps):
    cache, blocks, segments = Cache(), [], {}
    for take, size in steps:
        if take or not blocks:
            before = cache.reserved
            blocks.append(cache.take(size))
            if grown := cache.reserved - before:
                segments[blocks[-1].segment] = grown
        else:
            cache.give(blocks.pop(size % len(blocks)))
        spans = sorted((block.segment, block.start, block.start + block.size) for block in blocks)
        assert all(a[0] != b[0] or a[2] <= b[1] for a, b in zip(spans, spans[1:], strict=False))
    for block in blocks:
        cache.give(block)
    reserved = cache.reserved
    for size in sorted(segments.values(), reverse=True):
        for part in (size // 2, size // 2) if size == 2 * MiB else (size,):
            cache.take(part)
    assert cache.reserved == reserved, "each segment is whole again"


@given(st.lists(st.integers(1, 30 * MiB), min_size=1, max_size=12))
@settings(deadline=None)
def test_what_is_reserved_is_at_least_what_is_in_use(sizes):
    label = Label("forward", "activations", "", "mm")
    log = Log(np.array([*sizes, *(-size for size in reversed(sizes))]), (label,) * 2 * len(sizes), 512)
    assert log.peak <= log.reserved <= 2 * log.peak + 22 * MiB
