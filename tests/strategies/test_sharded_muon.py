"""Muon on shards, beside torch's own in one process with whole matrices."""

import copy
import warnings

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from course_utils.distributed import counted, launch
from course_utils.errors import CourseError
from course_utils.optim import ChainedOptimizer, hidden_matrices
from course_utils.strategies import sharded_muon
from course_utils.strategies.sharded_muon import ShardedMuon, in_rounds, rows_by_rank

pytestmark = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon since 2.9")
STEPS = 5
UNEVEN = [(7, 5), (5, 7), (2, 9), (1, 4), (8, 8)]  # rows that 2 and 3 do not divide, and fewer rows than ranks
EVEN = [(12, 8), (12, 8), (12, 8), (24, 4), (12, 30), (6, 2)]


def whole(shape, seed, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def update(optimizer, parameters, spread=lambda tensor: tensor, steps=range(STEPS)):
    """Steps with gradients that are the same in every process; on the way one matrix goes without."""
    for step in steps:
        for i, parameter in enumerate(parameters):
            parameter.grad = spread(whole(parameter.shape, 100 * step + i, parameter.dtype))
        if step == 2:
            parameters[0].grad = None
        optimizer.step()


OPTIONS = {
    "as it comes": {"lr": 0.1},
    "float64": {"lr": 0.1, "dtype": torch.float64},
    "bfloat16": {"lr": 0.1, "dtype": torch.bfloat16},
    "without Nesterov": {"lr": 0.1, "nesterov": False, "momentum": 0.5, "weight_decay": 0.0},
    "as AdamW's": {"lr": torch.tensor(0.1), "adjust_lr_fn": "match_rms_adamw"},
    "three iterations": {"lr": 0.1, "ns_steps": 3, "ns_coefficients": (2.0, -1.5, 0.5), "eps": 1.0},
}


def in_one_process(shapes, dtype=torch.float32, **options):
    parameters = [nn.Parameter(whole(shape, 50 + i, dtype)) for i, shape in enumerate(shapes)]
    optimizer = torch.optim.Muon(parameters, **options)
    update(optimizer, parameters)
    return parameters, [optimizer.state[p]["momentum_buffer"] for p in parameters]


def spread_on(mesh_shape):
    """Over all of a mesh's last dimension by rows; a mesh of two has replicas."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", mesh_shape)
    placements = [Replicate()] * (len(mesh_shape) - 1) + [Shard(0)]
    return lambda tensor: distribute_tensor(tensor, mesh, placements)


def on_shards(shapes, mesh_shape, ways):
    """By way, parameters and momentum as whole tensors; what was sent; the shapes that this rank orthogonalized."""
    spread, found, orthogonalize = spread_on(mesh_shape), {}, sharded_muon.orthogonalize
    for name, options in ways.items():
        options, shapes_here = dict(options), []
        dtype = options.pop("dtype", torch.float32)
        parameters = [nn.Parameter(spread(whole(shape, 50 + i, dtype))) for i, shape in enumerate(shapes)]
        optimizer = ShardedMuon(parameters, **options)
        sharded_muon.orthogonalize = lambda x, group, seen=shapes_here: (
            seen.append(tuple(x.shape)) or orthogonalize(x, group)
        )
        gradients = {}
        for step in range(STEPS):  # before anything is counted
            for i, p in enumerate(parameters):
                gradients[step, i] = spread(whole(p.shape, 100 * step + i, dtype))
        with counted() as ledger:
            for step in range(STEPS):
                for i, p in enumerate(parameters):
                    p.grad = None if (step, i) == (2, 0) else gradients[step, i]
                optimizer.step()
        momenta = [optimizer.state[p]["momentum_buffer"] for p in parameters]
        assert all(m.placements == p.placements for m, p in zip(momenta, parameters, strict=True))
        found[name] = (
            [p.detach().full_tensor() for p in parameters],
            [m.full_tensor() for m in momenta],
            {entry.collective for entry in ledger.entries},
            ledger.sent,
            shapes_here,
        )
    return found


MESHES = [
    pytest.param((2,), marks=pytest.mark.slow, id="2"),
    pytest.param((3,), id="3"),
    pytest.param((2, 2), marks=pytest.mark.slow, id="2 replicas of 2"),
]


@pytest.mark.parametrize("mesh_shape", MESHES)
def test_bit_equal_to_one_process_and_every_matrix_is_orthogonalized_once(mesh_shape):
    """The owner sees the same bfloat16 matrix as torch, and all else goes number by number.

    Parameters in bfloat16 are the exception. On a processor `add_` with `alpha` rounds the last few numbers of a tensor once more
    than those before, and a shard ends elsewhere: one rounding a step.
    """
    replicas = 1 if len(mesh_shape) == 1 else mesh_shape[0]
    ranks = launch(on_shards, replicas * mesh_shape[-1], UNEVEN, mesh_shape, OPTIONS)
    for name, options in OPTIONS.items():
        parameters, momenta = in_one_process(UNEVEN, **options)
        for ours, buffers, collectives, _, _ in (found[name] for found in ranks):
            assert collectives == {"all-to-all"}
            for i, shape in enumerate(UNEVEN):
                assert torch.equal(buffers[i], momenta[i]), (name, shape)
                if name == "bfloat16":
                    assert (ours[i] - parameters[i]).abs().max() <= STEPS * 2**-8 * parameters[i].abs().max()
                else:
                    assert torch.equal(ours[i], parameters[i]), (name, shape)
        done = sorted(shape for found in ranks for shape in found[name][4])
        assert done == sorted((UNEVEN * STEPS)[1:] * replicas)


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_what_is_sent_is_the_formula(ranks):
    """(N - 1)/N of each matrix there and as much back, two bytes a number; the step without the first matrix sends less."""
    found = launch(on_shards, ranks, EVEN, (ranks,), {"": {}})
    elements = STEPS * sum(r * c for r, c in EVEN) - EVEN[0][0] * EVEN[0][1]
    assert sum(rank[""][3] for rank in found) == 2 * (ranks - 1) / ranks * 2 * elements
    for shape in UNEVEN:
        sent = sum(rank[""][3] for rank in launch(on_shards, ranks, [shape], (ranks,), {"": {}}))
        rows_of_others = shape[0] - rows_by_rank(shape[0], ranks)[0]  # a matrix alone is the first rank's
        assert sent == (STEPS - 1) * 2 * 2 * rows_of_others * shape[1]


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=20), st.integers(1, 5))
def test_rounds_have_each_matrix_once_and_owners_an_equal_load(shapes, ranks):
    matrices = [(torch.empty(shape, device="meta"), number) for number, shape in enumerate(shapes)]
    rounds = in_rounds(matrices, ranks)
    assert sorted(pair[1] for owned in rounds for pair in owned if pair) == list(range(len(shapes)))
    assert {len(owned) for owned in rounds} == {ranks}
    assert len(rounds) == -(-len(shapes) // ranks)
    load = [sum(owned[rank][0].numel() for owned in rounds if owned[rank]) for rank in range(ranks)]
    assert max(load) - min(load) <= max(r * c for r, c in shapes)


def test_in_a_round_the_largest_goes_to_the_rank_that_had_the_fewest():
    matrices = [(torch.empty(size, 1), size) for size in (3, 1, 4, 2)]
    assert [[pair[1] for pair in owned] for owned in in_rounds(matrices, 2)] == [[4, 3], [1, 2]]


class Net(nn.Module):
    """Rows that 2 and 3 do not divide; three ranks have two rows of `thin` between them."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first, self.middle, self.thin, self.head = (
                nn.Linear(*sizes, dtype=torch.float64) for sizes in ((6, 7), (7, 5), (5, 2), (2, 6))
            )

    def forward(self, x):
        return self.head(torch.tanh(self.thin(torch.tanh(self.middle(torch.tanh(self.first(x)))))))


