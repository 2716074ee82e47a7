"""The figures of chapter 04: what is drawn is the data, and the text says what the data say."""

import matplotlib.pyplot as plt
import pytest
import torch

from course_utils import viz
from course_utils.errors import CourseError
from course_utils.optim import Adafactor, AdamW, factored
from course_utils.optim.scale_experiments import SMALL_SCALES, change_at_scales


def pictures(figure):
    return [axes.images[0].get_array() for axes in figure.axes if axes.images]


def test_the_parts_of_the_idea_have_their_shapes():
    figure, alt = viz.factoring_figure(rows=4, columns=7)
    assert [picture.shape for picture in pictures(figure)] == [(1, 7), (4, 7), (4, 1), (4, 7)]
    assert "4 by 7" in alt
    plt.close(figure)


def test_the_estimate_stands_beside_the_matrix():
    squares = factored.random_squares(2, 5, 6, noise=0.5)
    figure, alt = viz.estimate_figure(squares, "a name")
    matrix, estimated, ratio = pictures(figure)[:3]
    assert torch.allclose(torch.as_tensor(matrix), squares.log10())
    assert torch.allclose(torch.as_tensor(estimated), factored.estimate(squares).log10())
    assert torch.allclose(torch.as_tensor(ratio), (factored.estimate(squares) / squares).log10())
    assert f"error {factored.relative_error(squares, factored.estimate(squares)):.1%}" in alt
    assert "a name" in alt


def test_a_large_matrix_is_drawn_in_part_and_zeros_stay_blank():
    squares = factored.random_squares(1, 90, 70, noise=0.0)
    squares[3] = 0.0
    figure, alt = viz.estimate_figure(squares)
    assert pictures(figure)[0].shape == (64, 64)
    assert "90 by 70" in alt
    assert "error 0.0%" in alt or "e-1" in alt


@pytest.mark.parametrize("squares", [torch.zeros(3, 4), torch.ones(3)])
def test_nothing_to_draw_is_refused(squares):
    with pytest.raises(CourseError, match="matrix of squares"):
        viz.estimate_figure(squares)


def test_play_is_exact_at_rank_one_without_noise_only():
    assert "error 0" not in viz.play_estimate(rank=2)[1]
    assert "e-1" in viz.play_estimate(rank=1, noise=0.0)[1]


def test_schedules_draw_the_formulas():
    figure, _ = viz.adafactor_schedules_figure(steps=1000)
    share, adam = figure.axes[0].lines
    t = torch.as_tensor(share.get_xdata())
    assert torch.allclose(torch.as_tensor(share.get_ydata()), t**-0.8)
    assert adam.get_ydata()[0] == pytest.approx(1)
    bound, warm = figure.axes[1].lines
    assert (max(bound.get_ydata()), min(warm.get_ydata())) == pytest.approx((1e-2, 1e-6))


def test_small_gradients_part_the_versions():
    """PyTorch's ε₁ matters first, Adam's ε later, ε₁ in the square last."""
    kinds = {"torch": Adafactor, "Adam": lambda p: AdamW(p, weight_decay=0), "paper": Adafactor.as_in_transformers}
    lost = {name: change_at_scales(kind, SMALL_SCALES) for name, kind in kinds.items()}
    first_kept = {
        name: next(s for s, change in zip(SMALL_SCALES, changes, strict=True) if change < 0.05)
        for name, changes in lost.items()
    }
    assert first_kept["paper"] < first_kept["Adam"] < first_kept["torch"]
    figure, alt = viz.small_gradients_figure(lost, SMALL_SCALES)
    assert list(figure.axes[0].lines[0].get_ydata()) == lost["torch"]
    assert "paper" in alt
