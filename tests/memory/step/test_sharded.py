"""Pretended ranks compared with real ones, which run the same step in processes that exchange bytes."""

import gc
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn
from transformers import MistralConfig

from course_utils import models
from course_utils.distributed import communication, counted, launch
from course_utils.errors import CourseError
from course_utils.memory import Recipe, Usage, dry_run, estimate
from course_utils.memory.step.workload import Workload
from course_utils.memory.trace.allocator import CpuAllocator

SIZES = {"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 4, "num_key_value_heads": 4}
OTHERS = {"head_dim": 32, "vocab_size": 2000, "num_hidden_layers": 2, "max_position_embeddings": 128}
LLAMA = models.configuration("llama-7b", **SIZES, **OTHERS)
PARAMETERS = models.parameter_bytes(models.from_configuration(LLAMA))
RANKS = 2


def recipe(stage, ranks=RANKS, **changes):
    return Recipe(batch=2, sequence=64, zero_stage=stage, ranks=ranks, **changes)


RECIPES = {
    "ZeRO-2": recipe(2),
    "ZeRO-3 in halves": recipe(3, precision="autocast"),
    "ZeRO-3, the loss by pieces": recipe(3, chunked_loss=100),  # in smaller pieces the loss is not the peak
}
PARTS = Recipe(batch=8, sequence=128, ranks=RANKS, context_parallel=RANKS, keeps_outputs=False)
RECOMPUTED_PARTS = replace(PARTS, precision="bf16", checkpointing=True)
OF_A_SEQUENCE = {
    "parts of a sequence": PARTS,
    "parts in bf16, recomputed, the loss by pieces": replace(RECOMPUTED_PARTS, chunked_loss=200),
    "parts, ZeRO-3 in halves": replace(PARTS, zero_stage=3, precision="autocast"),
}
QUICK = ("ZeRO-3 in halves", "parts, ZeRO-3 in halves")


def measured(build, step) -> tuple[int, int]:
    """On a rank: bytes at the peak of a step since before it was built, and bytes sent.

    Where another rank is late, the buffers of a collective are still in gloo's hands when the next one begins. The least of some
    steps, which every rank has seen three times, is that of a step without such a delay.
    """
    peaks, seen_by_all = Counter(), torch.zeros(1)
    while not seen_by_all and peaks.total() < 12:
        peak, sent = _measure_once(build, step)
        peaks[peak] += 1
        seen_by_all = torch.tensor(float(peaks[min(peaks)] >= 3))
        torch.distributed.all_reduce(seen_by_all, torch.distributed.ReduceOp.MIN)
    return min(peaks), sent


def _measure_once(build, step) -> tuple[int, int]:
    gc.collect()  # what was built before would else be released under way
    allocator = CpuAllocator()
    with allocator.recording():
        arguments = build()
        step(*arguments)
        with allocator.measured(), counted() as sent:
            step(*arguments)
    account = allocator.account()
    return account.at_start + account.above_start, sent.sent


def build_replica():
    from torch.nn.parallel import DistributedDataParallel

    model = models.from_configuration(LLAMA)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    return DistributedDataParallel(model), optimizer, torch.ones(2, 64, dtype=torch.int64)


def step_replica(model, optimizer, ids):
    outputs = model(input_ids=ids, labels=ids)
    outputs.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    del outputs


def on_a_rank(quick: bool) -> dict[str, tuple[int, int]]:
    recipes = RECIPES | OF_A_SEQUENCE
    workloads = {name: Workload(LLAMA, recipes[name]) for name in recipes if (name in QUICK) == quick}
    peaks = {name: measured(workload.build, workload.step) for name, workload in workloads.items()}
    return {**peaks, "DDP": measured(build_replica, step_replica), "loss": sum_of_losses(PARTS)} if quick else peaks


def sum_of_losses(recipe) -> tuple[float, int]:
    """The sum of the losses of the tokens that have a next token, and the number of these."""
    torch.manual_seed(0)
    model, _, (batch,) = Workload(LLAMA, recipe).build()
    tokens = int((batch["shift_labels"] != -100).sum()) if "shift_labels" in batch else batch["labels"][:, 1:].numel()
    return model(**batch).loss.item() * tokens, tokens


@pytest.fixture(scope="module")
def quick_ranks():
    """By recipe's name, the least of the ranks' peaks and the bytes that rank 0 sends."""
    ranks = launch(on_a_rank, RANKS, True, seconds=200)
    losses = [rank.pop("loss") for rank in ranks]
    return {**least_of(ranks), "losses": losses}


@pytest.fixture(scope="module")
def slow_ranks():
    """The same for the slow recipes."""
    return least_of(launch(on_a_rank, RANKS, False, seconds=200))


def least_of(ranks):
    return {name: (min(rank[name][0] for rank in ranks), ranks[0][name][1]) for name in ranks[0]}


@cache
def dried(recipe: Recipe) -> tuple[Usage, int]:
    """A dry run with pretended ranks, and the bytes that it sends in a step."""
    workload, sent = Workload(LLAMA, recipe), []

    def step(*arguments):
        with counted() as traffic:
            workload.step(*arguments)
        sent.append(traffic.sent)

    return dry_run(workload.build, step, recipe.device, ranks=recipe.ranks), sent[-1]


def quick_first(recipes):
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in recipes]


