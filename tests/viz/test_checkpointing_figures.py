"""What the figures about checkpointing draw is the data, and their text says it."""

import pytest

from course_utils import viz
from course_utils.techniques import pencil


def test_a_product_costs_more_to_get_back_than_a_sum():
    figure, alt = viz.recompute_figure(width=100)
    assert [patch.get_width() for patch in figure.axes[1].patches] == [0.25, 2.5, 50]
    assert "product, width 100: 50" in alt


def test_the_curves_mark_the_lowest_point_and_the_root():
    line = {1: 9e6, 4: 3e6, 16: 5e6}
    figure, alt = viz.segment_curves_figure({"a chain": {"predicted": line, "measured": line}})
    assert alt.endswith("lowest at 4.")
    drawn = figure.axes[0].lines
    assert list(drawn[1].get_xdata()) == [1, 4, 16]
    assert drawn[2].get_xdata()[0] == 4


def test_time_and_memory_are_said():
    _, alt = viz.time_and_memory_figure({"plain": (1, 1), "checkpointed": (0.3, 1.25)})
    assert "checkpointed: 0.30 of the memory, 1.25 of the time" in alt


def test_the_playing_figure_draws_the_walk():
    figure, alt = viz.segments_figure(blocks=6, segments=2, batch=1, per_block=10)
    assert "time 24 instead of 18" in figure.axes[0].get_title() + figure.axes[0].get_title(
        loc="left"
    )  # as the style has it
    peaks = list(figure.axes[1].lines[0].get_ydata())
    assert [value / peaks[0] for value in peaks] == pytest.approx([pencil.peak(6, s, 10) / 61 for s in range(1, 7)])
    assert "6 blocks in 2 segments" in alt


@pytest.mark.parametrize("changed", [{"blocks": 6}, {"segments": 12}, {"batch": 1}, {"per_block": 1.0}])
def test_the_playing_figure_follows_each_control(changed):
    assert viz.segments_figure()[1] != viz.segments_figure(**changed)[1]


def test_more_segments_than_blocks_are_one_per_block():
    assert viz.segments_figure(blocks=3, segments=9)[1] == viz.segments_figure(blocks=3, segments=3)[1]


@pytest.mark.parametrize(
    ("blocks", "per_block", "lowest"), [(36, 1.0, "5 to 8"), (4, 1.0, "2 or 3"), (12, 3.0, "5, 7 or 8"), (12, 24, "12")]
)
def test_all_of_the_lowest_are_named(blocks, per_block, lowest):
    figure, alt = viz.segments_figure(blocks, 2, 1, per_block)
    assert f"Lowest at s = {lowest}" in figure.axes[1].get_title() + figure.axes[1].get_title(loc="left")
    assert f"The lowest peak has {lowest} segments." in alt
    peaks = {s: pencil.peak(blocks, s, per_block) for s in range(1, blocks + 1)}
    lows = [s for s, value in peaks.items() if value == min(peaks.values())]
    assert lows[0] == pencil.best_segments(blocks, per_block)
    assert {str(lows[0]), str(lows[-1])} <= set(lowest.replace(",", "").split())
