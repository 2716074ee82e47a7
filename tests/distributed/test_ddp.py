"""Data parallelism by hand: several ranks on disjoint data beside one process on all of it."""

from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from small_net import Net, data, fill_with_zeros, uses_seldom
from torch import nn

from course_utils.distributed import DDP, counted, launch
from course_utils.techniques import checkpoint, checkpoint_by_hooks

STEPS = 10


def make_optimizer(module):
    return torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=1e-2)


def train(model, net, shares, no_sync=nullcontext):
    """The state of `net`, which is `model` or inside it, after every step."""
    optimizer, states = make_optimizer(model), []
    for step in range(STEPS):
        for share in shares:
            with nullcontext() if share == shares[-1] else no_sync():
                (model(data(share, step), seldom=uses_seldom(share, step)).square().mean() / len(shares)).backward()
        fill_with_zeros(model)
        optimizer.step()
        optimizer.zero_grad()
        states.append({name: value.clone() for name, value in net.state_dict().items()})
    return states


def on_rank(wrap, micro_batches=1):
    rank = dist.get_rank()
    model = wrap(Net(seed=rank))
    return train(model, model.module, range(rank * micro_batches, (rank + 1) * micro_batches), model.no_sync)


def train_in_one_process(shares):
    """One process that accumulates every rank's micro-batches."""
    net = Net(seed=0)
    return train(net, net, range(shares))


def small_buckets(module):
    return DDP(module, bucket_bytes=100)


@pytest.mark.parametrize("wrap", [DDP, small_buckets])
def test_two_ranks_are_bit_equal_to_one_process_that_accumulates(wrap):
    expected = train_in_one_process(2)
    for states in launch(on_rank, 2, wrap):
        for step, (right, state) in enumerate(zip(expected, states, strict=True), start=1):
            for name in right:
                assert torch.equal(state[name], right[name]), f"step {step}, {name}"


def test_no_sync_adds_up_and_one_backward_averages_the_sum():
    expected = train_in_one_process(4)[-1]
    for states in launch(on_rank, 2, DDP, 2):
        for name, right in expected.items():
            torch.testing.assert_close(states[-1][name], right, rtol=1e-5, atol=1e-7)


def gradients(wrap):
    """This rank's gradients, alone and averaged, and how many all-reduces ran before backward came to the first layer."""
    model, early = wrap(Net(seed=dist.get_rank())), []
    own_net = Net(seed=0)
    own_net.load_state_dict(model.module.state_dict())
    own_net(data(dist.get_rank(), 0)).square().mean().backward()
    with counted() as traffic:
        model.module.first.bias.register_hook(lambda _: early.append(len(traffic.entries)))
        with model.no_sync():
            model(data(dist.get_rank(), 0)).square().mean().backward()
        quiet = len(traffic.entries)
        single = model.module.last.bias.grad.clone()
        model.zero_grad()
        model(data(dist.get_rank(), 0)).square().mean().backward()
    return own_net.last.bias.grad, single, model.module.last.bias.grad, quiet, early[-1], traffic.sent


def test_gradients_differ_before_synchronization_and_are_their_mean_after():
    first, second = launch(gradients, 2, small_buckets)
    first_own, single, mean, quiet, early, _ = first
    other_own, other_single, other_mean, *_ = second
    assert torch.equal(first_own, single)
    assert torch.equal(other_own, other_single)
    assert not torch.equal(first_own, other_own)
    assert torch.equal(mean, other_mean)
    assert torch.equal(mean, (first_own + other_own) / 2)
    assert quiet == 0
    assert early > 0, "communication begins while backward goes on"


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_sends_the_gradients_as_a_ring_does(ranks):
    elements = sum(p.numel() for p in Net().parameters() if p.requires_grad)
    for *_, sent in launch(gradients, ranks, DDP):
        assert sent == 2 * (ranks - 1) * 4 * elements // ranks


def under_checkpoints(checkpoints):
    """Gradients of layers that are used twice, each time inside a checkpoint, and the all-reduces that it took."""
    rank, results = dist.get_rank(), {}
    for name, checkpointed in checkpoints.items():
        torch.manual_seed(0)
        model = DDP(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), bucket_bytes=1)
        hidden = data(rank, 0)[:, :4].requires_grad_()
        with counted() as traffic:
            for _ in range(2):
                hidden = checkpointed(model, hidden)
            hidden.square().mean().backward()
        results[name] = [p.grad for p in model.parameters()], len(traffic.entries)
    return results


def test_inside_checkpoints_gradients_are_the_same():
    """A re-entrant checkpoint has backward passes of its own; each ends with a mean, and the mean of means is the mean."""
    checkpoints = {"none": lambda function, x: function(x), "by hooks": checkpoint_by_hooks, "re-entrant": checkpoint}
    for results in launch(under_checkpoints, 2, checkpoints):
        expected, calls = results["none"]
        assert calls == results["by hooks"][1] < results["re-entrant"][1]
        for name in checkpoints:
            for right, gradient in zip(expected, results[name][0], strict=True):
                torch.testing.assert_close(gradient, right, rtol=1e-6, atol=1e-8)
