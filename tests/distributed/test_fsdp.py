"""Parameters, gradients and state in shards, beside one process that has everything, and beside torch's `fully_shard`."""

import warnings
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from small_net import Net, data, uses_seldom
from torch import nn

from course_utils.distributed import FSDP, RankError, counted, launch
from course_utils.techniques import checkpoint, checkpoint_by_hooks

STEPS = 10


def train(model, shares, steps=range(STEPS), seldom=True, optimizer=None, state=lambda model: model.state_dict()):
    """The states after every step; what is not used has a zero gradient, as it has inside a shard of which a part is used."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    states = []
    for step in steps:
        for share in shares:
            loss = model(data(share, step), seldom=seldom and uses_seldom(share, step)).square().mean() / len(shares)
            loss.backward()
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
        states.append({name: value.clone() for name, value in state(model).items()})
    return states


def parts(net):
    return [net.first, net.frozen, net.tied, net.last]


OURS = {
    "one unit": {},
    "parts": {"units": parts},
    "parts, ZeRO-2": {"units": parts, "reshard_after_forward": False},
    "parts, no prefetch": {"units": parts, "prefetch": False},
    "parts, ring": {"units": parts, "by": "ring"},
    "at least 50": {"units": 50},
}


def ours(net, units=None, **options):
    return FSDP(net, units(net) if callable(units) else units, **options)


def our_ways(ways, seldom):
    """By way, the states after every step, and the elements of this rank's shards and its state."""
    found = {}
    for name, options in ways.items():
        model = ours(Net(seed=dist.get_rank()), **options)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
        states = train(model, [dist.get_rank()], seldom=seldom, optimizer=optimizer, state=FSDP.full_state_dict)
        kept = sum(value.numel() for entry in optimizer.state.values() for value in entry.values() if value.ndim)
        found[name] = states, sum(p.numel() for p in model.parameters()), kept, model.gathered_bytes
    return found


def torchs():
    """The same by torch: it gathers the gradients of used parameters only, so all ranks must use the same."""
    from torch.distributed.fsdp import fully_shard

    warnings.simplefilter("ignore")
    net = Net(seed=0)
    for part in parts(net):
        fully_shard(part)
    fully_shard(net)

    def full(model):
        return {name: getattr(value, "full_tensor", lambda v=value: v)() for name, value in model.state_dict().items()}

    return train(net, [dist.get_rank()], seldom=False, state=full)


def assert_equal(expected, states, where=""):
    for step, (right, state) in enumerate(zip(expected, states, strict=True), start=1):
        assert list(state) == list(right)
        for name in right:
            assert torch.equal(state[name], right[name]), f"{where}, step {step}, {name}"


def test_two_ranks_are_bit_equal_to_one_process_that_accumulates():
    ways = {name: options for name, options in OURS.items() if name != "at least 50"}
    for found in launch(our_ways, 2, ways, True):
        for name, (states, elements, kept, gathered) in found.items():
            assert_equal(train(Net(), [0, 1]), states, name)
            assert elements < sum(p.numel() for p in Net().parameters()) / 2 + 8
            assert kept < sum(p.numel() for p in Net().parameters() if p.requires_grad) + 16
            assert gathered == 0


def test_fully_shard_ours_and_one_process_are_bit_equal():
    expected = train(Net(), [0, 1], seldom=False)
    for states, found in zip(launch(torchs, 2), launch(our_ways, 2, {"parts": OURS["parts"]}, False), strict=True):
        assert_equal(expected, states, "fully_shard")
        assert_equal(expected, found["parts"][0], "ours")


@pytest.mark.parametrize("name", ["parts", "parts, ring"])
def test_four_ranks_are_close_to_one_process(name):
    expected = train(Net(), range(4))[-1]
    for found in launch(our_ways, 4, {name: OURS[name]}, True, seconds=60):
        for key, right in expected.items():
            assert (found[name][0][-1][key] - right).norm() <= 1e-6 * right.norm(), key


