"""Figures of local SGD: what they say is what they were given, and the bowls to play with keep their laws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_utils import viz
from course_utils.training.rounds import Path
from course_utils.viz.local_sgd import bowls, joint_minimum, local_paths


def labels_of(axes):
    return [line.get_label() for line in axes.lines]


def test_the_idea_draws_an_average_per_step_above_and_per_round_below():
    figure, alt = viz.local_rounds_figure(ranks=3, every=4, steps=8)
    above, below = figure.axes
    assert [len(panel.patches) for panel in (above, below)] == [3 * (8 + 8), 3 * (8 + 2)]
    assert "8 times" in alt
    assert "2 times" in alt


def test_busy_shares_are_those_of_the_formula():
    figure, alt = viz.busy_figure(1.0, {"slow": 9.0, "fast": 0.0}, [1, 9])
    slow = [line.get_xdata()[0] for line in figure.axes[0].lines]
    assert slow == pytest.approx([10, 50])
    assert "slow: 10% at H = 1, 50% at H = 9; fast: 100%" in alt


def test_drift_is_drawn_as_it_was_seen_and_says_its_end():
    lines = {"H = 2": [(0, 0.0), (1, 1.0), (2, 2.0), (2, 0.0)], "DDP": [(0, 0.0), (2, 0.0)]}
    figure, alt = viz.drift_figure({"mixed": lines, "by package": {"H = 2": [(0, 0.0), (1, 3.0)]}})
    left, right = figure.axes
    assert list(left.lines[0].get_ydata()) == [0, 1, 2, 0]
    assert left.lines[0].get_color() == right.lines[0].get_color() != left.lines[1].get_color()
    assert left.get_ylim() == right.get_ylim()
    assert left.get_ylim()[0] < 0
    assert left.get_ylim()[1] >= 3
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["H = 2", "DDP"]
    assert "mixed: H = 2 at most 2, 0 at the end, DDP at most 0" in alt
    assert "by package: H = 2 at most 3, 3 at the end" in alt


def test_drift_can_be_looked_at_near_0_and_is_told_once():
    lines = {"run": [(0, 250.0), (1, 2.0)]}
    figure, alt = viz.drift_figure({"all": lines, "near 0": lines}, tops={"near 0": 5})
    assert [axes.get_ylim()[1] >= 250 for axes in figure.axes] == [True, False]
    assert figure.axes[1].get_ylim()[1] == 5
    assert "near 0" not in alt


def test_ways_are_drawn_against_steps_bytes_and_seconds():
    ddp = Path([10, 20], [2.0, 1.0], [1000, 2000], [20, 40])
    paths = {"DDP": ddp, "H = 20": Path([10, 20], [2.1, 1.1], [0, 100], [0, 2])}
    figure, alt = viz.losses_of_ways_figure(paths, computing=0.1, network=(1000, 0.5), name="string")
    assert [labels_of(axes) for axes in figure.axes] == 3 * [["DDP", "H = 20"]]
    assert figure.axes[2].lines[0].get_xdata() == pytest.approx([1 + 1 + 10, 2 + 2 + 20])
    assert figure.axes[2].lines[1].get_xdata() == pytest.approx([1, 2 + 0.1 + 1])
    assert "1.00 after 20 steps" in alt
    assert "string" in figure.axes[2].get_xlabel()


def test_bytes_begin_with_0_where_some_way_has_sent_nothing_yet():
    silent, early = Path([1, 2], [2.0, 1.0], [0, 100], [0, 2]), Path([1, 2], [2.0, 1.0], [50, 100], [2, 4])
    for way, scale in ((silent, "symlog"), (early, "log")):
        figure, _ = viz.losses_of_ways_figure({"way": way}, 0.1, (1000, 0.5), "string")
        assert figure.axes[1].get_xscale() == scale
        assert (0 in figure.axes[1].get_xticks()) == (scale == "symlog")
        assert figure.axes[2].get_xscale() == "log"


def test_losses_against_every_have_a_level_for_each_kind():
    figure, alt = viz.losses_against_every_figure({"mixed": {1: 1.0, 20: 1.5}}, {"mixed": 0.9})
    assert labels_of(figure.axes[0]) == ["mixed", "mixed, DDP"]
    assert "1.50 at H = 20, DDP 0.90" in alt


@given(st.integers(2, 6), st.floats(0, 2))
def test_at_the_joint_minimum_the_bowls_together_are_flat(ranks, heterogeneity):
    matrices, centers = bowls(ranks, heterogeneity)
    slope = np.einsum("rij,rj->i", matrices, joint_minimum(matrices, centers) - centers)
    assert np.allclose(slope, 0, atol=1e-9)


def test_one_local_step_is_descent_on_the_mean_bowl():
    matrices, centers = bowls(3, 1.0)
    places = local_paths(1, matrices, centers, 0.3, steps=20)
    theta = np.array([-2.2, 1.4])
    for step in range(1, 21):
        theta = theta - 0.3 * np.einsum("rij,rj->ri", matrices, theta - centers).mean(0)
        assert np.allclose(places[step].mean(0), theta)


def test_with_equal_bowls_nobody_drifts_and_with_many_local_steps_the_mean_ends_elsewhere():
    matrices, centers = bowls(3, 1.0)
    alike = local_paths(10, np.tile(matrices[:1], (3, 1, 1)), np.tile(centers[:1], (3, 1)), 0.3)
    assert np.allclose(alike, alike[:, :1])
    lowest = joint_minimum(matrices, centers)
    off = [np.linalg.norm(local_paths(h, matrices, centers, 0.5, steps=2400)[-1].mean(0) - lowest) for h in (1, 10, 60)]
    assert off[0] < 1e-6 < off[1] < off[2]


def test_the_figure_to_play_with_says_how_far_the_mean_ends_from_the_minimum():
    figure, alt = viz.play_local_drift(every=1, heterogeneity=1.0, ranks=3, rate=0.5)
    said = figure.get_suptitle()
    assert said.startswith("60 averages in 60 steps")
    assert "after 60 averages the mean is 0.0" in alt
    for corner in ({"every": 60, "ranks": 8, "heterogeneity": 2.0, "rate": 1.0}, {"heterogeneity": 0.0, "ranks": 2}):
        assert viz.play_local_drift(**corner)[1]
