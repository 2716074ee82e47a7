"""Chapter 07's closed form is the fullest moment of the walk, and its figures draw the data and say it."""

import pytest
from figures import title
from hypothesis import given
from hypothesis import strategies as st

from course_utils.lessons import c07_gradient_checkpointing as lesson

SIZES = st.integers(1, 30).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n), st.floats(0.5, 50)))


@given(SIZES)
def test_the_closed_form_is_the_fullest_moment_of_the_walk(sizes):
    blocks, segments, per_block = sizes
    for count in (None, segments):
        moments = lesson.list_moments(blocks, count, per_block)
        fullest = max(boundaries + activations for _, boundaries, activations in moments)
        assert lesson.peak(blocks, count, per_block) == pytest.approx(fullest)
        assert moments[-1] == ((4 if count else 3) * blocks, 0, 0)
        assert [moment[0] for moment in moments] == sorted(moment[0] for moment in moments)


def test_the_picture_is_the_walk_with_and_without_a_checkpoint():
    figure, alt = lesson.idea_figure(blocks=4, per_block=5)
    assert [title(axes) for axes in figure.axes] == ["Everything is kept", "Boundaries are kept"]
    assert alt.startswith("The peak falls from 20 boundaries to 9. A step takes 16 units of time instead of 12.")
    assert "at most 20, at 3: kept 20." in alt
    assert "at most 9, at 4: kept 4, computed again 5." in alt


@given(st.integers(1, 12), st.integers(1, 8))
def test_equal_segments_are_lowest_at_the_root_of_r_n(length, per_block):
    root = length * per_block  # so many segments of `length` blocks: n = root · length, and √(r · n) = root
    blocks = root * length
    equal = {s: s + per_block * blocks // s for s in range(1, blocks + 1) if blocks % s == 0}
    assert equal[root] == min(equal.values())
    assert all(lesson.peak(blocks, s, per_block) == value for s, value in equal.items())


@given(SIZES, st.floats(0, 1))
def test_every_block_is_best_where_gradients_outweigh_a_boundary(sizes, part):
    """They must not outweigh what a block saves: else the end of backward is higher still."""
    blocks, _, per_block = sizes
    per_block = max(per_block, 1.0)
    gradients = 1 + part * (per_block - 1)
    peaks = {s: lesson.peak(blocks, s, per_block, gradients) for s in range(1, blocks + 1)}
    assert peaks[blocks] <= min(peaks.values()) + 1e-9
    assert peaks[blocks] == pytest.approx(1 + per_block + gradients * (blocks - 1))


def test_fewer_segments_are_best_where_a_boundary_is_larger_than_the_gradients():
    peaks = {q: [lesson.peak(48, s, 23, q) for s in (33, 48)] for q in (12 * 128 / (64 * 16), 12 * 128 / (64 * 128))}
    assert list(peaks.values()) == [[116, 94.5], [64.375, 71]]


def test_unequal_segments_do_a_little_better():
    assert [lesson.peak(36, s, 4) for s in (12, 14, 18)] == [24, 22, 26]
    assert min(range(1, 65), key=lambda s: lesson.peak(64, s, 16)) == 40
    assert [lesson.peak(64, s, 16) for s in (32, 40, 64, None)] == [64, 56, 80, 1024]


def test_the_curves_mark_the_lowest_point_and_the_root():
    line = {1: 9e6, 4: 3e6, 16: 5e6}
    figure, alt = lesson.segment_curves_figure({"a chain": (25, {"predicted": line, "measured": line})})
    assert "A chain. Lowest at 4." in alt
    assert "√(r·n) is at 5." in alt
    curves = figure.axes[0].lines
    assert list(curves[1].get_xdata()) == [1, 4, 16]
    assert curves[2].get_xdata()[0] == 5


def test_the_playing_figure_draws_the_walk():
    figure, alt = lesson.segments_figure(blocks=6, segments=2, batch=1, per_block=10)
    assert alt.startswith("6 blocks in 2 segments: at most ")
    peaks = list(figure.axes[1].lines[0].get_ydata())
    assert [value / peaks[0] for value in peaks] == pytest.approx([lesson.peak(6, s, 10) / 61 for s in range(1, 7)])
    assert lesson.segments_figure(blocks=3, segments=9)[1] == lesson.segments_figure(blocks=3, segments=3)[1]


@pytest.mark.parametrize("control", [{"blocks": 6}, {"segments": 12}, {"batch": 1}, {"per_block": 1.0}])
def test_the_playing_figure_follows_each_control(control):
    assert lesson.segments_figure()[1] != lesson.segments_figure(**control)[1]
