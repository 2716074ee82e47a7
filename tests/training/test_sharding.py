"""Each way of sharing the same training out, in real processes: the truth, the shares, the bytes, the timeline."""

from collections import Counter
from functools import partial

import pytest
import torch

from course_utils import memory, models
from course_utils.distributed import launch
from course_utils.memory import Recipe
from course_utils.training import sharding
from course_utils.training.sharded_trace import Activity, overlap, read_activities

WIDTH = {"hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 4}
LLAMA = models.configuration("llama", **WIDTH, vocab_size=1000, num_hidden_layers=8)
RECIPE = Recipe(batch=1, sequence=32)
METHODS = {"DDP": "ddp", "ZeRO-1": "zero1", "ZeRO-2": "zero2", "ZeRO-3": "zero3"}
P = models.parameter_count(models.from_configuration(LLAMA))


def all_ways() -> tuple[dict, dict]:
    seen = sharding.share_each([*METHODS, "FSDP2"], LLAMA, RECIPE)
    runs = {"ours": ("ZeRO-3", {}), "torch's": ("FSDP2", {})}
    return seen, sharding.trace_each(runs, LLAMA, RECIPE)


@pytest.fixture(scope="module")
def ranks():
    return launch(all_ways, 2, seconds=100)


def test_every_way_is_the_training_of_one_process(ranks):
    truth = sharding.train_alone(LLAMA, RECIPE, ranks=2)
    for seen, _ in ranks:
        for way in seen:
            assert sharding.largest_difference(truth, seen[way].whole) < 1e-6, way
    assert ranks[0][0]["DDP"].losses != ranks[1][0]["DDP"].losses, "the ranks had the same batch"


def test_each_keeps_its_share(ranks):
    for seen, _ in ranks:
        assert [seen[way].kept["parameters"] / P for way in METHODS] == pytest.approx([1, 1, 0.5, 0.5], rel=0.01)
        assert [seen[way].kept["optimizer state"] / P for way in METHODS] == pytest.approx([2, 1, 1, 1], rel=0.05)
        assert seen["FSDP2"].kinds == ("DTensor",)


@pytest.mark.parametrize("way", METHODS)
def test_what_is_sent_is_what_the_formula_says(ranks, way):
    sent = ranks[0][0][way].traffic.sent
    assert sent == pytest.approx(memory.communication(METHODS[way], P, 2).bytes, rel=0.01)


@pytest.mark.parametrize("way", METHODS)
def test_the_peak_of_a_rank_is_the_predicted_one(ranks, way):
    measured = max(seen[way].peak for seen, _ in ranks)
    assert measured == pytest.approx(sharding.predicted_peak(way, LLAMA, RECIPE, 2), rel=0.05)


def test_what_stays_gathered_is_seen(ranks):
    assert ranks[0][0]["ZeRO-2"].peak - ranks[0][0]["ZeRO-3"].peak > P  # a good part of 4P bytes


@pytest.mark.parametrize("name", ["ours", "torch's"])
def test_the_timeline_has_every_collective_of_the_ledger(ranks, name):
    seen, traced = ranks[0]
    way = {"ours": "ZeRO-3", "torch's": "FSDP2"}[name]
    drawn = Counter(activity.what for activity in traced[name] if not activity.computes)
    counted = seen[way].traffic.frame()["calls"]
    for kind in ("all-gather", "reduce-scatter"):
        assert drawn[kind] == counted[kind]
    assert {"forward", "backward", "update"} <= {a.what for a in traced[name] if a.computes}


@pytest.mark.slow
def test_hybrid_sharding_sends_shards_between_the_groups():
    seen = launch(partial(sharding.share, mesh=(2, 2)), 4, "FSDP2", LLAMA, RECIPE, seconds=100)[0]
    assert seen.traffic.frame()["sent"]["all-reduce"] == pytest.approx(
        memory.communication("ddp", P // 2, 2).bytes, rel=0.02
    )


def test_an_offloaded_step_is_a_step():
    model, plain = (models.from_configuration(LLAMA) for _ in range(2))
    batch, host = sharding.batch_of(LLAMA, RECIPE, 0), [p.detach().clone().requires_grad_() for p in model.parameters()]
    optimizer, plain_optimizer = sharding.adamw(host), sharding.adamw(plain.parameters())
    for _ in range(2):
        sharding.offloaded_step(model, host, optimizer, batch)
        plain(**batch).loss.backward()
        plain_optimizer.step()
        plain_optimizer.zero_grad()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.grad is None


def event(name: str, start: float, length: float, category: str = "cpu_op") -> dict:
    return {"ph": "X", "name": name, "ts": start, "dur": length, "cat": category}


def test_a_trace_is_read_into_lanes():
    events = [
        event("forward", 0, 1000, "user_annotation"),
        event("aten::mm", 10, 100),
        event("aten::add", 120, 80),  # soon after: one stretch with the product
        event("aten::mm", 800, 100),
        event("c10d::_reduce_scatter_base_", 300, 5),
        event("gloo:all_reduce", 310, 600, "user_annotation"),  # what gloo makes of it
    ]
    read = read_activities({"traceEvents": events, "baseTimeNanoseconds": 1_000_000})
    assert [(a.what, a.computes) for a in read] == [("forward", True), ("reduce-scatter", False), ("forward", True)]
    assert read[0].start == pytest.approx(1.01e-3)
    assert read[0].seconds == pytest.approx(190e-6)
    assert overlap(read) == pytest.approx(100 / 600)


def test_nothing_sent_overlaps_with_nothing():
    assert overlap([Activity("forward", 0, 1, True)]) == 0