def shards_and_gradients():
    """Parameters of rank 1 before and after wrapping; gradients without and with synchronization; and what that took."""
    rank = dist.get_rank()
    plain = Net(seed=rank)
    before = plain.first.weight.detach().clone()
    model = FSDP(plain, units=nn.Linear)
    start = Net()
    start.load_state_dict(model.full_state_dict())
    start(data(rank, 0)).square().mean().backward()
    with counted() as ledger:
        with model.no_sync():
            model(data(rank, 0)).square().mean().backward()
        alone = [p.grad for p in model.parameters()]
        calls = ledger.frame()["calls"].to_dict()
        model(data(rank, 1)).square().mean().backward()
    unit = next(unit for unit in model.units if unit.name == "first")
    whole = unit.flats[0].views(unit.flats[0].whole_of(unit.flats[0].shard.grad))
    never = next(unit for unit in model.units if unit.name == "never").flats[0].shard.grad
    return before, start.first.weight.detach(), start.first.weight.grad, whole[0], alone, calls, never


def test_gradients_differ_before_synchronization_and_are_their_mean_after():
    found = launch(shards_and_gradients, 2)
    (before, start, own, mean, alone, calls, never), (other_before, other_start, other_own, other_mean, *_) = found
    assert not torch.equal(before, other_before)
    assert torch.equal(start, other_start)
    assert not torch.equal(own, other_own)
    assert torch.equal(mean, other_mean)
    assert calls.keys() == {"all-gather"}
    assert alone == [None] * len(alone)
    assert never is None, "a unit that nobody used"
    truth = Net()
    truth.load_state_dict({**truth.state_dict(), "shift": torch.zeros(8)})
    for share in (0, 1):
        for step in (0, 1):
            (truth(data(share, step)).square().mean() / 2).backward()
    torch.testing.assert_close(mean, truth.first.weight.grad, rtol=1e-5, atol=1e-7)


@dataclass
class Answer:
    value: torch.Tensor


class Block(nn.Module):
    """Its output in the form asked for."""

    def __init__(self, form):
        super().__init__()
        self.linear, self.form = nn.Linear(4, 4), form

    def forward(self, x):
        y = torch.tanh(self.linear(x))
        return {
            "tensor": y,
            "tuple": (x, y),
            "dict": {"y": y},
            "object": (x.detach(), Answer(y)),
            "no gradient": y.detach(),
        }[self.form]


