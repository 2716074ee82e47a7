"""Local SGD: ranks that part and meet again, beside DDP, torch's SGD as outer optimizer."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from small_net import data
from torch import nn

from course_utils.distributed import DDP, LocalSGD, OuterNesterov, communication, counted, launch
from course_utils.distributed.local_sgd import drift

STEPS = 6
momentum = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
adam = partial(torch.optim.Adam, lr=0.01)


class NetWithBuffers(nn.Module):
    """A net with a frozen layer, a buffer of numbers and one of a count."""

    def __init__(self, seed: int = 0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.frozen = nn.Linear(8, 8)
            torch.manual_seed(seed)
            self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.frozen.requires_grad_(False)
        self.register_buffer("shift", torch.zeros(8))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x):
        return self.last(torch.tanh(self.frozen(torch.tanh(self.first(x)))) + self.shift)


def trainable(net):
    return [p for p in net.parameters() if p.requires_grad]


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def run(make_optimizer, steps=STEPS, extra_tensors=lambda net: (), finish=True, **options):
    """The parameters and the drift of a rank after every step, the bytes sent, the net and the optimizer at the end."""
    net = NetWithBuffers(seed=dist.get_rank()).double()
    optimizer = make_optimizer(trainable(net))
    thetas, drifts = [], []
    with counted() as traffic:
        local = LocalSGD(optimizer, extra_tensors=extra_tensors(net), **options)
        at_start = traffic.sent
        for step in range(steps):
            net(data(dist.get_rank(), step).double()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            drifts.append(drift(trainable(net)))
            local.step()
            thetas.append(flat(trainable(net)))
        if finish:
            local.finish()
    return thetas, drifts, traffic.sent - at_start, net, optimizer.state


def run_ddp(make_optimizer):
    """The same with gradients averaged at every step."""
    with counted() as traffic:
        net = DDP(NetWithBuffers(seed=0).double())
        optimizer, thetas = make_optimizer(trainable(net)), []
        at_start = traffic.sent
        for step in range(STEPS):
            net(data(dist.get_rank(), step).double()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            thetas.append(flat(trainable(net)))
    return thetas, traffic.sent - at_start


def run_both(make_optimizer, **options):
    return run(make_optimizer, sync_every=1, **options)[0], run_ddp(make_optimizer)[0]


@pytest.mark.parametrize(("ranks", "state"), [(1, "keep"), (2, "average"), (4, "keep")])
def test_with_one_local_step_and_sgd_it_is_data_parallelism(ranks, state):
    """Also where each rank keeps its momentum: linear in the gradients, the mean of its steps is the step of the mean."""
    for ours, ddps in launch(partial(run_both, state=state), ranks, momentum):
        for step, (theta, right) in enumerate(zip(ours, ddps, strict=True), start=1):
            torch.testing.assert_close(theta, right, rtol=1e-12, atol=1e-12, msg=lambda m, s=step: f"step {s}: {m}")


def test_adam_is_not_linear_so_one_local_step_is_not_data_parallelism():
    for ours, ddps in launch(run_both, 2, adam):
        assert (ours[-1] - ddps[-1]).norm() > 1e-3 * ddps[-1].norm()


def test_ranks_differ_within_a_round_and_are_equal_after():
    first, second = launch(partial(run, momentum, steps=7, sync_every=3), 2)
    for step, (theta, other_theta) in enumerate(zip(first[0], second[0], strict=True), start=1):
        assert torch.equal(theta, other_theta) == (step % 3 == 0), f"step {step}"
    final, other_final = (flat(trainable(net)) for *_, net, _ in (first, second))
    assert torch.equal(final, other_final), "the last round of one step is averaged too"
    assert first[1] == pytest.approx(second[1]), "two ranks are equally far from their mean"
    assert first[1][0] < first[1][1] < first[1][2] > first[1][3] > 0


def at_start():
    net = NetWithBuffers(seed=dist.get_rank())
    net.shift += dist.get_rank()
    LocalSGD(momentum(trainable(net)), 1, extra_tensors=[net.shift])
    return net.state_dict()


def test_everybody_begins_with_what_rank_0_has():
    first, second = launch(at_start, 2)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(first["shift"], torch.zeros(8))


@pytest.mark.parametrize("state", ["keep", "average", "reset"])
def test_what_becomes_of_the_state(state):
    states = [list(result[4].values()) for result in launch(partial(run, adam, steps=4, sync_every=4, state=state), 2)]
    if state == "reset":
        assert states == [[], []]
    else:
        pairs = list(zip(*states, strict=True))
        assert pairs
        for first, second in pairs:
            assert torch.equal(first["exp_avg_sq"], second["exp_avg_sq"]) == (state == "average")
            assert first["step"] == second["step"] == 4


def outer_run(outer):
    """Three rounds of ours, and the same with torch's SGD given (last average − mean) as a gradient."""
    ours = run(momentum, sync_every=2, outer_optimizer=outer)[0][1::2]
    net = NetWithBuffers(seed=0).double()
    optimizer, rights = momentum(trainable(net)), []
    anchors = [p.detach().clone().requires_grad_() for p in trainable(net)]
    sgd = torch.optim.SGD(anchors, lr=outer.lr, momentum=outer.momentum, nesterov=outer.momentum > 0)
    for step in range(STEPS):
        net(data(dist.get_rank(), step).double()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 2:
            for p, anchor in zip(trainable(net), anchors, strict=True):
                dist.all_reduce(p.data)
                anchor.grad = anchor.detach() - p.data / dist.get_world_size()
            sgd.step()
            for p, anchor in zip(trainable(net), anchors, strict=True):
                p.data.copy_(anchor.data)
            rights.append(flat(anchors))
    return ours, rights


@pytest.mark.parametrize(
    "outer", [OuterNesterov(), OuterNesterov(lr=0.5, momentum=0)], ids=["the paper's", "no momentum"]
)
def test_outer_steps_are_those_of_torchs_nesterov_on_outer_gradients(outer):
    for ours, rights in launch(outer_run, 2, outer):
        for ours_, right in zip(ours, rights, strict=True):
            torch.testing.assert_close(ours_, right, rtol=1e-12, atol=1e-12)


def test_a_rank_sends_an_hth_of_what_data_parallelism_sends():
    ranks, interval = 4, 3
    sent = launch(partial(run, momentum, sync_every=interval), ranks)[0][2]
    elements = sum(p.numel() for p in trainable(NetWithBuffers()))
    predicted = communication("local-sgd", elements, ranks, sync_every=interval, parameter_bytes=8)
    assert sent == pytest.approx(STEPS * predicted.bytes, rel=0.01)
    assert sent == launch(run_ddp, ranks, momentum)[0][1] / interval


def test_averaged_state_is_sent_too():
    sent = launch(partial(run, momentum, sync_every=3), 2)[0][2]
    assert launch(partial(run, momentum, sync_every=3, state="average"), 2)[0][2] == 2 * sent


def post_local():
    net = NetWithBuffers().double()
    optimizer, averaged = momentum(trainable(net)), []
    local = LocalSGD(optimizer, sync_every=1)
    for step in range(6):
        local.sync_every = 1 if step < 2 else 4
        averaged.append(local.step())
    return averaged


def test_the_number_of_steps_may_change_on_the_way():
    assert launch(post_local, 1) == [[True, True, False, False, False, True]]