@pytest.mark.parametrize("name", quick_first(RECIPES))
def test_fsdp2_of_one_process_is_that_of_real_ranks(name, request):
    usage, sent = dried(RECIPES[name])
    peak, really_sent = request.getfixturevalue("quick_ranks" if name in QUICK else "slow_ranks")[name]
    assert usage.peak == pytest.approx(peak, rel=0.001)
    assert sent == really_sent
    assert usage.timeline["parameters"].iloc[0] == pytest.approx(PARAMETERS / RANKS, rel=0.01)


@pytest.mark.parametrize("name", quick_first(OF_A_SEQUENCE))
def test_part_of_a_sequence_takes_what_it_takes_on_a_real_ring(name, request):
    recipe = OF_A_SEQUENCE[name]
    usage, sent = dried(recipe)
    peak, really_sent = request.getfixturevalue("quick_ranks" if name in QUICK else "slow_ranks")[name]
    assert usage.peak == pytest.approx(peak, rel=0.01)
    assert sent == really_sent
    assert estimate(LLAMA, recipe).peak == usage.peak


def test_parts_of_a_sequence_divide_what_grows_with_it_and_nothing_else():
    expected, part = (dried(replace(PARTS, context_parallel=ranks))[0].split for ranks in (1, RANKS))
    assert part["parameters"] == expected["parameters"]
    assert part["optimizer state"] == expected["optimizer state"]
    logits_gradient = expected["backward temporaries"] / 2
    assert part["backward temporaries"] == pytest.approx(logits_gradient, rel=0.01)
    # Another attention keeps other tensors.
    assert part["activations"] == pytest.approx(expected["activations"] / 2, rel=0.15)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (models.configuration("distilbert", labels=2), "context_parallel is for causal language models"),
        (
            MistralConfig(**SIZES, num_hidden_layers=1, vocab_size=100, sliding_window=16),
            "does more than attend to all",
        ),
    ],
)
def test_attention_that_the_ring_does_not_make_is_refused(config, message):
    with pytest.raises(CourseError, match=message):
        estimate(config, replace(PARTS, sequence=64))


def test_ranks_with_parts_of_a_sequence_have_the_loss_of_one_with_the_whole(quick_ranks):
    actual, expected = map(sum, zip(*quick_ranks["losses"], strict=True)), sum_of_losses(Recipe(batch=8, sequence=128))
    assert list(actual) == pytest.approx(expected, rel=1e-5)


def test_the_model_of_ddps_buckets_is_what_real_ranks_take(quick_ranks):
    usage, _ = dried(recipe(0))
    peak, sent = quick_ranks["DDP"]
    assert usage.peak == pytest.approx(peak, rel=0.001)
    assert usage.split["buffers"] - dried(recipe(0, ranks=1))[0].split["buffers"] == PARAMETERS
    assert sent == pytest.approx(communication("ddp", PARAMETERS // 4, RANKS).bytes, rel=0.01)


def test_state_shared_out_is_seen_in_the_optimizer_within():
    def state(recipe):
        return dried(recipe)[0].split["optimizer state"]

    expected = state(recipe(0, ranks=1))
    assert state(recipe(1, ranks=4)) == pytest.approx(expected / 4, rel=0.25)  # whole tensors go to one rank or another
    assert state(recipe(3, ranks=4)) == pytest.approx(expected / 4, rel=0.01)


def test_hybrid_sharding_keeps_as_if_there_were_one_group():
    plain, hybrid = dried(recipe(3))[0], dried(recipe(3, ranks=4, replicas=2))[0]
    assert plain.split["parameters"] == hybrid.split["parameters"] == pytest.approx(PARAMETERS / 2, rel=0.01)


def test_offloading_shards_moves_them_to_the_host():
    on_device, offloaded = (dried(recipe(3, device="cuda", offload=offload))[0] for offload in (False, True))
    assert "optimizer state" not in offloaded.split
    # The host has no grain of 512 bytes.
    state = pytest.approx(on_device.split["optimizer state"], rel=0.01)
    assert offloaded.host.split["optimizer state"] == state


def refusal_within_ranks() -> str:
    try:
        dry_run(lambda: (nn.Linear(2, 2),), lambda model: None, ranks=2)
    except CourseError as error:
        return str(error)
    return ""


def test_a_real_rank_pretends_no_others():
    assert "a rank already" in launch(refusal_within_ranks, 2, seconds=100)[0]
