"""The ring by hand beside torch's own collectives, and what is counted beside what a ring must send."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_utils.distributed import launch, ring
from course_utils.distributed.traffic import counted
from course_utils.errors import CourseError

SHAPES = [(12,), (3, 5), (1,), (2, 0), (64,)]


def random_tensor(shape, rank=None):
    generator = torch.Generator().manual_seed(100 + (dist.get_rank() if rank is None else rank))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def beside_torch():
    """Every shape through each collective: ours, torch's, the input, and what is counted of ours."""
    results = []
    for shape in SHAPES:
        ours, theirs, before = (random_tensor(shape) for _ in range(3))
        with counted() as reduced:
            ring.all_reduce(ours)
        dist.all_reduce(theirs)
        with counted() as scattered:
            piece = ring.reduce_scatter(before)
        with counted() as gathered:
            full = ring.all_gather(piece, before.numel())
        results.append((ours, theirs, full.view(shape), before, (reduced, scattered, gathered)))
    return results


@pytest.fixture(scope="module", params=[1, 2, 3, 4], ids="{} ranks".format)
def results(request):
    """By rank and shape."""
    return launch(beside_torch, request.param)


def test_sums_are_torchs_and_the_same_bits_on_every_rank(results):
    for of_rank in results:
        for (ours, theirs, full, *_), (first, *_) in zip(of_rank, results[0], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
            assert torch.equal(ours, first)
            assert torch.equal(full, ours)


def test_reduce_scatter_leaves_its_input_which_differs_between_ranks(results):
    for rank, of_rank in enumerate(results):
        for shape, (ours, _, _, before, _) in zip(SHAPES, of_rank, strict=True):
            assert torch.equal(before, random_tensor(shape, rank=rank))
            assert len(results) == 1 or not before.numel() or not torch.equal(before, ours)


def test_all_together_send_what_a_ring_must(results):
    for shape, of_shape in zip(SHAPES, zip(*results, strict=True), strict=True):
        for i, passes in enumerate((2, 1, 1)):
            traffics = [traffics[i] for *_, traffics in of_shape]
            messages = passes * (len(results) - 1)
            assert sum(traffic.sent for traffic in traffics) == messages * 8 * torch.Size(shape).numel()
            assert sum(traffic.received for traffic in traffics) == messages * 8 * torch.Size(shape).numel()
            assert {traffic.messages for traffic in traffics} == {messages}


def a_view_that_is_not_contiguous():
    tensor = random_tensor((4, 6)).t()
    contiguous = random_tensor((4, 6))
    ring.all_reduce(tensor)
    dist.all_reduce(contiguous)
    return torch.allclose(tensor, contiguous.t())


def test_a_view_is_summed_in_place():
    assert launch(a_view_that_is_not_contiguous, 2) == [True, True]


def torchs_own():
    """torch's collectives, DDP and FSDP2, each counted: their entries by kind, and CommDebugMode's counts of FSDP2."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.debug import CommDebugMode

    ranks, tensor = dist.get_world_size(), torch.ones(12)
    with counted() as plain:
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)
        dist.all_gather([torch.empty(12) for _ in range(ranks)], tensor)
        dist.barrier()
    wrapped = nn.parallel.DistributedDataParallel(nn.Linear(4, 3))
    with counted() as ddp:
        wrapped(torch.ones(2, 4)).sum().backward()
    sharded = fully_shard(nn.Linear(6, 6, bias=False), mesh=init_device_mesh("cpu", (ranks,)))
    with counted() as fsdp, CommDebugMode() as theirs:
        sharded(torch.ones(2, 6)).sum().backward()
    calls = {str(name).rsplit(".", 1)[-1]: count for name, count in theirs.get_comm_counts().items()}
    return [{entry.collective: entry for entry in traffic.entries} for traffic in (plain, ddp, fsdp)], calls


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_torch_sends_is_counted_too():
    ranks = 3
    for rank, ((plain, ddp, fsdp), calls) in enumerate(launch(torchs_own, ranks)):
        assert set(plain) == {"all-reduce", "broadcast", "all-gather"}
        assert plain["all-reduce"].sent == 2 * (ranks - 1) * 48 // ranks
        assert plain["all-gather"].sent == (ranks - 1) * 48
        assert plain["broadcast"].sent == 48 * (rank != ranks - 1)
        assert plain["broadcast"].received == 48 * (rank != 0)
        assert set(ddp) == {"all-reduce"}
        assert ddp["all-reduce"].sent == 2 * (ranks - 1) * 4 * 15 // ranks
        weight = 6 * 6 * 4
        assert fsdp["all-gather"].sent == fsdp["reduce-scatter"].sent == (ranks - 1) * weight // ranks
        assert sum(calls.values()) == len(fsdp)


def functional():
    """The collectives that give a new tensor, as DTensor and compiled code call them; then one that is not known."""
    from torch.distributed import _functional_collectives as collectives

    group, numbers, results = dist.group.WORLD, torch.ones(12), {}
    calls = {
        "all-reduce": lambda: collectives.all_reduce(numbers, "sum", group),
        "all-gather": lambda: collectives.all_gather_tensor(numbers, 0, group),
        "reduce-scatter": lambda: collectives.reduce_scatter_tensor(numbers, "sum", 0, group),
        "all-to-all": lambda: collectives.all_to_all_single(numbers, None, None, group),
    }
    for name, call in calls.items():
        with counted() as traffic:
            results[name] = call().sum().item()
        (entry,) = traffic.entries
        results[name] = results[name], entry.collective, entry.sent, entry.received, entry.messages
    parts = [torch.empty(12) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
    with pytest.raises(CourseError, match="torch.distributed's gather sends cannot be counted"), counted():
        dist.gather(numbers, parts)
    return results


def test_functional_collectives_are_counted_and_unknown_ones_are_refused():
    ranks = 3
    all_pieces, piece = 48 * (ranks - 1), 48 * (ranks - 1) // ranks
    for results in launch(functional, ranks):
        assert results["all-reduce"] == (12 * ranks, "all-reduce", 2 * piece, 2 * piece, 2 * (ranks - 1))
        assert results["all-gather"] == (12 * ranks, "all-gather", all_pieces, all_pieces, ranks - 1)
        assert results["reduce-scatter"] == (12, "reduce-scatter", piece, piece, ranks - 1)
        assert results["all-to-all"] == (12, "all-to-all", piece, piece, ranks - 1)


def exchanges():
    """In rows of three: as many to each rank; then 0 to rank 0, 1 to rank 1 and so on; then that in a group of the last two."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    even, uneven = torch.full((2 * ranks, 3), rank), torch.full((sum(range(ranks)), 3), rank)
    received = torch.empty(rank * ranks, 3, dtype=torch.int64)
    last = dist.new_group([ranks - 2, ranks - 1])
    with counted() as traffic:
        dist.all_to_all_single(torch.empty_like(even), even)
        dist.all_to_all_single(received, uneven, [rank] * ranks, list(range(ranks)))
        if rank >= ranks - 2:
            index = rank - (ranks - 2)
            dist.all_to_all_single(torch.empty(2 * index, 3), torch.ones(1, 3), [index] * 2, [0, 1], group=last)
    return [(entry.sent, entry.received, entry.messages) for entry in traffic.entries], received[:, 0].tolist()


def test_an_all_to_all_sends_each_part_straight_to_its_rank():
    ranks = 3
    row = 3 * 8
    for rank, (entries, received) in enumerate(launch(exchanges, ranks)):
        assert received == [sender for sender in range(ranks) for _ in range(rank)]
        assert entries[0] == (2 * row * (ranks - 1), 2 * row * (ranks - 1), ranks - 1)
        others = [other for other in range(ranks) if other != rank]
        assert entries[1] == (row * sum(others), row * rank * (ranks - 1), len([o for o in others if o]))
        last = {ranks - 2: [(12, 0, 1)], ranks - 1: [(0, 12, 0)]}
        assert entries[2:] == last.get(rank, [])


def ledgers_inside_each_other():
    with counted() as outer:
        ring.all_reduce(torch.ones(4))
        with counted() as inner:
            ring.all_reduce(torch.ones(8))
            dist.all_reduce(torch.ones(8))
    return outer.frame(), inner.frame(), outer.sent


def test_ledgers_may_lie_inside_each_other():
    outer, inner, sent = launch(ledgers_inside_each_other, 2)[0]
    assert inner.loc["all-reduce"].to_dict() == {"calls": 1, "sent": 32, "received": 32, "messages": 2}
    assert inner.loc["send"].to_dict() == {"calls": 2, "sent": 32, "received": 0, "messages": 2}
    assert outer.loc["send", "calls"] == 4
    assert sent == 80
