"""Local SGD: ranks that part and meet again, beside DDP, torch's SGD as outer optimizer, and Accelerate's LocalSGD."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_utils.distributed import DDP, LocalSGD, Outer, RankError, counted, launch
from course_utils.distributed.local_sgd import drift
from course_utils.distributed.torchrun import announce
from course_utils.errors import CourseError
from course_utils.memory import communication

STEPS = 6
momentum = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
adam = partial(torch.optim.Adam, lr=0.01)


class Net(nn.Module):
    """With a frozen layer, a buffer of numbers and one of a count."""

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


def data(step):
    draw = torch.Generator().manual_seed(1000 * dist.get_rank() + step)
    return torch.randn(5, 6, generator=draw, dtype=torch.float64)


def trained(net):
    return [p for p in net.parameters() if p.requires_grad]


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def run(optimizer_of, steps=STEPS, also=lambda net: (), finish=True, **options):
    """On a rank: the parameters and the drift after every step, the bytes sent, the net and the optimizer at the end."""
    net = Net(seed=dist.get_rank()).double()
    optimizer = optimizer_of(trained(net))
    thetas, drifts = [], []
    with counted() as ledger:
        local = LocalSGD(optimizer, also=also(net), **options)
        at_start = ledger.sent
        for step in range(steps):
            net(data(step)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            drifts.append(drift(trained(net)))
            local.step()
            thetas.append(flat(trained(net)))
        if finish:
            local.finish()
    return thetas, drifts, ledger.sent - at_start, net, optimizer.state


def run_ddp(optimizer_of):
    """The same with gradients averaged at every step."""
    with counted() as ledger:
        net = DDP(Net(seed=0).double())
        optimizer, thetas = optimizer_of(trained(net)), []
        at_start = ledger.sent
        for step in range(STEPS):
            net(data(step)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            thetas.append(flat(trained(net)))
    return thetas, ledger.sent - at_start


def both(optimizer_of, **options):
    return run(optimizer_of, every=1, **options)[0], run_ddp(optimizer_of)[0]


@pytest.mark.parametrize(("ranks", "by", "state"), [(1, "torch", "keep"), (2, "torch", "average"), (4, "ring", "keep")])
def test_with_one_local_step_and_sgd_it_is_data_parallelism(ranks, by, state):
    """Also where each rank keeps its momentum: linear in the gradients, the mean of its steps is the step of the mean."""
    for ours, ddps in launch(partial(both, by=by, state=state), ranks, momentum):
        for step, (theta, right) in enumerate(zip(ours, ddps, strict=True), start=1):
            torch.testing.assert_close(theta, right, rtol=1e-12, atol=1e-12, msg=lambda m, s=step: f"step {s}: {m}")


def test_adam_is_not_linear_so_one_local_step_is_not_data_parallelism():
    for ours, ddps in launch(both, 2, adam):
        assert (ours[-1] - ddps[-1]).norm() > 1e-3 * ddps[-1].norm()


@pytest.mark.parametrize("by", ["torch", "ring"])
def test_ranks_differ_within_a_round_and_are_equal_after(by):
    one, other = launch(partial(run, momentum, steps=7, every=3, by=by), 2)
    for step, (mine, yours) in enumerate(zip(one[0], other[0], strict=True), start=1):
        assert torch.equal(mine, yours) == (step % 3 == 0), f"step {step}"
    assert torch.equal(flat(trained(one[3])), flat(trained(other[3]))), "the last round of one step is averaged too"
    assert one[1] == pytest.approx(other[1]), "two ranks are equally far from their mean"
    assert one[1][0] < one[1][1] < one[1][2] > one[1][3] > 0


def test_unfinished_ranks_stay_apart():
    one, other = launch(partial(run, momentum, steps=7, every=3, finish=False), 2)
    assert not torch.equal(flat(trained(one[3])), flat(trained(other[3])))


def at_start():
    states = {}
    for way in ("optimizer", "and buffers", "module"):
        net = Net(seed=dist.get_rank())
        for buffer in net.buffers():
            buffer += dist.get_rank()
        optimizer = momentum(trained(net))
        LocalSGD(net if way == "module" else optimizer, 1, also=net.buffers() if way == "and buffers" else ())
        states[way] = net.state_dict()
    return states


def test_everybody_begins_with_what_rank_0_has():
    one, other = launch(at_start, 2)
    trains = {"first.weight", "first.bias", "last.weight", "last.bias"}
    everything = set(one["module"])
    for way, alike in {"optimizer": trains, "and buffers": trains | {"shift"}, "module": everything}.items():
        equal = {name for name, value in one[way].items() if torch.equal(value, other[way][name])}
        assert equal == alike | {"frozen.weight", "frozen.bias"}, way


@pytest.mark.parametrize("state", ["keep", "average", "reset"])
def test_what_becomes_of_the_state(state):
    states = [list(result[4].values()) for result in launch(partial(run, adam, steps=4, every=4, state=state), 2)]
    if state == "reset":
        assert states == [[], []]
    else:
        pairs = list(zip(*states, strict=True))
        assert pairs
        for one, other in pairs:
            assert torch.equal(one["exp_avg_sq"], other["exp_avg_sq"]) == (state == "average")
            assert one["step"] == other["step"] == 4


def outer_run(outer):
    """Three rounds of ours, and the same with torch's SGD given (last average − mean) as a gradient."""
    ours = run(momentum, every=2, outer=outer)[0][1::2]
    net = Net(seed=0).double()
    optimizer, rights = momentum(trained(net)), []
    anchors = [p.detach().clone().requires_grad_() for p in trained(net)]
    sgd = torch.optim.SGD(anchors, lr=outer.rate, momentum=outer.momentum, nesterov=outer.momentum > 0)
    for step in range(STEPS):
        net(data(step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 2:
            for p, anchor in zip(trained(net), anchors, strict=True):
                dist.all_reduce(p.data)
                anchor.grad = anchor.detach() - p.data / dist.get_world_size()
            sgd.step()
            for p, anchor in zip(trained(net), anchors, strict=True):
                p.data.copy_(anchor.data)
            rights.append(flat(anchors))
    return ours, rights


@pytest.mark.parametrize("outer", [Outer(), Outer(rate=0.5, momentum=0)], ids=["the paper's", "no momentum"])
def test_outer_steps_are_those_of_torchs_nesterov_on_outer_gradients(outer):
    for ours, rights in launch(outer_run, 2, outer):
        for ours_, right in zip(ours, rights, strict=True):
            torch.testing.assert_close(ours_, right, rtol=1e-12, atol=1e-12)


def test_an_outer_rate_of_one_without_momentum_is_plain_averaging():
    plain = launch(partial(run, momentum, every=3), 2)[0][0]
    outer = launch(partial(run, momentum, every=3, outer=Outer(rate=1, momentum=0)), 2)[0][0]
    for step, (theta, right) in enumerate(zip(outer, plain, strict=True), start=1):
        torch.testing.assert_close(theta, right, rtol=1e-12, atol=1e-12, msg=lambda m, s=step: f"step {s}: {m}")


@pytest.mark.parametrize(("ranks", "by"), [(2, "ring"), (4, "torch")])
def test_a_rank_sends_an_hth_of_what_data_parallelism_sends(ranks, by):
    every = 3
    sent = launch(partial(run, momentum, every=every, by=by), ranks)[0][2]
    elements = sum(p.numel() for p in trained(Net()))
    predicted = communication("local-sgd", elements, ranks, every=every, parameter_bytes=8)
    assert sent == pytest.approx(STEPS * predicted.bytes, rel=0.01)
    # DDP adds one number for each tensor, which says whether a rank used it.
    assert sent == pytest.approx(launch(run_ddp, ranks, momentum)[0][1] / every, rel=0.05)


def test_averaged_state_is_sent_too():
    thin = launch(partial(run, momentum, every=3), 2)[0][2]
    assert launch(partial(run, momentum, every=3, state="average"), 2)[0][2] == 2 * thin


def post_local():
    net = Net().double()
    optimizer, averaged = momentum(trained(net)), []
    local = LocalSGD(optimizer, every=1)
    for step in range(6):
        local.every = 1 if step < 2 else 4
        averaged.append(local.step())
    return averaged


def test_the_number_of_steps_may_change_on_the_way():
    assert launch(post_local, 1) == [[True, True, False, False, False, True]]


def resumed():
    """Ten steps at once, and with everything saved and loaded after five, in the middle of a round."""
    ends = []
    for cut in (None, 5):
        net = Net().double()
        optimizer = momentum(trained(net))
        local = LocalSGD(optimizer, every=4, outer=Outer())
        for step in range(10):
            if step == cut:
                theta, saved = net.state_dict(), local.state_dict()
                again = LocalSGD(optimizer, every=4, outer=Outer())
                again.load_state_dict({**saved, "start": [t.clone() for t in saved["start"]]})
                net.load_state_dict(theta)
                local = again
            net(data(step)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            local.step()
        ends.append(flat(trained(net)))
    return ends


def test_a_round_goes_on_where_it_was_saved():
    for whole, cut in launch(resumed, 1):
        assert torch.equal(whole, cut)


def accelerates(every):
    """Accelerate's on this rank, with the same data."""
    from accelerate import Accelerator
    from accelerate.local_sgd import LocalSGD as Theirs

    announce()
    accelerator = Accelerator(cpu=True)
    net = Net(seed=0).double()
    net, optimizer = accelerator.prepare(net, momentum(trained(net)))
    with Theirs(accelerator, net, every) as local:
        for step in range(STEPS + 1):
            accelerator.backward(net(data(step)).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            local.step()
    return flat(trained(net))


def test_accelerates_local_sgd_ends_at_the_same_parameters():
    theirs = launch(accelerates, 2, 3, seconds=60)
    ours = [flat(trained(result[3])) for result in launch(partial(run, momentum, steps=STEPS + 1, every=3), 2)]
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def one_rank_used_it():
    net = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    optimizer = momentum(net.parameters())
    local = LocalSGD(optimizer, every=1, state="average")
    net[dist.get_rank()](torch.ones(1, 2)).sum().backward()
    optimizer.step()
    local.step()


def eight_bit_state():
    p = nn.Parameter(torch.ones(2))
    optimizer = momentum([p])
    optimizer.state[p]["codes"] = torch.ones(2, dtype=torch.uint8)
    LocalSGD(optimizer, every=1, state="average").step()


def of_another():
    LocalSGD(nn.Linear(2, 2), 1, outer=Outer()).load_state_dict(LocalSGD(nn.Linear(2, 2), 1).state_dict())


def made(*arguments, **options):
    return lambda: LocalSGD(nn.Linear(2, 2), *arguments, **options)


REFUSED = {
    "nothing to average": lambda: LocalSGD(nn.Linear(2, 2).requires_grad_(False), 1),
    "every 0 steps": made(0),
    "every 2.0 steps": made(2.0),
    "keep, average, reset, not 'melt'": made(1, state="melt"),
    "give LocalSGD the optimizer": made(1, state="reset"),
    "by 'torch' or by 'ring'": made(1, by="pigeon"),
    "8-bit codes have no mean": eight_bit_state,
    "another model's": of_another,
    "an outer step with rate=0": lambda: Outer(rate=0),
    "momentum=1 does not converge": lambda: Outer(momentum=1),
}


def refusals():
    found = {}
    for expected, work in REFUSED.items():
        try:
            work()
        except CourseError as error:
            found[expected] = str(error)
    return found


def test_what_cannot_be_is_said():
    said = launch(refusals, 1)[0]
    for expected in REFUSED:
        assert expected.lower() in said[expected].lower()


def listed_twice():
    parameter = nn.Parameter(torch.full((1,), float(dist.get_rank())))
    local = LocalSGD([parameter, parameter], 1, outer=Outer(rate=1.0, momentum=0.0))
    parameter.data += dist.get_rank()
    local.step()
    return parameter.item()


def test_a_parameter_that_is_listed_twice_is_averaged_once():
    assert launch(listed_twice, 2) == [0.5, 0.5]


def test_a_state_that_one_rank_lacks_is_refused_on_all():
    with pytest.raises(RankError, match="optimizer state for other parameters"):
        launch(one_rank_used_it, 2, seconds=30)
