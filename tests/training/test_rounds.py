"""Ranks that follow plans: what each sends and where it ends; Accelerate's LocalSGD, counted."""

from functools import partial

import pytest
import torch
from torch import nn

from course_utils.distributed import LocalSGD, QuantizedMean, launch
from course_utils.training.rounds import Plan, accelerate_on_rank, train_on_rank

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
        "H = 1": Plan(SGD, 12, every=1, look=4),
        "H = 5": Plan(SGD, 12, every=5, look=4, watch=True),
        "H = 5, unfinished": Plan(SGD, 12, every=5, finish=False),
        "8 bits": Plan(SGD, 12, gradients=QuantizedMean),
        "unlike": Plan(SGD, 12, watch=True, alike=False),
        "another seed": Plan(SGD, 12, every=1, look=4, seed=1),
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
    assert found["DDP"].sent == [4 * step * (ELEMENTS + 3) for step in (4, 8, 12)]
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