class Odd(nn.Module):
    """Blocks that answer in all forms, one inside another, one used twice, and one in two checkpoints."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.plain, self.pair, self.named, self.wrapped = map(Block, ("tensor", "tuple", "dict", "object"))
        self.silent, self.outer = Block("no gradient"), nn.Sequential(nn.Linear(4, 4), Block("tensor"))
        self.head = nn.Linear(4, 4)
        self.head.weight = self.plain.linear.weight

    def forward(self, x, checkpointed=lambda function, value: function(value)):
        x = checkpointed(self.outer, checkpointed(self.plain, checkpointed(self.plain, x)))
        x = self.wrapped(self.named(self.pair(x)[1])["y"])[1].value
        return self.head(x + self.silent(x))


WAYS = {
    "none": lambda function, x: function(x),
    "by hooks": checkpoint_by_hooks,
    "re-entrant": checkpoint,
    "torch's by hooks": lambda f, x: torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False),
    "torch's re-entrant": lambda f, x: torch.utils.checkpoint.checkpoint(f, x, use_reentrant=True),
}


def inputs(share):
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(share)).requires_grad_()


def oddities(reshards, by):
    """Gradients of all forms, under all checkpoints, of two forward passes to one backward, with evaluations in between."""
    found = {}
    for units in (None, Block, (Block, nn.Sequential), 20):
        for name, way in WAYS.items():
            model = FSDP(Odd(), units, reshard_after_forward=reshards, by=by)
            for _ in range(2):  # the second time the order is known
                model.zero_grad()
                with torch.no_grad():
                    model(inputs(9))
                assert model.gathered_bytes == 0, "after an evaluation"
                x = inputs(dist.get_rank())
                (model(x, checkpointed=way).square().mean() + model(2 * x).square().mean()).backward()
                assert model.gathered_bytes == 0, "after backward"
            state = {name: value.clone() for name, value in model.full_state_dict().items()}
            torch.optim.SGD(model.parameters(), lr=1.0).step()
            found[units, name] = state, model.full_state_dict(), x.grad
    return found


@pytest.mark.parametrize(("reshards", "by"), [(True, "torch"), (False, "ring")])
def test_all_forms_of_units_and_checkpoints_have_the_right_gradients(reshards, by):
    truth, grads = Odd(), []
    for share in (0, 1):
        x = inputs(share)
        ((truth(x).square().mean() + truth(2 * x).square().mean()) / 2).backward()
        grads.append(2 * x.grad)
    before = {name: value.clone() for name, value in truth.state_dict().items()}
    torch.optim.SGD([p for p in truth.parameters() if p.grad is not None], lr=1.0).step()
    for rank, found in enumerate(launch(oddities, 2, reshards, by)):
        for case, (start, end, gradient) in found.items():
            torch.testing.assert_close(gradient, grads[rank], rtol=1e-5, atol=1e-7, msg=str(case))
            for name, right in truth.state_dict().items():
                assert torch.equal(start[name], before[name])
                torch.testing.assert_close(end[name], right, rtol=1e-5, atol=1e-6, msg=f"{case}, {name}")


def runs_on(saved, steps):
    """Some steps from what another number of ranks saved, over four shares of the data."""
    model = FSDP(Net(), units=nn.Linear)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if saved is not None:
        model.load_full_state_dict(saved[0])
        model.load_full_optimizer_state(optimizer, saved[1])
    shares = range(dist.get_rank(), 4, dist.get_world_size())
    train(model, shares, steps, seldom=False, optimizer=optimizer)
    return model.full_state_dict(), model.full_optimizer_state(optimizer), sum(p.numel() for p in model.parameters())


def test_a_run_goes_on_with_another_number_of_ranks():
    saved, kept = None, []
    for start, ranks in ((0, 2), (3, 4), (6, 1)):
        *saved, elements = launch(runs_on, ranks, saved, range(start, start + 3))[0]
        kept.append(elements)
    assert kept[1] < kept[0] < kept[2]
    plain = Net()
    truth = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    expected = train(plain, range(4), range(9), seldom=False, optimizer=truth)[-1]
    for name, right in expected.items():
        torch.testing.assert_close(saved[0][name], right, rtol=1e-4, atol=1e-5, msg=name)
    for name, parameter in plain.named_parameters():
        for kind, right in truth.state.get(parameter, {}).items():
            torch.testing.assert_close(saved[1]["state"][name][kind], right, rtol=1e-4, atol=1e-6)


class Counted(nn.Module):
    """A module with a parameter, a buffer, and state that is no tensor."""

    def __init__(self, seen=0):
        super().__init__()
        self.layer, self.norm, self.seen = nn.Linear(2, 2), nn.BatchNorm1d(2), seen

    def get_extra_state(self):
        return {"seen": self.seen}

    def set_extra_state(self, state):
        self.seen = state["seen"]


def all_kinds_of_state():
    """State to go and to come; and this rank's own, whose tensors stay the ones that the module computes with."""
    torch.manual_seed(0)
    state = Counted(seen=7).state_dict()
    state["norm.running_mean"] += 3
    model = FSDP(Counted(), nn.Linear)
    model.load_full_state_dict(state)
    own = {
        name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in model.state_dict().items()
    }
    torch.nn.init.zeros_(next(model.parameters()))
    model.load_state_dict(own)
    return state, model.full_state_dict(), model.module.seen


def test_buffers_and_extra_state_go_and_come_with_the_parameters():
    for given, found, seen in launch(all_kinds_of_state, 2):
        assert list(found) == list(given)
        assert seen == found.pop("_extra_state")["seen"] == 7
        assert all(torch.equal(tensor, given[name]) for name, tensor in found.items())


