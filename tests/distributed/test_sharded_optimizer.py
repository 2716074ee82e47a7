"""Sharded optimizer state beside the same optimizer in one process, for optimizers that look at more than one element."""

import pytest
import torch
import torch.distributed as dist
from small_net import data
from torch import nn

from course_utils import optim
from course_utils.distributed import ShardedOptimizer, communication, counted, launch

STEPS = 10
OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, {"lr": 1e-2}),
    "SGD with momentum": (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9}),
    "Adagrad, whose state is born with it": (torch.optim.Adagrad, {"lr": 1e-2}),
    "Adafactor by hand": (optim.Adafactor, {"lr": 1e-2}),
    "torch's Adafactor": (torch.optim.Adafactor, {"lr": 1e-2}),
    "bitsandbytes' Adam8bit": (lambda *args, **options: adam8bit()(*args, **options), {"lr": 1e-2}),
}


def adam8bit():
    import bitsandbytes  # seconds, for the one test that needs it

    return bitsandbytes.optim.Adam8bit


def net(seed=0):
    """A layer large enough for 8-bit state, one used twice, a frozen one and one that is never used."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(8, 640), nn.Tanh(), nn.Linear(640, 8), nn.Tanh(), nn.Linear(8, 8))
        model.append(model[4])
        model.append(nn.Linear(8, 8).requires_grad_(False))
        model.never = nn.Linear(3, 3)
    model.forward = lambda x: nn.Sequential.forward(model[:7], x)
    return model


def groups(model):
    trainable = [p for p in model.parameters() if p.requires_grad]
    return [{"params": trainable[:2]}, {"params": trainable[2:], "weight_decay": 0.1}]


def train(model, optimizer, scheduler, shares, steps):
    for step in steps:
        for share in shares:
            (model(data(share, step, 8)).square().mean() / len(shares)).backward()
        for p in model.never.parameters():
            p.grad = torch.zeros_like(p)  # as the sharded optimizer has it
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return [p.detach().clone() for p in model.parameters()]


def train_in_one_process(kind, options):
    model = net()
    optimizer = kind(groups(model), **options)
    return train(model, optimizer, schedule(optimizer), (0, 1), range(STEPS))


def schedule(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)


def on_rank():
    """The parameters at the end, by optimizer, and whether this rank keeps state of its own share only."""
    results, rank = {}, dist.get_rank()
    for name, (kind, options) in OPTIMIZERS.items():
        model = net()
        sharded = ShardedOptimizer(groups(model), kind, **options)
        values = train(model, sharded, schedule(sharded.optimizer), [rank], range(STEPS))
        share = [p for group in sharded.optimizer.param_groups for p in group["params"]]
        results[name] = values, set(sharded.optimizer.state) <= set(share), all(map(sharded.is_own, share))
    return results


def test_two_ranks_are_bit_equal_to_one_optimizer_for_all():
    expected = {name: train_in_one_process(*optimizer) for name, optimizer in OPTIMIZERS.items()}
    for results in launch(on_rank, 2):
        for name, right in expected.items():
            values, keeps_own_only, owns = results[name]
            assert keeps_own_only
            assert owns
            assert all(map(torch.equal, right, values)), name


def shares():
    """Elements of state on this rank, what two steps sent, and a weight before and after the ranks were made equal."""
    model = net(seed=dist.get_rank())
    weight_before = model[0].weight.detach().clone()
    sharded = ShardedOptimizer(groups(model), torch.optim.AdamW)
    weight_after = model[0].weight.detach().clone()
    with counted() as traffic:
        train(model, sharded, schedule(sharded.optimizer), [dist.get_rank()], range(2))
    state = sum(v.numel() for entries in sharded.optimizer.state.values() for v in entries.values() if v.ndim)
    return weight_before, weight_after, state, traffic.sent, traffic.frame()["calls"].to_dict()


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_keeps_its_share_and_all_send_what_zero_1_sends(ranks):
    results = launch(shares, ranks)
    trainable = [p for p in net().parameters() if p.requires_grad]
    elements = sum(p.numel() for p in trainable)
    assert not torch.equal(results[0][0], results[1][0]), "the ranks differ before"
    assert torch.equal(results[0][1], results[1][1])
    assert sum(state for *_, state, _, _ in results) == 2 * elements
    largest = max(p.numel() for p in trainable)
    assert max(state for *_, state, _, _ in results) <= max(2 * largest, 1.1 * 2 * elements / ranks)
    predicted = 2 * ranks * communication("zero1", elements, ranks).bytes
    assert sum(sent for *_, sent, _ in results) == predicted
    assert results[0][-1] == {"reduce": 2 * len(trainable), "broadcast": 2 * len(trainable)}
