"""Sharded optimizer state beside the same optimizer in one process, for optimizers that look at more than one element."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_utils import optim
from course_utils.distributed import DDP, RankError, ShardedOptimizer, counted, launch

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


def data(share, step):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * share + step))


def groups(model):
    trained = [p for p in model.parameters() if p.requires_grad]
    return [{"params": trained[:2]}, {"params": trained[2:], "weight_decay": 0.1}]


def train(model, forward, optimizer, scheduler, shares, steps):
    for step in steps:
        for share in shares:
            (forward(data(share, step)).square().mean() / len(shares)).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return [p.detach().clone() for p in model.parameters()]


def alone(kind, options, shares=(0, 1), steps=range(STEPS)):
    model = net()
    optimizer = kind(groups(model), **options)
    return train(model, model, optimizer, schedule(optimizer), shares, steps), optimizer


def schedule(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)


def on_rank(with_ddp, by):
    """Every optimizer's parameters and full state, the elements that this rank keeps, and whether gradients had differed."""
    found, rank = {}, dist.get_rank()
    for name, (kind, options) in OPTIMIZERS.items():
        model = net()
        forward = DDP(model, by=by) if with_ddp else model
        optimizer = ShardedOptimizer(groups(model), kind, by, average=not with_ddp, **options)
        values = train(model, forward, optimizer, schedule(optimizer), [rank], range(STEPS))
        found[name] = values, optimizer.state_dict(), set(map(id, optimizer.state)) <= set(map(id, own(optimizer)))
    return found


def own(optimizer):
    return [p for group in optimizer.optimizer.param_groups for p in group["params"]]


@pytest.mark.parametrize(("with_ddp", "by"), [(True, "torch"), (False, "torch"), (False, "ring")])
def test_two_ranks_are_bit_equal_to_one_optimizer_for_all(with_ddp, by):
    expected = {name: alone(*how) for name, how in OPTIMIZERS.items()}
    for found in launch(on_rank, 2, with_ddp, by):
        for name, (right, optimizer) in expected.items():
            values, state, keeps_own_only = found[name]
            assert keeps_own_only
            assert all(torch.equal(one, other) for one, other in zip(right, values, strict=True)), name
            assert_same(state, optimizer.state_dict(), name)


def assert_same(found, expected, where):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected:
            assert_same(found[key], expected[key], f"{where}, {key}")
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected), where
    elif isinstance(expected, list | tuple):
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{where}, {i}")
    else:
        assert found == expected, where


def shares():
    """Elements of state on this rank, what two steps sent, and the parameters of rank 1 before and after the first."""
    model = net(seed=dist.get_rank())
    begun = model[0].weight.detach().clone()
    optimizer = ShardedOptimizer(groups(model), torch.optim.AdamW, average=True)
    same = model[0].weight.detach().clone()
    with counted() as ledger:
        train(model, model, optimizer, schedule(optimizer), [dist.get_rank()], range(2))
    state = sum(v.numel() for entries in optimizer.state.values() for v in entries.values() if v.ndim)
    return begun, same, state, ledger.sent, ledger.frame()["calls"].to_dict()


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_keeps_its_share_and_all_send_what_zero_1_sends(ranks):
    found, model = launch(shares, ranks), net()
    used = sum(p.numel() for p in model.parameters() if p.requires_grad) - sum(
        p.numel() for p in model.never.parameters()
    )
    assert not torch.equal(found[0][0], found[1][0]), "the ranks differ before"
    assert torch.equal(found[0][1], found[1][1])
    assert sum(state for *_, state, _, _ in found) == 2 * used
    largest = max(p.numel() for p in model.parameters())
    assert max(state for *_, state, _, _ in found) <= max(2 * largest, 1.1 * 2 * used / ranks)
    from course_utils.memory import communication  # the ranks need none of it

    predicted = 2 * ranks * communication("zero1", used, ranks).bytes
    assert sum(sent for *_, sent, _ in found) == pytest.approx(predicted, rel=0.01)
    assert found[0][-1]["reduce"] == 2 * 6, "a gradient that exists, in each of two steps"