def clipped(max_norm):
    model = FSDP(Net(), units=nn.Linear)
    model(data(dist.get_rank(), 0)).square().mean().backward()
    norm = model.clip_grad_norm_(max_norm)
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    return norm, model.full_state_dict()


@pytest.mark.parametrize("max_norm", [0.01, 100.0])
def test_clipping_is_that_of_the_whole_model(max_norm):
    plain = Net()
    for share in (0, 1):
        (plain(data(share, 0)).square().mean() / 2).backward()
    expected = nn.utils.clip_grad_norm_(plain.parameters(), max_norm)
    torch.optim.SGD(plain.parameters(), lr=1.0).step()
    for norm, state in launch(clipped, 2, max_norm):
        torch.testing.assert_close(norm, expected)
        torch.testing.assert_close(state, dict(plain.state_dict()), rtol=1e-5, atol=1e-6)


def in_halves(dtype):
    """Gradients of ours and of torch's in `dtype`, both as whole tensors by name; the bytes that travelled."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    warnings.simplefilter("ignore")
    x, sent = data(dist.get_rank(), 0), []
    model = FSDP(Net(), units=nn.Linear, compute_dtype=dtype)
    with counted() as ledger:
        out = model(x)
        out.float().square().mean().backward()
    sent.append(ledger.sent)
    ours = {}
    for flat in (flat for unit in model.units for flat in unit.flats if flat.shard.grad is not None):
        for member, view in zip(flat.members, flat.views(flat.whole_of(flat.shard.grad)), strict=True):
            ours[member.names[0]] = view
    net = Net()
    for part in net.modules():
        if isinstance(part, nn.Linear):
            fully_shard(part, mp_policy=MixedPrecisionPolicy(param_dtype=dtype))
    fully_shard(net, mp_policy=MixedPrecisionPolicy(param_dtype=dtype))
    net(x).float().square().mean().backward()
    theirs = {name: p.grad.full_tensor() for name, p in net.named_parameters() if p.grad is not None}
    return out.dtype, {p.dtype for p in model.parameters()}, ours, theirs, sent[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_with_float32_masters_is_that_of_fully_shard(dtype):
    used = sum(p.numel() for part in parts(Net()) for p in part.parameters())
    trained = used - sum(p.numel() for p in Net().frozen.parameters())
    for out, kept, ours, theirs, sent in launch(in_halves, 2, dtype):
        assert out == dtype
        assert kept == {torch.float32}
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert ours[name].dtype == torch.float32
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-2, atol=1e-4, msg=name)
        gathered = used + sum(p.numel() for p in Net().tied.parameters())  # once more, for its second use
        assert sent == pytest.approx(2 * (2 * gathered + trained) / 2, rel=0.02)


def gathered_ahead(prefetch):
    """Units that are there, or on their way, whenever one begins to compute, in the second of two steps."""
    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])
    model, seen = FSDP(net, nn.Linear, prefetch=prefetch), []
    for i, layer in enumerate(net):
        layer.register_forward_pre_hook(lambda *_, i=i: seen.append((i, there(model))))
        layer.register_forward_hook(
            lambda m, x, y, i=i: y.register_hook(lambda _: seen.append((i, there(model)))) and None
        )
    for _ in range(2):
        seen.clear()
        model(torch.ones(2, 4, requires_grad=True)).sum().backward()
    return seen


def there(model):
    return [unit.name for unit in model.units if any(flat.is_there for flat in unit.flats)]


def test_the_next_unit_is_on_its_way_while_one_computes_and_no_more_than_two_are_there():
    for seen in launch(gathered_ahead, 2, True):
        forward, backward = seen[:4], seen[4:]
        assert forward == [(i, [str(j) for j in (i, i + 1) if j < 4]) for i in range(4)]
        assert backward == [(i, [str(j) for j in (i - 1, i) if j >= 0]) for i in (3, 2, 1, 0)]
    for seen in launch(gathered_ahead, 2, False):
        assert [alone for _, alone in seen] == [[str(i)] for i in (0, 1, 2, 3, 3, 2, 1, 0)]


def after_a_failure():
    """A backward pass fails half-way on every rank; then one that does not."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model, fails = FSDP(net, nn.Linear), [True]

    def hook(gradient):
        if fails:
            raise ValueError("on purpose")

    def forward():
        hidden = net[0](torch.ones(2, 4))
        hidden.register_hook(hook)
        return net[2](net[1](hidden))

    net.forward = lambda x: forward()
    try:
        model(None).sum().backward()
    except ValueError:
        fails.clear()
        model.zero_grad()
    model(None).sum().backward()
    return [p.grad for p in model.parameters()], model.gathered_bytes


