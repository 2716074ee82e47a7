"""Checkpointing on paper: the law of the peak, and the root of n where a boundary is all that a block saves."""

from math import isqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_utils.techniques import pencil, segment_ranges

SIZES = st.integers(1, 30).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n), st.floats(0.5, 50)))


@given(SIZES)
def test_the_peak_is_the_fullest_segment_with_the_boundaries_up_to_it(sizes):
    blocks, segments, activations = sizes
    runs = segment_ranges(blocks, segments)
    assert pencil.peak(*sizes) == pytest.approx(max(j + len(run) * activations for j, run in enumerate(runs, 1)))
    assert pencil.peak(blocks, None, activations) == pytest.approx(blocks * activations)


@given(SIZES)
def test_every_block_is_computed_once_more_and_nothing_is_left(sizes):
    blocks, segments, activations = sizes
    plain, again = pencil.walk(blocks, None, activations), pencil.walk(*sizes)
    assert (plain[-1].time, again[-1].time) == (3 * blocks, 4 * blocks)
    assert plain[-1][1:] == again[-1][1:] == (0, 0)
    assert [moment.time for moment in again] == sorted(moment.time for moment in again)


@pytest.mark.parametrize("blocks", [4, 9, 16, 25, 36])
def test_the_root_is_best_where_a_block_saves_as_much_as_a_boundary(blocks):
    assert pencil.peak(blocks, isqrt(blocks), 1) == 2 * isqrt(blocks)
    assert min(pencil.peak(blocks, s, 1) for s in range(1, blocks + 1)) >= 2 * isqrt(blocks) - 1


@given(st.integers(2, 30))
def test_every_block_is_best_where_it_saves_more_than_all_boundaries(blocks):
    assert pencil.best_segments(blocks, blocks + 1.0) == blocks
