"""Formulas that are found, against dry runs at sizes that were not used to find them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils.memory.allocation import Cache
from course_utils.memory.found import Depth, Log, find, powers
from course_utils.units import MiB

COEFFICIENTS = st.lists(st.integers(0, 1000), min_size=6, max_size=6).filter(any)
SIZES = [(2, 8), (3, 8), (2, 16), (4, 16), (2, 32), (3, 32), (5, 24)]


def log_of(rows, b, s):
    """Births of these polynomials, then all deaths."""
    sizes = [int(np.dot(row, powers(b, s)[:6])) for row in rows]
    labels = tuple(("forward", "activations", f"layer{i}", "op") for i in range(len(rows)))
    return Log(np.array([*sizes, *(-size for size in sizes)]), labels + labels)


@given(st.lists(COEFFICIENTS, min_size=1, max_size=4), st.integers(1, 50), st.integers(1, 4096))
@settings(max_examples=60, deadline=None)
def test_polynomials_are_found_to_the_byte(rows, b, s):
    found = find({at: log_of(rows, *at) for at in SIZES})
    expected = log_of(rows, b, s)
    assert np.array_equal(found.log(b, s).changes, expected.changes)
    assert found.log(b, s).peak == expected.peak


def test_what_is_no_polynomial_is_not_found():
    labels = (("forward", "activations", "", "op"),)
    assert find({(b, s): Log(np.array([b * 2**s % 1000]), labels) for b, s in SIZES}) is None


def net(blocks, by_one=7):
    """A log as a stack of equal blocks makes it: forward in order, backward in reverse, an update that loops."""
    births = [(by_one * 5000, ("forward", "activations", f"layers.{i}", "mm")) for i in range(blocks)]
    back = [
        row
        for i in reversed(range(blocks))
        for row in (
            (9000, ("backward", "gradients", f"layers.{i}", "mm")),
            (-by_one * 5000, ("backward", "activations", f"layers.{i}", "mm")),
        )
    ]
    update = [
        row
        for _ in range(blocks)
        for row in (
            (8000, ("update", "optimizer temporaries", "", "sqrt")),
            (-8000, ("update", "optimizer temporaries", "", "sqrt")),
        )
    ]
    norms = [(4 * blocks, ("update", "optimizer temporaries", "", "aten.stack.default"))]
    rows = births + back + norms + update
    return Log(np.array([size for size, _ in rows]), tuple(label for _, label in rows))


@pytest.mark.parametrize("blocks", [3, 4, 9, 40])
def test_two_and_three_blocks_tell_of_any_number(blocks):
    depth = Depth.between(net(2), net(3), 3)
    assert depth.sure
    deep = depth.deepened(net(3).changes, net(3).labels, blocks, 1)
    assert np.array_equal(deep.changes, net(blocks).changes)


def test_two_lists_that_end_at_the_same_place_are_told_apart():
    def log(blocks):
        many = [(5000, ("update", "gradients", "", "a")), (-5000, ("update", "gradients", "", "a"))] * blocks
        few = [(-7000, ("update", "activations", "", "b"))] * blocks
        return Log(np.array([s for s, _ in many + few]), tuple(label for _, label in many + few))

    deep = Depth.between(log(2), log(3), 3).deepened(log(3).changes, log(3).labels, 6, 1)
    assert np.array_equal(deep.changes, log(6).changes)


def test_models_that_differ_in_more_than_blocks_have_no_depth():
    other = Log(net(2).changes[::-1], net(2).labels[::-1])
    assert Depth.between(other, net(3), 3) is None


def test_segments_are_those_of_the_allocators_rules():
    cache = Cache()
    small = cache.take(100)
    assert (small[0], cache.reserved) == (512, 2 * MiB)
    cache.take(3 * MiB)
    assert cache.reserved == 22 * MiB, "1 to 10 MiB come from segments of 20 MiB"
    cache.take(3 * MiB)
    assert cache.reserved == 22 * MiB
    large = cache.take(15 * MiB)
    assert cache.reserved == 38 * MiB, "larger ones from their own, in whole 2 MiB"
    cache.give(large, False)
    again = cache.take(16 * MiB)
    assert (again[1], cache.reserved) == (large[1], 38 * MiB)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40 * MiB)), max_size=60))
@settings(deadline=None)
def test_no_two_blocks_overlap_and_all_that_is_given_back_joins_again(steps):
    cache, taken = Cache(), []
    for take, size in steps:
        if take or not taken:
            taken.append((cache.take(size), size))
        else:
            block, asked = taken.pop(size % len(taken))
            cache.give(block, -(-asked // 512) * 512 <= MiB)
        places = sorted((segment, start, start + length) for (length, segment, start), _ in taken)
        assert all(a[0] != b[0] or a[2] <= b[1] for a, b in zip(places, places[1:], strict=False))
    for block, asked in taken:
        cache.give(block, -(-asked // 512) * 512 <= MiB)
    free = [block for blocks in cache._free.values() for block in blocks]
    assert sum(size for size, *_ in free) == cache.reserved
    assert len({segment for _, segment, _ in free}) == len(free), "each segment is whole again"


def test_what_is_reserved_is_at_least_what_is_in_use():
    log = net(6, by_one=2000)
    assert log.peak <= log.reserved <= 1.5 * log.peak + 40 * MiB
