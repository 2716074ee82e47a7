"""The figures of chapter 06: what is drawn is the data, and the text says what the data say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_utils import viz
from course_utils.viz.accumulation import drawn_counts, simulated_error, token_weights, worth

COUNTS = st.lists(st.integers(1, 1000), min_size=1, max_size=20)


@given(COUNTS)
def test_a_mean_of_means_gives_every_micro_batch_the_same(counts):
    weights = token_weights(counts)
    assert weights * counts == pytest.approx(np.full(len(counts), sum(counts) / len(counts)))


@given(COUNTS)
def test_no_weights_are_worth_more_than_equal_ones(counts):
    each = np.repeat(token_weights(counts), counts)
    assert worth(counts) == pytest.approx(each.sum() ** 2 / (each**2).sum())
    assert worth(counts) <= sum(counts) * (1 + 1e-12)
    assert worth([counts[0]] * 3) == pytest.approx(3 * counts[0])


def test_equal_micro_batches_have_no_error_and_ragged_ones_have():
    assert simulated_error([100] * 8) < 1e-12
    assert simulated_error([10, 100, 400]) > simulated_error([90, 100, 110]) > 0


def test_sorting_by_length_keeps_the_texts_and_spreads_the_counts():
    mixed, by_length = (drawn_counts(8, 40, 0.8, kind) for kind in (False, True))
    assert mixed.sum() == by_length.sum()
    assert by_length.tolist() == sorted(by_length)
    assert np.ptp(by_length) > np.ptp(mixed)
    assert set(drawn_counts(4, 40, 0.0, False)) == {320}


def test_play_draws_counts_and_weights():
    figure, alt = viz.play_raggedness(k=4, spread=1.0)
    counts = drawn_counts(4, 40, 1.0, False)
    above, below = figure.axes
    assert [bar.get_height() for bar in above.patches] == counts.tolist()
    assert [1 + bar.get_height() for bar in below.patches] == pytest.approx(token_weights(counts).tolist())
    assert f"{counts.sum():,} tokens" in alt
    assert "off by 0.0%" in viz.play_raggedness(spread=0.0)[1]


def test_the_idea_draws_every_counted_token():
    figure, alt = viz.accumulation_figure([1, 3])
    drawn = [p for p in figure.axes[0].patches if p.get_width() == 0.85]
    assert len(drawn) == 6
    assert len({p.get_facecolor() for p in drawn}) == 2
    assert "all 4 tokens" in alt


def test_groups_show_what_is_left_over():
    figure, alt = viz.groups_figure({"right": [4, 2], "wrong": [1, 4]}, 6)
    assert len(figure.axes[0].patches) == 12
    assert [text.get_text() for text in figure.axes[0].texts] == [
        "update 1",
        "update 2",
        "update 1",
        "update 2",
        "left over",
    ]
    assert "wrong: 1, 4, left over 1" in alt


def test_noise_stands_beside_its_law():
    figure, alt = viz.accumulated_noise_figure([1, 2, 4], [8.0, 4.1, 2.2])
    law, measured = figure.axes[0].lines
    assert list(law.get_ydata()) == [8, 4, 2]
    assert list(measured.get_ydata()) == [8.0, 4.1, 2.2]
    assert "k = 4: 2.2" in alt


def test_peaks_are_bars_and_marks_in_order():
    figure, alt = viz.peaks_figure({"a": 2**30, "b": 2**31}, {"a": 2**30 + 1, "b": 2**31})
    assert [bar.get_width() for bar in figure.axes[0].patches] == [1, 2]
    assert "b 2.00 GiB and 2.00 GiB" in alt
