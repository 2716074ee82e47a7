"""What the figures about 8-bit states draw is the data, and their text says it."""

import pytest
import torch

from course_utils.lessons import c05_8bit_adam as lesson
from course_utils.optim.codebook import dynamic_codebook
from course_utils.optim.quantization import nearest


def test_the_books_are_drawn_entry_by_entry():
    figure, alt = lesson.codebooks_figure()
    drawn = [len(line.get_xdata()) for line in figure.axes[0].lines]
    assert drawn == [255, 255]  # all but 0
    assert "the dynamic book has 128, 64, 32 entries in the three uppermost decades" in alt


def test_an_outlier_spoils_its_own_block_only():
    values = lesson.spread_values(decades=2, count=4096)
    figure, alt = lesson.blocks_figure(values)
    heights = [patch.get_height() for patch in figure.axes[0].patches]
    plain, spoiled = heights[:3], heights[3:]
    assert spoiled[2] == 1
    assert spoiled[0] < 1.2 * plain[0]
    assert "100.0%" in alt


def test_nearest_rounding_stagnates_and_stochastic_does_not():
    figure, _ = lesson.stagnation_figure(steps=1000)
    true, frozen, unbiased = (line.get_ydata() for line in figure.axes[0].lines[:3])
    assert frozen[-1] == pytest.approx(frozen[0])
    assert abs(true - unbiased).max() < 0.01
    assert true[-1] < 0.5 * frozen[-1]


def test_a_faster_average_does_not_stagnate():
    """The cause is an update below half a step of the book: with β₂ = 0.9 it is above."""
    assert lesson.half_spacing(0.25) > 0.001
    assert lesson.follow(0.25, 0.01, 200, 0.9, nearest)[-1] < 0.05


def test_relative_error_is_at_most_half_a_step():
    values = torch.linspace(0.1, 1.0, 1000)
    error = lesson.relative_error(values, dynamic_codebook(False), 1000)
    assert error.max() <= 0.0352


@pytest.mark.parametrize("changed", [{"kind": "linear"}, {"total_bits": 4}, {"exponent_bits": 2}, {"block_size": 2048}])
def test_the_playing_figure_follows_each_control(changed):
    assert lesson.codebook_figure()[1] != lesson.codebook_figure(**changed)[1]


def test_the_cycle_tells_what_stays_in_32_bits():
    assert "Parameter and gradient are 32 bits wide throughout" in lesson.state_cycle_figure()[1]
