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
        moments = lesson.walk(blocks, count, per_block)
        fullest = max(boundaries + activations for _, boundaries, activations in moments)
        assert lesson.peak(blocks, count, per_block) == pytest.approx(fullest)
        assert moments[-1] == ((4 if count else 3) * blocks, 0, 0)
        assert [moment[0] for moment in moments] == sorted(moment[0] for moment in moments)


def test_the_picture_is_the_walk_with_and_without_a_checkpoint():
    figure, alt = lesson.idea_figure(blocks=4, per_block=5)
    assert [title(axes).rpartition(" ")[2] for axes in figure.axes] == ["peak", "9"]
    assert "climbs to 20 boundaries" in alt
    assert "at most 9, " in alt
    assert "16 units of time instead of 12" in alt


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
    assert alt.startswith("At √(r·n) segments, at most one per block, the peak is the lowest that we tried.")
    worse_line = {1: 9e6, 4: 3.6e6, 16: 3e6}
    _, worse = lesson.segment_curves_figure({"a chain": (25, {"predicted": worse_line, "measured": worse_line})})
    assert worse.startswith(
        "At √(r·n) segments, at most one per block, the peak is within 20% of the lowest that we tried."
    )
    assert "Lowest at 4, √(r·n) = 5" in alt
    assert "√(r·n) = 17 > n" in lesson.segment_curves_figure({"few": (289, {"predicted": line, "measured": line})})[1]
    curves = figure.axes[0].lines
    assert list(curves[1].get_xdata()) == [1, 4, 16]
    assert curves[2].get_xdata()[0] == 5


def test_time_and_memory_are_said():
    figure, alt = lesson.time_and_memory_figure({"plain": (1, 1), "checkpointed": (0.3, 1.25), "kept": (0.6, 1.2)})
    assert alt.startswith("The allocator's peak falls by at least 40%; lowest: checkpointed.")
    assert alt.count("checkpointed: 0.30") == alt.count("checkpointed: 1.25") == 1
    points = [axes.lines[0].get_xydata().tolist() for axes in figure.axes]
    assert points == [[[1, 0], [0.3, 1], [0.6, 2]], [[1, 0], [1.25, 1], [1.2, 2]]]
    _, alt = lesson.time_and_memory_figure({"plain": (1, 1), "filed": (0.3, 1.5), "kept": (0.6, 1.2)})
    assert alt.startswith("The allocator's peak falls by at least 40%; lowest: filed, the slowest.")


def test_the_playing_figure_draws_the_walk():
    figure, alt = lesson.segments_figure(blocks=6, segments=2, batch=1, per_block=10)
    assert "a step takes 24 units of time instead of 18" in alt
    peaks = list(figure.axes[1].lines[0].get_ydata())
    assert [value / peaks[0] for value in peaks] == pytest.approx([lesson.peak(6, s, 10) / 61 for s in range(1, 7)])
    assert lesson.segments_figure(blocks=3, segments=9)[1] == lesson.segments_figure(blocks=3, segments=3)[1]


@pytest.mark.parametrize("control", [{"blocks": 6}, {"segments": 12}, {"batch": 1}, {"per_block": 1.0}])
def test_the_playing_figure_follows_each_control(control):
    assert lesson.segments_figure()[1] != lesson.segments_figure(**control)[1]