def data(share, step):
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(1000 * share + step), dtype=torch.float64)


def chained(model, muon):
    hidden, others = hidden_matrices(model)
    assert len(hidden) == 3
    return ChainedOptimizer(muon(hidden, lr=0.05), torch.optim.AdamW(others, lr=0.01))


def train(model, shares, optimizer, steps=range(STEPS)):
    for step in steps:
        for share in shares:
            (model(data(share, step)).square().mean() / len(shares)).backward()
        optimizer.step()
        optimizer.zero_grad()


def by_fsdp(mesh_shape):
    from torch.distributed.device_mesh import init_device_mesh

    warnings.simplefilter("ignore")
    names = ("replicas", "shards")[-len(mesh_shape) :]
    net = sharded(init_device_mesh("cpu", mesh_shape, mesh_dim_names=names))
    train(net, [dist.get_rank()], chained(net, ShardedMuon))
    return {name: p.full_tensor() for name, p in net.state_dict().items()}


def sharded(mesh=None):
    from torch.distributed.fsdp import fully_shard

    net = Net()
    for part in (net.first, net.middle, net.thin, net):
        fully_shard(part, mesh=mesh)
    return net


def assert_same_as_in_one_process(states, ranks, steps=STEPS):
    """Means over ranks differ in the last bits of float64. Muon casts to bfloat16 first, so its matrices do not differ at all,
    unless a number is within these bits of the middle between two bfloat16 numbers."""
    net = Net()
    train(net, range(ranks), chained(net, torch.optim.Muon), range(steps))
    hidden, _ = hidden_matrices(net)
    for name, right in net.named_parameters():
        torch.testing.assert_close(states[name], right.detach(), rtol=0, atol=1e-15, msg=name)
        assert right not in set(hidden) or torch.equal(states[name], right), name


