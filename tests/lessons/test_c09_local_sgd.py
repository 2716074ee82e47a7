"""Chapter 09: the ring turn by turn, ranks that follow plans, Accelerate's LocalSGD, counted, and the figures."""

from functools import partial

import numpy as np
import pytest
import torch
from figures import title
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from course_utils.distributed import QSGD, LocalSGD, launch
from course_utils.lessons import c09_figures as figures
from course_utils.lessons import c09_local_sgd as lesson
from course_utils.lessons.c09_local_sgd import RankHistory, RunPlan, accelerate_on_rank, train_on_rank

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
def histories():
    plans = {
        "DDP": RunPlan(SGD, 12, loss_interval=4, note_drift=True),
        "H = 1": RunPlan(SGD, 12, partial(LocalSGD, sync_every=1), loss_interval=4),
        "H = 5": RunPlan(SGD, 12, partial(LocalSGD, sync_every=5), loss_interval=4, note_drift=True),
        "H = 5, unfinished": RunPlan(SGD, 12, partial(LocalSGD, sync_every=5), finish=False),
        "8 bits": RunPlan(SGD, 12, QSGD),
        "unlike": RunPlan(SGD, 12, note_drift=True, same_start=False),
        "another seed": RunPlan(SGD, 12, partial(LocalSGD, sync_every=1), loss_interval=4, seed=1),
    }
    shares = {"one kind": [share(0), share(1)]}
    return [by_kind["one kind"] for by_kind in launch(train_on_rank, 2, build, shares, share(2), plans)]


def test_the_mean_learns_and_both_ranks_see_the_same_of_it(histories):
    for name, history in histories[0].items():
        assert history.losses == histories[1][name].losses
        assert history.steps == ([4, 8, 12] if name in ("DDP", "H = 1", "H = 5", "another seed") else [12])
    assert histories[0]["DDP"].losses[-1] < histories[0]["DDP"].losses[0]


def test_what_is_sent_is_what_the_plan_says_and_looking_sends_nothing(histories):
    by_plan = histories[0]
    assert by_plan["DDP"].sent == [4 * step * ELEMENTS for step in (4, 8, 12)]
    assert by_plan["H = 1"].sent == [4 * step * ELEMENTS for step in (4, 8, 12)]
    assert by_plan["H = 5"].sent == [0, 4 * ELEMENTS, 3 * 4 * ELEMENTS]
    assert by_plan["H = 5, unfinished"].sent[-1] == 2 * 4 * ELEMENTS
    assert by_plan["8 bits"].sent[-1] == 12 * (2048 + 4)


def test_an_all_reduce_of_two_ranks_is_two_messages(histories):
    assert histories[0]["DDP"].messages == [2 * step for step in (4, 8, 12)]
    assert histories[0]["H = 5"].messages == [0, 2, 6]


def test_another_seed_draws_other_batches_as_many(histories):
    assert histories[0]["another seed"].losses != pytest.approx(histories[0]["H = 1"].losses, rel=1e-3)
    assert histories[0]["another seed"].sent == histories[0]["H = 1"].sent


def test_drift_is_a_sawtooth_or_none_or_never_heals(histories):
    by_plan = histories[0]
    assert max(d for _, d in by_plan["DDP"].drifts) == 0
    assert [step for step, d in by_plan["H = 5"].drifts if d == 0] == [0, 5, 10]
    assert [step for step, _ in by_plan["unlike"].drifts] == list(range(13))
    assert min(d for _, d in by_plan["unlike"].drifts) > 0.1


def test_an_unfinished_rank_has_another_loss_than_the_mean(histories):
    assert histories[0]["H = 5"].own_loss == pytest.approx(histories[0]["H = 5"].losses[-1], rel=1e-5)
    assert histories[0]["H = 5, unfinished"].own_loss != pytest.approx(
        histories[0]["H = 5, unfinished"].losses[-1], rel=1e-3
    )


def four_times_the_rows():
    return [tuple(column.repeat(4, *[1] * (column.dim() - 1)) for column in share(rank)) for rank in range(2)]


