"""Parameters, gradients and state in shards, beside one process that has everything; halves beside torch's."""

import warnings

import pytest
import torch
import torch.distributed as dist
from small_net import data
from torch import nn

from course_utils.distributed import FSDP, counted, launch
from course_utils.techniques import checkpoint_by_hooks

STEPS = 5


class TiedNet(nn.Module):
    """A weight tied inside the root, sizes that no number of ranks divides, and a buffer."""

    def __init__(self, seed: int = 0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.first, self.middle, self.last = nn.Linear(6, 7), nn.Linear(7, 7), nn.Linear(7, 6, bias=False)
            self.head = nn.Linear(7, 6)
        self.head.weight = self.last.weight
        self.register_buffer("shift", torch.full((7,), float(seed)))

    def forward(self, x):
        hidden = torch.tanh(self.middle(torch.tanh(self.first(x)))) + self.shift
        return self.last(hidden) + self.head(hidden)


def parts(net):
    return [net.first, net.middle]


def train(model, shares, state=lambda model: model.state_dict()):
    """The states after every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    states = []
    for step in range(STEPS):
        for share in shares:
            (model(data(share, step)).square().mean() / len(shares)).backward()
        optimizer.step()
        optimizer.zero_grad()
        states.append({name: value.clone() for name, value in state(model).items()})
    return states


def gathered(model):
    return sum(unit.full_param.untyped_storage().nbytes() for unit in model.units)


OURS = {
    "one unit": {},
    "parts": {"units": parts},
    "parts, ZeRO-2": {"units": parts, "reshard_after_forward": False},
    "one inside another": {"units": lambda net: [net.middle, net]},
}


def train_sharded(cases):
    """The states after every step by way, the elements of this rank's shards, and the bytes gathered at the end."""
    results = {}
    for name, options in cases.items():
        net = TiedNet(seed=dist.get_rank())
        model = FSDP(net, **{key: value(net) if callable(value) else value for key, value in options.items()})
        states = train(model, [dist.get_rank()], state=FSDP.full_state_dict)
        results[name] = states, sum(p.numel() for p in model.parameters()), gathered(model)
    return results


def assert_equal(expected, states, label=""):
    for step, (right, state) in enumerate(zip(expected, states, strict=True), start=1):
        assert list(state) == list(right)
        for name in right:
            assert torch.equal(state[name], right[name]), f"{label}, step {step}, {name}"


def test_two_ranks_are_bit_equal_to_one_process_that_accumulates():
    expected = train(TiedNet(), [0, 1])
    for results in launch(train_sharded, 2, OURS):
        for name, (states, elements, left) in results.items():
            assert_equal(expected, states, name)
            assert elements <= sum(p.numel() for p in TiedNet().parameters()) / 2 + 3
            assert left == 0


class Block(nn.Module):
    """Its output in the form asked for."""

    def __init__(self, form):
        super().__init__()
        self.linear, self.form = nn.Linear(4, 4), form

    def forward(self, x):
        y = torch.tanh(self.linear(x))
        return {"tensor": y, "tuple": (x.detach(), y), "dict": {"y": y}, "no gradient": y.detach()}[self.form]


class Odd(nn.Module):
    """Blocks that answer in all forms, one inside another, one used twice, and one in two checkpoints."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.plain, self.pair, self.in_dict, self.silent = map(Block, ("tensor", "tuple", "dict", "no gradient"))
        self.outer, self.head = nn.Sequential(Block("tensor"), nn.Linear(4, 4)), nn.Linear(4, 4)

    def forward(self, x, checkpointed=lambda function, value: function(value)):
        x = checkpointed(self.outer, checkpointed(self.plain, checkpointed(self.plain, x)))
        x = self.in_dict(self.pair(x)[1])["y"]
        return self.head(x + self.silent(x))


CHECKPOINTS = {
    "none": lambda function, x: function(x),
    "by hooks": checkpoint_by_hooks,
    "torch's by hooks": lambda f, x: torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False),
}


def inputs(share):
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(share)).requires_grad_()


def oddities(reshards):
    """The state after a step, under all checkpoints, and the input's gradient; with evaluations in between."""
    results = {}
    for units in ((), (Block,), (Block, nn.Sequential)):
        for name, checkpoint in CHECKPOINTS.items():
            net = Odd()
            inner_first = [m for kind in units for m in net.modules() if isinstance(m, kind)]
            model = FSDP(net, inner_first, reshard_after_forward=reshards)
            for _ in range(2):
                model.zero_grad()
                with torch.no_grad():
                    model(inputs(9))
                assert gathered(model) == 0, "after an evaluation"
                x = inputs(dist.get_rank())
                model(x, checkpointed=checkpoint).square().mean().backward()
                assert gathered(model) == 0 or not reshards, "after backward"
            torch.optim.SGD(model.parameters(), lr=1.0).step()
            results[units, name] = model.full_state_dict(), x.grad
    return results


@pytest.mark.parametrize("reshards", [True, False])
def test_all_forms_of_units_and_checkpoints_have_the_right_gradients(reshards):
    truth, grads = Odd(), []
    for share in (0, 1):
        x = inputs(share)
        (truth(x).square().mean() / 2).backward()
        grads.append(2 * x.grad)
    torch.optim.SGD([p for p in truth.parameters() if p.grad is not None], lr=1.0).step()
    for rank, results in enumerate(launch(oddities, 2, reshards)):
        for case, (state, gradient) in results.items():
            torch.testing.assert_close(gradient, grads[rank], rtol=1e-5, atol=1e-7, msg=str(case))
            for name, right in truth.state_dict().items():
                torch.testing.assert_close(state[name], right, rtol=1e-5, atol=1e-6, msg=f"{case}, {name}")


def in_halves(dtype):
    """Gradients of ours and of torch's in `dtype`, both as whole tensors by name; the bytes that travelled."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    model = FSDP(nets[0], [nets[0][0], nets[0][2]], compute_dtype=dtype)
    with counted() as traffic:
        out = model(data(dist.get_rank(), 0))
        out.float().square().mean().backward()
    for part in (nets[1][0], nets[1][2]):
        fully_shard(part, mp_policy=MixedPrecisionPolicy(param_dtype=dtype))
    fully_shard(nets[1], mp_policy=MixedPrecisionPolicy(param_dtype=dtype))
    nets[1](data(dist.get_rank(), 0)).float().square().mean().backward()
    ours = model.gather_by_name([shard.grad for shard in model.shards])
    theirs = {name: p.grad.full_tensor() for name, p in nets[1].named_parameters()}
    return out.dtype, {p.dtype for p in model.parameters()}, ours, theirs, traffic.sent


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_with_float32_masters_is_that_of_fully_shard(dtype):
    for out, shard_types, ours, theirs, sent in launch(in_halves, 2, dtype):
        assert out == dtype
        assert shard_types == {torch.float32}
        for name, right in theirs.items():
            assert ours[name].dtype == torch.float32
            torch.testing.assert_close(ours[name], right, rtol=1e-2, atol=1e-4, msg=name)
        assert sent == 3 * 2 * (6 * 8 + 8 + 8 * 6 + 6) / 2
