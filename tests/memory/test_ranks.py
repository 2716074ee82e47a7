"""Pretended ranks against real ones: the same step in processes that really exchange bytes."""

from statistics import median

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_utils import memory, models
from course_utils.distributed import counted, launch
from course_utils.errors import CourseError
from course_utils.memory import Recipe, dry_run
from course_utils.memory.allocator import CpuAllocator
from course_utils.memory.ranks import pretended_ranks
from course_utils.memory.workload import Workload

SIZES = {"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32}
LLAMA = models.configuration("llama-7b", **SIZES, vocab_size=2000, num_hidden_layers=4, max_position_embeddings=128)
RANKS = 2
RECIPES = {
    "ZeRO-2": Recipe("adamw", batch=2, sequence=64, zero_stage=2, ranks=RANKS),
    "ZeRO-3": Recipe("adamw", batch=2, sequence=64, zero_stage=3, ranks=RANKS),
    "ZeRO-3 in halves": Recipe("adamw", "autocast", batch=2, sequence=64, zero_stage=3, ranks=RANKS),
}


def measured(build, step) -> tuple[int, int]:
    """To be launched on a rank: bytes at the peak of a step since before it was built, and bytes sent."""
    allocator, peaks = CpuAllocator(), []
    with allocator.recording():
        built = build()
        step(*built)
        with allocator.measured():
            step(*built)
    account = allocator.account()
    peaks.append(account.at_start + account.above_start)
    with counted() as sent:
        step(*built)
    return peaks[0], sent.sent


def shard(name: str) -> tuple[int, int]:
    work = Workload(LLAMA, RECIPES[name])
    return measured(work.build, work.step)


def replicate() -> tuple[int, int]:
    def build():
        from torch.nn.parallel import DistributedDataParallel

        model = models.from_configuration(LLAMA)
        wrapped = DistributedDataParallel(model)
        return wrapped, torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False), torch.ones(2, 64, dtype=torch.int64)

    def step(model, optimizer, ids):
        outputs = model(input_ids=ids, labels=ids)
        outputs.loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return measured(build, step)


@pytest.mark.parametrize("name", RECIPES)
def test_fsdp2_of_one_process_is_that_of_real_ranks(name):
    real = launch(shard, RANKS, name, seconds=100)
    work = Workload(LLAMA, RECIPES[name])
    with_ledger: list[int] = []

    def step(*built):
        with counted() as sent:
            work.step(*built)
        with_ledger.append(sent.sent)

    usage = dry_run(work.build, step, ranks=RANKS)
    assert usage.peak == pytest.approx(median(peak for peak, _ in real), rel=0.05)
    assert with_ledger[-1] == real[0][1]
    parameters = models.parameter_bytes(models.from_configuration(LLAMA))
    assert usage.timeline["parameters"].iloc[0] == pytest.approx(parameters / RANKS, rel=0.01)


def test_the_model_of_ddps_buckets_is_what_real_ranks_take():
    peak, sent = launch(replicate, RANKS, seconds=100)[0]
    work = Workload(LLAMA, Recipe("adamw", batch=2, sequence=64, ranks=RANKS))
    usage = dry_run(work.build, work.step, ranks=RANKS)
    assert usage.peak == pytest.approx(peak, rel=0.03)
    parameters = models.parameter_bytes(models.from_configuration(LLAMA))
    assert usage.split["communication"] == parameters
    assert sent == pytest.approx(memory.communication("ddp", parameters // 4, RANKS).bytes, rel=0.01)


def test_state_shared_out_is_seen_in_the_optimizer_within():
    def state(ranks, stage):
        work = Workload(LLAMA, Recipe("adamw", batch=2, sequence=64, zero_stage=stage, ranks=ranks))
        return dry_run(work.build, work.step, ranks=ranks).split["optimizer state"]

    assert state(4, 1) == pytest.approx(state(1, 0) / 4, rel=0.25)  # whole tensors go to one rank or another
    assert state(4, 3) == pytest.approx(state(1, 0) / 4, rel=0.01)


def test_hybrid_sharding_keeps_as_if_there_were_one_group():
    one, two = (Recipe("adamw", batch=2, sequence=64, zero_stage=3, ranks=n, replicas=r) for n, r in ((2, 1), (4, 2)))
    peaks = [dry_run(w.build, w.step, ranks=r.ranks).split for r in (one, two) for w in [Workload(LLAMA, r)]]
    assert peaks[0]["parameters"] == peaks[1]["parameters"]


def test_offloading_shards_moves_them_to_the_host():
    usages = []
    for offload in (False, True):
        work = Workload(LLAMA, Recipe("adamw", batch=2, sequence=64, zero_stage=3, ranks=2, offload=offload, device="cuda"))
        usages.append(dry_run(work.build, work.step, "cuda", ranks=2))
    there, away = usages
    assert "optimizer state" not in away.split
    assert away.host.split["optimizer state"] >= there.split["optimizer state"]


def test_a_rank_is_the_one_that_is_asked_for():
    with pretended_ranks(3, rank=2):
        assert (dist.get_rank(), dist.get_world_size()) == (2, 3)
        found = [None] * 3
        dist.all_gather_object(found, "said")
        assert found == ["said"] * 3
    assert not dist.is_initialized()


def within() -> str:
    try:
        dry_run(lambda: (nn.Linear(2, 2),), lambda model: None, ranks=2)
    except CourseError as error:
        return str(error)
    return ""


def test_a_real_rank_pretends_no_others():
    assert "a rank already" in launch(within, 2, seconds=60)[0]