def by_hand(shares, k, interval):
    """Eight updates of `k` micro-batches of 16 rows, with this package's LocalSGD; parameters as one vector."""
    model = build()
    inputs, labels = shares[torch.distributed.get_rank()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    local = LocalSGD(optimizer, interval)
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
    work = partial(accelerate_on_rank, micro_batches=16, k=2, interval=4, per_update=per_update)
    theirs = launch(work, 2, build, four_times_the_rows(), seconds=100)[0]["parameters"]
    assert torch.allclose(theirs, launch(by_hand, 2, four_times_the_rows(), 2, updates)[0], atol=1e-6)
    assert not torch.allclose(theirs, launch(by_hand, 2, four_times_the_rows(), 2, others)[0], atol=1e-4)


@pytest.mark.parametrize(("announced", "per_update", "averages"), [(False, True, 0), (True, True, 3), (True, False, 5)])
def test_accelerates_local_sgd_is_on_where_it_knows_of_the_others(announced, per_update, averages):
    """Four micro-batches, or four updates of two, to an average, and one at the end: of the two parameters' tensors, three."""
    work = partial(accelerate_on_rank, micro_batches=16, k=2, interval=4, announced=announced, per_update=per_update)
    first, second = launch(work, 2, build, four_times_the_rows(), seconds=100)
    assert first["counts"]["calls"].sum() == 3 * averages
    assert first["counts"]["sent"].sum() == 4 * ELEMENTS * averages
    assert torch.equal(first["parameters"], second["parameters"]) == announced
    assert first["kind"] == ("DistributedType.MULTI_CPU" if announced else "DistributedType.NO")


def ring_by_pencil(ranks):
    """Whose parts each piece holds, [turn][rank][piece]: rank r passes on piece r, then the one that came last."""
    state = [[{r} for _ in range(ranks)] for r in range(ranks)]
    turns = [state]
    for turn in range(2 * (ranks - 1)):
        state = [[set(parts) for parts in row] for row in state]
        for rank in range(ranks):
            piece = (rank - 1 - turn) % ranks if turn < ranks - 1 else (rank - (turn - ranks + 1)) % ranks
            incoming = turns[-1][rank][piece]
            state[(rank + 1) % ranks][piece] = incoming | (
                state[(rank + 1) % ranks][piece] if turn < ranks - 1 else set()
            )
        turns.append(state)
    return turns


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_ring_in_real_processes_turns_as_by_pencil(ranks):
    seen = launch(lesson.ring_on_rank, ranks)
    expected = ring_by_pencil(ranks)
    assert {len(turns) for turns in seen} == {2 * (ranks - 1) + 1}
    for rank, turns in enumerate(seen):
        for turn, row in enumerate(turns):
            assert row == ["".join(map(str, sorted(parts))) for parts in expected[turn][rank]]
    complete = "".join(map(str, range(ranks)))
    assert [turns[ranks - 1].index(complete) for turns in seen] == list(range(ranks)), (
        "rank r ends the first half with sum r"
    )
    assert all(turns[-1] == [complete] * ranks for turns in seen)


def test_the_ring_is_drawn_turn_by_turn_with_an_arrow_for_each_piece_that_came():
    by_turn = [[["".join(map(str, sorted(p))) for p in row] for row in state] for state in ring_by_pencil(3)]
    figure, alt = figures.ring_figure([[state[rank] for state in by_turn] for rank in range(3)])
    assert [title(axes) for axes in figure.axes] == ["turn 1: add", "turn 2: add", "turn 3: copy", "turn 4: copy"]
    assert [sum(text.get_text() == "" for text in axes.texts) for axes in figure.axes] == [3, 3, 3, 3]
    assert figure.get_suptitle() == "2 turns add and 2 copy; in each a rank sends 1 of its 3 pieces"
    assert "turn 4: 012-012-012, 012-012-012, 012-012-012" in alt


def test_the_idea_draws_an_average_per_step_above_and_per_round_below():
    figure, alt = figures.local_rounds_figure(ranks=3, interval=4, steps=8)
    above, below = figure.axes
    assert [len(panel.patches) for panel in (above, below)] == [3 * (8 + 8), 3 * (8 + 2)]
    assert "with 8 averages above, 2 below" in alt
    assert "rank 2: a step of a rank × 8, all ranks send × 2" in alt


def test_busy_shares_are_those_of_the_formula():
    figure, alt = figures.busy_figure({"slow": 1.0, "fast": 0.1}, {"string": 9.0})
    for axes, r in zip(figure.axes, (9, 90), strict=True):
        curve, level = axes.lines
        assert curve.get_ydata() == pytest.approx(100 * curve.get_xdata() / (curve.get_xdata() + r))
        assert set(level.get_ydata()) == {90}
    assert "Fast: 100 ms a step. string: from 1.1% at 1 to 99.9% at 100,000" in alt


def test_a_loss_costs_what_was_spent_at_the_first_average_that_none_later_exceeds():
    run = RankHistory([10, 20, 30], [2.0, 1.0, 1.1], [0, 100, 200], [0, 2, 4])
    assert lesson.cost_of_a_loss(run, 1.5) == (20, 100, 2)
    assert lesson.cost_of_a_loss(run, 1.1) == (20, 100, 2)
    dip = RankHistory([10, 20, 30], [1.0, 1.5, 0.9], [100, 200, 300], [2, 4, 6])
    assert lesson.cost_of_a_loss(dip, 1.0) == (30, 300, 6), "after step 10 it rose again"
    assert lesson.cost_of_a_loss(dip, 2.0) == (10, 100, 2)
    between = RankHistory([10, 20, 30], [2.0, 1.0, 1.0], [100, 100, 200], [2, 2, 4])
    assert lesson.cost_of_a_loss(between, 1.0) == (30, 200, 4), "nobody had that mean at step 20"


def test_waiting_and_averaging_are_timed_apart_on_both_ranks():
    for timed in launch(lesson.waiting_on_rank, 2, build, [share(0), share(1)], SGD, (1, 2), 4, seconds=100):
        assert list(timed) == [1, 2]
        assert all(seconds > 0 for pair in timed.values() for seconds in pair)


def test_losses_by_interval_have_a_line_and_ddp_s_band_for_each_kind():
    figure, alt = figures.losses_by_interval_figure({"mixed": {1: [1.0, 1.2, 1.1], 20: [1.5]}}, {"mixed": [0.9, 0.8]})
    (axes,) = figure.axes
    assert list(axes.lines[0].get_ydata()) == pytest.approx([1.1, 1.5])
    assert axes.patches[0].get_height() == pytest.approx(0.1)
    assert "mixed: 1.10 (1.00 to 1.20) at 1, 1.50 at 20" in alt
    assert "DDP, mixed is at 0.80 to 0.90, mean 0.85" in alt


@given(st.integers(2, 6), st.floats(0, 2))
def test_at_the_joint_minimum_the_bowls_together_are_flat(ranks, heterogeneity):
    matrices, centers = figures.bowls(ranks, heterogeneity)
    slope = np.einsum("rij,rj->i", matrices, figures.joint_minimum(matrices, centers) - centers)
    assert np.allclose(slope, 0, atol=1e-9)


def test_one_local_step_is_descent_on_the_mean_bowl():
    matrices, centers = figures.bowls(3, 1.0)
    places = figures.local_paths(1, matrices, centers, 0.3, steps=20)
    theta = np.array([-2.2, 1.4])
    for step in range(1, 21):
        theta = theta - 0.3 * np.einsum("rij,rj->ri", matrices, theta - centers).mean(0)
        assert np.allclose(places[step].mean(0), theta)


def test_with_equal_bowls_nobody_drifts():
    matrices, centers = figures.bowls(3, 1.0)
    equal_paths = figures.local_paths(10, np.tile(matrices[:1], (3, 1, 1)), np.tile(centers[:1], (3, 1)), 0.3)
    assert np.allclose(equal_paths, equal_paths[:, :1])


def test_with_many_local_steps_the_mean_ends_elsewhere():
    matrices, centers = figures.bowls(3, 1.0)
    lowest = figures.joint_minimum(matrices, centers)
    off = [
        np.linalg.norm(figures.local_paths(h, matrices, centers, 0.5, steps=2400)[-1].mean(0) - lowest)
        for h in (1, 10, 60)
    ]
    assert off[0] < 1e-6 < off[1] < off[2]


def test_corrected_steps_end_at_the_joint_minimum():
    matrices, centers = figures.bowls(3, 1.0)
    ends = figures.local_paths(20, matrices, centers, 0.3, corrected=True, steps=2400)[-1].mean(0)
    assert np.linalg.norm(ends - figures.joint_minimum(matrices, centers)) < 1e-3


def test_the_figure_to_play_with_says_how_far_the_mean_ends_from_the_minimum():
    figure, alt = figures.play_local_drift(interval=1, heterogeneity=1.0, ranks=3, rate=0.5)
    heading = figure.get_suptitle()
    assert heading.startswith("After 60 averages the mean is 0.0")
    assert "H = 1, learning rate 0.5." in alt
    assert "drift corrected" in figures.play_local_drift(corrected=True)[1]
