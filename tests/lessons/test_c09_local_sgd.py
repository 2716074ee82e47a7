"""Chapter 09: ranks that follow plans, Accelerate's LocalSGD, counted, and the figures."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from course_utils.distributed import QSGD, LocalSGD, launch
from course_utils.lessons import c09_local_sgd as lesson
from course_utils.lessons.c09_local_sgd import Plan, Run, accelerate_on_rank, train_on_rank

SGD = partial(torch.optim.SGD, lr=0.5)
ELEMENTS = 6 * 4 + 4 * 3 + 3


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.EmbeddingBag(6, 4), nn.Linear(4, 3))


def share(rank):
    draw = torch.Generator().manual_seed(rank)
    labels = torch.randint(3, (64,), generator=draw)
    return torch.stack([labels, torch.randint(3, 6, (64,), generator=draw)], dim=1), labels


@pytest.fixture(scope="module")
def paths():
    plans = {
        "DDP": Plan(SGD, 12, look=4, watch=True),
        "H = 1": Plan(SGD, 12, partial(LocalSGD, sync_every=1), look=4),
        "H = 5": Plan(SGD, 12, partial(LocalSGD, sync_every=5), look=4, watch=True),
        "H = 5, unfinished": Plan(SGD, 12, partial(LocalSGD, sync_every=5), finish=False),
        "8 bits": Plan(SGD, 12, QSGD),
        "unlike": Plan(SGD, 12, watch=True, same_start=False),
        "another seed": Plan(SGD, 12, partial(LocalSGD, sync_every=1), look=4, seed=1),
    }
    return [
        found["one kind"]
        for found in launch(train_on_rank, 2, build, {"one kind": [share(0), share(1)]}, share(2), plans)
    ]


def test_the_mean_learns_and_both_ranks_see_the_same_of_it(paths):
    for name, path in paths[0].items():
        assert path.losses == paths[1][name].losses
        assert path.steps == sorted({*range(4 if name in ("DDP", "H = 1", "H = 5", "another seed") else 12, 13, 4), 12})
    assert paths[0]["DDP"].losses[-1] < paths[0]["DDP"].losses[0]


def test_one_local_step_ends_where_averaged_gradients_do(paths):
    assert paths[0]["H = 1"].losses == pytest.approx(paths[0]["DDP"].losses, rel=1e-5)


def test_what_is_sent_is_what_the_plan_says_and_looking_sends_nothing(paths):
    found = paths[0]
    assert found["DDP"].sent == [4 * step * ELEMENTS for step in (4, 8, 12)]
    assert found["H = 1"].sent == [4 * step * ELEMENTS for step in (4, 8, 12)]
    assert found["H = 5"].sent == [0, 4 * ELEMENTS, 3 * 4 * ELEMENTS]
    assert found["H = 5, unfinished"].sent[-1] == 2 * 4 * ELEMENTS
    assert found["8 bits"].sent[-1] == 12 * (2048 + 4)


def test_an_all_reduce_of_two_ranks_is_two_messages(paths):
    assert paths[0]["DDP"].messages == [2 * step for step in (4, 8, 12)]
    assert paths[0]["H = 5"].messages == [0, 2, 6]


def test_another_seed_draws_other_batches_as_many(paths):
    assert paths[0]["another seed"].losses != pytest.approx(paths[0]["H = 1"].losses, rel=1e-3)
    assert paths[0]["another seed"].sent == paths[0]["H = 1"].sent


def test_drift_is_a_sawtooth_or_none_or_never_heals(paths):
    found = paths[0]
    assert max(d for _, d in found["DDP"].drifts) == 0
    assert [step for step, d in found["H = 5"].drifts if d == 0] == [0, 5, 10]
    assert [step for step, _ in found["unlike"].drifts] == list(range(13))
    assert min(d for _, d in found["unlike"].drifts) > 0.1


def test_an_unfinished_rank_has_another_loss_than_the_mean(paths):
    assert paths[0]["H = 5"].own == pytest.approx(paths[0]["H = 5"].losses[-1], rel=1e-5)
    assert paths[0]["H = 5, unfinished"].own != pytest.approx(paths[0]["H = 5, unfinished"].losses[-1], rel=1e-3)


def four_times_the_rows():
    return [tuple(column.repeat(4, *[1] * (column.dim() - 1)) for column in share(rank)) for rank in range(2)]


def by_hand(shares, k, every):
    """Eight updates of `k` micro-batches of 16 rows, with this package's LocalSGD; parameters as one vector."""
    model, (inputs, labels) = build(), shares[torch.distributed.get_rank()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    local = LocalSGD(optimizer, every)
    for update in torch.arange(16 * 8 * k).split(16 * k):
        for rows in update.split(16):
            (nn.functional.cross_entropy(model(inputs[rows]), labels[rows]) / k).backward()
        optimizer.step()
        optimizer.zero_grad()
        local.step()
    local.finish()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize(("per_update", "updates", "others"), [(True, 4, 2), (False, 2, 4)])
def test_accelerates_local_sgd_with_accumulation_ends_where_ours_does(per_update, updates, others):
    """H = 4 and k = 2; called after each micro-batch, as in its guide, H is two updates."""
    work = partial(accelerate_on_rank, micro_batches=16, k=2, every=4, per_update=per_update)
    theirs = launch(work, 2, build, four_times_the_rows(), seconds=100)[0]["parameters"]
    assert torch.allclose(theirs, launch(by_hand, 2, four_times_the_rows(), 2, updates)[0], atol=1e-6)
    assert not torch.allclose(theirs, launch(by_hand, 2, four_times_the_rows(), 2, others)[0], atol=1e-4)


@pytest.mark.parametrize(("announced", "per_update", "averages"), [(False, True, 0), (True, True, 3), (True, False, 5)])
def test_accelerates_local_sgd_is_on_where_it_knows_of_the_others(announced, per_update, averages):
    """Four micro-batches, or four updates of two, to an average, and one at the end: of the two parameters' tensors, three."""
    work = partial(accelerate_on_rank, micro_batches=16, k=2, every=4, announced=announced, per_update=per_update)
    first, second = launch(work, 2, build, four_times_the_rows(), seconds=100)
    assert first["counts"]["calls"].sum() == 3 * averages
    assert first["counts"]["sent"].sum() == 4 * ELEMENTS * averages
    assert torch.equal(first["parameters"], second["parameters"]) == announced
    assert first["kind"] == ("DistributedType.MULTI_CPU" if announced else "DistributedType.NO")


def labels_of(axes):
    return [line.get_label() for line in axes.lines]


def test_the_idea_draws_an_average_per_step_above_and_per_round_below():
    figure, alt = lesson.local_rounds_figure(ranks=3, every=4, steps=8)
    above, below = figure.axes
    assert [len(panel.patches) for panel in (above, below)] == [3 * (8 + 8), 3 * (8 + 2)]
    assert "8 times" in alt
    assert "2 times" in alt


def test_busy_shares_are_those_of_the_formula():
    figure, alt = lesson.busy_figure(1.0, {"slow": 9.0, "fast": 0.0}, [1, 9])
    slow = [line.get_xdata()[0] for line in figure.axes[0].lines]
    assert slow == pytest.approx([10, 50])
    assert "slow: 10% at H = 1, 50% at H = 9; fast: 100%" in alt


def test_drift_is_drawn_as_it_was_seen_and_says_its_end():
    lines = {"H = 2": [(0, 0.0), (1, 1.0), (2, 2.0), (2, 0.0)], "DDP": [(0, 0.0), (2, 0.0)]}
    figure, alt = lesson.drift_figure({"mixed": lines, "by package": {"H = 2": [(0, 0.0), (1, 3.0)]}})
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
    figure, alt = lesson.drift_figure({"all": lines, "near 0": lines}, tops={"near 0": 5})
    assert [axes.get_ylim()[1] >= 250 for axes in figure.axes] == [True, False]
    assert figure.axes[1].get_ylim()[1] == 5
    assert "near 0" not in alt


def test_ways_are_drawn_against_steps_bytes_and_seconds():
    ddp = Run([10, 20], [2.0, 1.0], [1000, 2000], [20, 40])
    paths = {"DDP": ddp, "H = 20": Run([10, 20], [2.1, 1.1], [0, 100], [0, 2])}
    figure, alt = lesson.losses_of_ways_figure(paths, computing=0.1, network=(1000, 0.5), name="string")
    assert [labels_of(axes) for axes in figure.axes] == 3 * [["DDP", "H = 20"]]
    assert figure.axes[2].lines[0].get_xdata() == pytest.approx([1 + 1 + 10, 2 + 2 + 20])
    assert figure.axes[2].lines[1].get_xdata() == pytest.approx([1, 2 + 0.1 + 1])
    assert "1.00 after 20 steps" in alt
    assert "string" in figure.axes[2].get_xlabel()


def test_bytes_begin_with_0_where_some_way_has_sent_nothing_yet():
    silent, early = Run([1, 2], [2.0, 1.0], [0, 100], [0, 2]), Run([1, 2], [2.0, 1.0], [50, 100], [2, 4])
    for way, scale in ((silent, "symlog"), (early, "log")):
        figure, _ = lesson.losses_of_ways_figure({"way": way}, 0.1, (1000, 0.5), "string")
        assert figure.axes[1].get_xscale() == scale
        assert (0 in figure.axes[1].get_xticks()) == (scale == "symlog")
        assert figure.axes[2].get_xscale() == "log"


def test_losses_against_every_have_a_level_for_each_kind():
    figure, alt = lesson.losses_against_every_figure({"mixed": {1: 1.0, 20: 1.5}}, {"mixed": 0.9})
    assert labels_of(figure.axes[0]) == ["mixed", "mixed, DDP"]
    assert "1.50 at H = 20, DDP 0.90" in alt


@given(st.integers(2, 6), st.floats(0, 2))
def test_at_the_joint_minimum_the_bowls_together_are_flat(ranks, heterogeneity):
    matrices, centers = lesson.bowls(ranks, heterogeneity)
    slope = np.einsum("rij,rj->i", matrices, lesson.joint_minimum(matrices, centers) - centers)
    assert np.allclose(slope, 0, atol=1e-9)


def test_one_local_step_is_descent_on_the_mean_bowl():
    matrices, centers = lesson.bowls(3, 1.0)
    places = lesson.local_paths(1, matrices, centers, 0.3, steps=20)
    theta = np.array([-2.2, 1.4])
    for step in range(1, 21):
        theta = theta - 0.3 * np.einsum("rij,rj->ri", matrices, theta - centers).mean(0)
        assert np.allclose(places[step].mean(0), theta)


def test_with_equal_bowls_nobody_drifts_and_with_many_local_steps_the_mean_ends_elsewhere():
    matrices, centers = lesson.bowls(3, 1.0)
    alike = lesson.local_paths(10, np.tile(matrices[:1], (3, 1, 1)), np.tile(centers[:1], (3, 1)), 0.3)
    assert np.allclose(alike, alike[:, :1])
    lowest = lesson.joint_minimum(matrices, centers)
    off = [
        np.linalg.norm(lesson.local_paths(h, matrices, centers, 0.5, steps=2400)[-1].mean(0) - lowest)
        for h in (1, 10, 60)
    ]
    assert off[0] < 1e-6 < off[1] < off[2]


def test_the_figure_to_play_with_says_how_far_the_mean_ends_from_the_minimum():
    figure, alt = lesson.play_local_drift(every=1, heterogeneity=1.0, ranks=3, rate=0.5)
    said = figure.get_suptitle()
    assert said.startswith("60 averages in 60 steps")
    assert "after 60 averages the mean is 0.0" in alt
    for corner in ({"every": 60, "ranks": 8, "heterogeneity": 2.0, "rate": 1.0}, {"heterogeneity": 0.0, "ranks": 2}):
        assert lesson.play_local_drift(**corner)[1]