@pytest.mark.parametrize("mesh_shape", MESHES)
def test_five_steps_of_fsdp2_chained_with_adamw_are_those_of_one_process(mesh_shape):
    ranks = torch.Size(mesh_shape).numel()
    for states in launch(by_fsdp, ranks, mesh_shape):
        assert_same_as_in_one_process(states, ranks)


def goes_on(folder, steps):
    """Some steps over six shares from what another number of ranks saved."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    warnings.simplefilter("ignore")
    net = sharded()
    optimizer = chained(net, ShardedMuon)
    if steps[0] > 0:  # before the first step `get_state_dict` would make one of its own, which AdamW counts
        model_state, state = get_state_dict(net, optimizer.optimizers)
        checkpoint.load({"model": model_state, "optimizer": state}, checkpoint_id=folder)
        set_state_dict(net, optimizer.optimizers, model_state_dict=model_state, optim_state_dict=state)
    train(net, range(dist.get_rank(), 6, dist.get_world_size()), optimizer, steps)
    model_state, state = get_state_dict(net, optimizer.optimizers)
    checkpoint.save({"model": model_state, "optimizer": state}, checkpoint_id=folder)
    assert state["state"]["thin.weight"]["momentum_buffer"].placements == net.thin.weight.placements
    return {name: p.full_tensor() for name, p in net.state_dict().items()}


@pytest.mark.slow
def test_torchs_checkpoint_carries_the_momentum_to_another_number_of_ranks(tmp_path):
    for ranks, steps in ((2, range(2)), (3, range(2, 4)), (1, range(4, 6))):
        states = launch(goes_on, ranks, str(tmp_path), steps)
    assert_same_as_in_one_process(states[0], 6, steps=6)


def test_plain_matrices_are_updated_as_by_torchs_own_and_may_take_over_its_state():
    parameters, _ = in_one_process(UNEVEN, lr=0.1)
    ours = [nn.Parameter(whole(shape, 50 + i)) for i, shape in enumerate(UNEVEN)]
    optimizer = ShardedMuon([{"params": ours[:2]}, {"params": ours[2:], "lr": 0.1}], lr=0.5)
    optimizer.param_groups[0]["lr"] = 0.1
    update(optimizer, ours)
    assert all(map(torch.equal, ours, parameters))
    theirs = torch.optim.Muon([{"params": parameters[:2]}, {"params": parameters[2:]}], lr=0.3)
    theirs.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    again = ShardedMuon([{"params": ours[:2]}, {"params": ours[2:]}])
    again.load_state_dict(copy.deepcopy(theirs.state_dict()))
    update(theirs, parameters, steps=range(5, 7))
    update(again, ours, steps=range(5, 7))
    assert all(map(torch.equal, ours, parameters))


def test_a_step_gives_the_closures_loss():
    matrix = nn.Parameter(torch.eye(3))
    optimizer = ShardedMuon([matrix])

    def closure():
        loss = matrix.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 3
    assert optimizer.step() is None


def by_columns():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    ShardedMuon([nn.Parameter(distribute_tensor(torch.ones(2, 2), init_device_mesh("cpu", (1,)), [Shard(1)]))])


def test_what_it_cannot_do_is_told_when_it_is_made(monkeypatch):
    with pytest.raises(CourseError, match=r"of shape \(3,\) to another optimizer"):
        ShardedMuon([nn.Parameter(torch.ones(3))])
    with pytest.raises(CourseError, match=r"placed as \(Shard\(dim=1\),\); shard it with `fully_shard`, by rows"):
        launch(by_columns, 1)
    with pytest.raises(ValueError, match="Learning rate"):
        ShardedMuon([nn.Parameter(torch.ones(2, 2))], lr=-1.0)
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(CourseError, match=r"has no Muon; install torch 2\.9 or later\."):
        ShardedMuon([nn.Parameter(torch.ones(2, 2))])
