"""Chapter 10: each way of sharing the same training out, in real processes; what libraries do."""

import itertools
from collections import Counter
from functools import partial

import pytest

from course_utils import models
from course_utils.distributed import communication, launch
from course_utils.lessons import c10_fsdp_and_zero as lesson
from course_utils.lessons.c10_fsdp_and_zero import Activity, overlap, read_activities
from course_utils.lessons.shared import largest_difference
from course_utils.memory import Recipe, dry_run
from course_utils.memory.trace.allocator import Account

WIDTH = {"hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 4}
LLAMA = models.configuration("llama", **WIDTH, vocab_size=1000, num_hidden_layers=3)
RECIPE = Recipe(batch=1, sequence=32)
METHODS = {"DDP": "ddp", "ZeRO-1": "zero1", "ZeRO-2": "zero2", "ZeRO-3": "zero3"}
P = models.parameter_count(models.from_configuration(LLAMA))


def all_ways() -> tuple[dict, dict]:
    seen = lesson.measure_ways_on_rank([*METHODS, "FSDP2", "torch's ZeRO-1"], LLAMA, RECIPE)
    runs = {"ours": ("ZeRO-3", {}), "torch's": ("FSDP2", {})}
    return seen, lesson.trace_ways_on_rank(runs, LLAMA, RECIPE)


@pytest.fixture(scope="module")
def ranks():
    return launch(all_ways, 2, seconds=100)


def test_every_way_is_the_training_of_one_process(ranks):
    truth = lesson.train_alone(LLAMA, RECIPE, ranks=2)
    for seen, _ in ranks:
        for way in seen:
            assert largest_difference(truth, seen[way].full) < 1e-6, way
    assert ranks[0][0]["DDP"].losses != ranks[1][0]["DDP"].losses, "the ranks had the same batch"


def test_each_keeps_its_share(ranks):
    for seen, _ in ranks:
        assert [seen[way].elements["parameters"] / P for way in METHODS] == pytest.approx([1, 1, 0.5, 0.5], rel=0.01)
        assert [seen[way].elements["optimizer state"] / P for way in METHODS] == pytest.approx([2, 1, 1, 1], rel=0.05)
        assert seen["FSDP2"].kinds == ("DTensor",)


@pytest.mark.parametrize("way", METHODS)
def test_what_is_sent_is_what_the_formula_says(ranks, way):
    sent = ranks[0][0][way].traffic.sent
    assert sent == pytest.approx(communication(METHODS[way], P, 2).bytes, rel=0.01)


def peak_of_dry_run(way, config, recipe, ranks):
    """The fullest rank: `way` itself on tensors without values, as each of `ranks`, while the others are pretended."""

    def build():
        setup = lesson.WAYS[way](models.from_configuration(config))
        return setup.model, setup.optimizer, setup, lesson.batch_of(config, recipe, 0)

    def step(model, optimizer, setup, batch):
        setup.step(batch)

    return max(dry_run(build, step, ranks=ranks, rank=rank).peak for rank in range(ranks))


@pytest.mark.parametrize("way", METHODS)
def test_the_peak_of_the_fullest_rank_is_that_of_a_dry_run(ranks, way):
    highest = max(seen[way].peak for seen, _ in ranks)
    assert highest == pytest.approx(peak_of_dry_run(way, LLAMA, RECIPE, 2), rel=0.02)


@pytest.mark.skipif(lesson.loopback_sent() is None, reason="needs Linux, which counts what its loopback device sends")
@pytest.mark.parametrize(
    ("way", "more"), [("DDP", 1), ("ZeRO-1", 5 / 4), ("ZeRO-2", 3 / 2), ("ZeRO-3", 4 / 3), ("torch's ZeRO-1", 1)]
)
def test_the_loopback_device_carries_what_gloo_makes_of_the_collectives(ranks, way, more):
    """At least: another program's bytes may come on top."""
    for seen, _ in ranks:
        assert seen[way].carried > 0.995 * more * communication_of(way)


def communication_of(way):
    return {"torch's ZeRO-1": 1.5}.get(way, 1) * communication(METHODS.get(way, "ddp"), P, 2).bytes


def test_a_step_with_a_release_that_the_profiler_missed_is_left_out():
    def account(above, left):
        return Account(above, 0, {}, "a witness", left=left)

    assert lesson.usual_peak([account(14, 4), account(11, 0), account(14, 4), account(14, 4)]) == 11


def test_a_step_in_which_gloo_was_late_is_no_peak_of_the_others():
    peaks = [11, 12, 11, 12, 11]
    assert lesson.usual_peak([Account(above, 0, {}, "a witness") for above in peaks]) == 11


def larger_moment(way, config, recipe, ranks):
    return max(lesson.two_moments(way, lesson.Sizes.of(config, recipe), ranks).values())


QUICK_DRY_RUNS = {("ZeRO-3", 32, 1000), ("ZeRO-3", 256, 1000), ("DDP", 256, 1000), ("ZeRO-1", 256, 1000)}
DRY_RUNS = [
    *itertools.product(METHODS, (32, 256), (1000,), (2,), (4,)),
    *((way, *sizes) for way in METHODS for sizes in ((32, 8000, 2, 8), (256, 8000, 4, 8))),
    ("ZeRO-3", 32, 8000, 3, 2),  # the root is the largest unit
]


@pytest.mark.parametrize(
    ("way", "tokens", "vocabulary", "ranks", "blocks"),
    [pytest.param(*run, marks=() if run[:3] in QUICK_DRY_RUNS else pytest.mark.slow) for run in DRY_RUNS],
)
def test_the_larger_moment_is_the_peak_of_a_dry_run(way, tokens, vocabulary, ranks, blocks):
    config = models.configuration("llama", **WIDTH, vocab_size=vocabulary, num_hidden_layers=blocks)
    recipe = Recipe(batch=tokens // 32, sequence=32, keeps_outputs=False)
    expected = peak_of_dry_run(way, config, recipe, ranks)
    assert larger_moment(way, config, recipe, ranks) == pytest.approx(expected, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [32, 256])
@pytest.mark.parametrize("vocabulary", [1000, 8000])
def test_the_larger_moment_is_the_peak_of_real_ranks(tokens, vocabulary):
    config = models.configuration("llama", **WIDTH, vocab_size=vocabulary, num_hidden_layers=8)
    recipe = Recipe(batch=tokens // 32, sequence=32, keeps_outputs=False)
    seen = launch(lesson.measure_ways_on_rank, 2, list(METHODS), config, recipe)
    for way in METHODS:
        fullest = max(rank[way].peak for rank in seen)
        assert larger_moment(way, config, recipe, 2) == pytest.approx(fullest, rel=0.02), way


def accumulations():
    return [lesson.accumulate_on_rank(LLAMA, RECIPE, 4, **options) for options in ({}, {"sync": False})]


def builds():
    """The median of three for each device, since the profiler may miss what gloo's own thread takes and frees."""
    return {device: sorted(lesson.build_on_rank(LLAMA, device)[1] for _ in range(3))[1] for device in ("cpu", "meta")}


def test_every_micro_batch_gathers_twice_and_scatters_once_unless_told_not_to():
    default, once = launch(accumulations, 2)[0]
    units, gathers = 4, 2 * 4 - 1  # the root stays gathered between forward and backward
    assert (default.gathers, default.scatters) == (4 * gathers, 4 * units)
    assert (once.gathers, once.scatters) == (4 * gathers, units)
    assert once.peak > default.peak


def test_a_model_built_on_meta_needs_memory_for_its_shards_only():
    for device, size in launch(builds, 2)[0].items():
        assert size == pytest.approx(4 * P / 2, rel=0.05) if device == "meta" else size > 4 * P


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
    seen = launch(partial(lesson.measure_way_on_rank, mesh=(2, 2)), 4, "FSDP2", LLAMA, RECIPE, seconds=100)[0]
    assert seen.traffic.frame()["sent"]["all-reduce"] == pytest.approx(communication("ddp", P // 2, 2).bytes, rel=0.02)


def test_a_trace_is_read_into_lanes():
    microseconds = [
        ("forward", 0, 1000),
        ("aten::mm", 10, 110),
        ("aten::add", 120, 200),  # soon after: one stretch with the product
        ("aten::mm", 800, 900),
        ("c10d::_reduce_scatter_base_", 300, 305),
        ("gloo:all_reduce", 310, 910),  # what gloo makes of it
    ]
    read = read_activities([(name, start * 1e-6, end * 1e-6) for name, start, end in microseconds])
    assert [(a.what, a.computes) for a in read] == [("forward", True), ("reduce-scatter", False), ("forward", True)]
    assert read[0].start == pytest.approx(10e-6)
    assert read[0].end - read[0].start == pytest.approx(190e-6)
    assert overlap(read) == pytest.approx(100 / 600)


def test_nothing_sent_overlaps_with_nothing():
    assert overlap([Activity("forward", 0, 1)]) == 0


TINY = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
SMALL = models.configuration("llama", **TINY, vocab_size=100, num_hidden_layers=2)
SHORT = Recipe(batch=1, sequence=8)
SMALL_P = models.parameter_count(models.from_configuration(SMALL))


@pytest.mark.parametrize("name", ["accelerate_on_rank", "trainer_on_rank"])
def test_accelerate_and_trainer_fall_back_to_data_parallelism(name, tmp_path):
    arguments = [str(tmp_path)] if name == "trainer_on_rank" else []
    for seen in launch(getattr(lesson, name), 2, SMALL, SHORT, *arguments):
        assert (seen.kind, seen.wrapper) == ("DistributedType.MULTI_CPU", "DistributedDataParallel")
        assert seen.elements == SMALL_P
        sent = seen.sent.frame()["sent"]
        assert set(sent.index) <= {"all-reduce", "broadcast", "all-gather"}
        assert sent["all-reduce"] == pytest.approx(communication("ddp", SMALL_P, 2).bytes, rel=0.01)


def test_by_hand_no_operator_runs_while_a_collective_does(ranks):
    """gloo's own thread copies meanwhile, which is no computing of the step."""
    for _, traced in ranks:
        assert overlap(traced["ours"]) < 0.01