def carried_on(saved):
    """Five steps from a state that another number of ranks saved; and groups that came later."""
    model, rank = net(), dist.get_rank()
    optimizer = ShardedOptimizer(groups(model), torch.optim.AdamW, average=True)
    if saved is not None:
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), saved[0], strict=True):
                parameter.copy_(value)
        optimizer.load_state_dict(saved[1])
    ranks = dist.get_world_size()
    values = train(
        model, model, optimizer, schedule(optimizer), range(rank, 4, ranks), range(5) if saved is None else range(5, 10)
    )
    return values, optimizer.state_dict()


def test_a_run_goes_on_with_another_number_of_ranks():
    saved = launch(carried_on, 2, None)[0]
    assert_same(saved, launch(carried_on, 2, None)[1], "saved")
    twice, four, one = (launch(carried_on, ranks, saved)[0][0] for ranks in (2, 4, 1))
    for other in (four, one):
        for right, value in zip(twice, other, strict=True):
            assert (right - value).norm() <= 1e-5 * right.norm()


def odds_and_ends():
    """A group that comes later, a closure, more ranks than tensors; then a state of other groups."""
    one, two = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(4))
    optimizer = ShardedOptimizer([one], torch.optim.SGD, lr=0.5)
    optimizer.add_param_group({"params": [two], "lr": 0.25})

    def closure():
        (one.sum() + two.sum()).backward()
        return 7.0

    assert optimizer.step(closure) == 7.0
    optimizer.load_state_dict(optimizer.state_dict())
    try:
        optimizer.load_state_dict(torch.optim.SGD([one]).state_dict())
    except Exception as error:
        return one.detach(), two.detach(), repr(error)


def test_groups_may_come_later_and_a_foreign_state_is_refused():
    for one, two, error in launch(odds_and_ends, 3):
        assert torch.equal(one, torch.full((3,), 0.5))
        assert torch.equal(two, torch.full((4,), 0.75))
        assert "CourseError" in error
        assert "[1] parameters, this optimizer has [1, 1]" in error


def by_pigeon():
    ShardedOptimizer([nn.Parameter(torch.ones(2))], torch.optim.SGD, "pigeon", lr=0.1)


def test_an_unknown_way_is_named():
    with pytest.raises(RankError, match="by 'torch' or by 'ring'"):
        launch(by_pigeon, 1)


class Counting(torch.optim.SGD):
    """Steps by the number of its steps, which it keeps in the group, as schedule-free optimizers do."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            for p in (p for p in group["params"] if p.grad is not None):
                p.data.sub_(p.grad, alpha=group["lr"] / group["k"])


def counts_in_its_group():
    def trained(make):
        model = net()
        optimizer = make(model.parameters())
        train(model, model, optimizer, schedule(optimizer), [0], range(4))
        return [p.detach() for p in model.parameters()]

    ours = trained(lambda ps: ShardedOptimizer(ps, Counting, lr=0.1))
    return all(map(torch.equal, ours, trained(lambda ps: Counting(ps, lr=0.1))))


def test_what_an_optimizer_notes_in_its_group_is_kept():
    assert launch(counts_in_its_group, 2) == [True, True]


def frozen_too():
    """All parameters are handed over, most of them frozen: elements of state on this rank, and bytes sent in a step."""
    layers = [nn.Linear(100, 100).requires_grad_(False), *(nn.Linear(10, 10) for _ in range(4))]
    model = nn.ModuleList(layers)
    optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=3)
    for p in model.parameters():
        p.grad = torch.ones_like(p) if p.requires_grad else None
    with counted() as ledger:
        optimizer.step()
    return sum(v.numel() for entries in optimizer.state.values() for v in entries.values() if v.ndim), ledger.sent


def test_frozen_parameters_are_neither_shared_out_nor_sent():
    states, sent = zip(*launch(frozen_too, 2), strict=True)
    assert states == (2 * 220, 2 * 220)
    assert sum(sent) == 4 * 440


def copied():
    import copy

    copy.deepcopy(ShardedOptimizer([nn.Parameter(torch.ones(2))], torch.optim.SGD, lr=0.1))


def others():
    sides = (4, 6) if dist.get_rank() else (6, 4)
    ShardedOptimizer(nn.Linear(*sides, bias=False).parameters(), torch.optim.SGD, lr=0.1)


@pytest.mark.parametrize(
    ("work", "said"), [(copied, "cannot be copied"), (others, r"parameter 0 \(\[6, 4\] of float32")]
)
def test_what_cannot_be_shared_out_is_said(work, said):
    with pytest.raises(RankError, match=said):
        launch(work, 2, seconds=30)