def test_a_backward_pass_that_failed_leaves_nothing_behind():
    alone = launch(after_a_failure, 1)[0][0]
    for rank, (gradients, gathered) in enumerate(launch(after_a_failure, 2, seconds=30)):
        assert gathered == 0
        assert len(gradients) == len(alone) == 3
        assert all(g is not None for g in gradients), rank


def other_units():
    net = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    net.forward = lambda x: net[dist.get_rank()](x)
    FSDP(net, nn.Linear)(torch.ones(2, 4)).sum().backward()


def other_units_without_backward():
    """Units of one size, each on one rank only, in a pass whose outputs nobody differentiates; then one like all others."""
    model = FSDP(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear)
    layers = model.module
    model.module.forward = lambda x: layers[dist.get_rank()](x)
    with torch.no_grad():
        model(torch.ones(1, 2))
    model.module.forward = lambda x: layers[1](layers[0](x))
    model(torch.ones(1, 2)).sum().backward()


def foreign_unit():
    model = nn.Sequential(nn.Linear(2, 2))
    FSDP(model, [model[0], nn.Linear(2, 2)])


def list_as_unit():
    model = nn.Sequential(nn.ModuleList([nn.Linear(2, 2)]))
    FSDP(model, [model[0]])


def copied():
    import copy

    copy.deepcopy(FSDP(nn.Linear(2, 2)))


def cast():
    FSDP(nn.Linear(2, 2)).to(torch.bfloat16)


def other_shapes():
    FSDP(nn.Linear(*((4, 6) if dist.get_rank() else (6, 4)), bias=False))


def no_such_unit():
    FSDP(nn.Linear(2, 2), nn.Conv2d)


def foreign_state():
    FSDP(nn.Linear(2, 2)).load_full_state_dict({"weight": torch.zeros(3, 2), "bias": torch.zeros(2)})


def foreign_buffer():
    FSDP(nn.BatchNorm1d(2)).load_full_state_dict(nn.BatchNorm1d(2).state_dict() | {"running_mean": torch.zeros(1)})


def assigned():
    model = FSDP(nn.Linear(2, 2))
    model.load_state_dict(model.state_dict(), assign=True)


def foreign_names():
    FSDP(nn.Linear(2, 2)).load_full_state_dict({"weights": torch.zeros(2, 2)})


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (other_units, "used different units"),
        (other_units_without_backward, "used different units"),
        (no_such_unit, "Linear has no such modules as units"),
        (foreign_unit, "Sequential has no such modules as units"),
        (list_as_unit, "no forward pass around which"),
        (copied, "cannot be copied"),
        (cast, "before it is sharded"),
        (other_shapes, r"weight \(\[6, 4\] of float32"),
        (foreign_state, r"weight has shape \[3, 2\]"),
        (foreign_buffer, r"running_mean has shape \[1\]"),
        (assigned, "leave assign=True out"),
        (foreign_names, r"lacks \['weight', 'bias'\]"),
    ],
)
def test_what_cannot_be_is_said(work, said):
    with pytest.raises(RankError, match=said):
        launch(work, 2, seconds=30)
