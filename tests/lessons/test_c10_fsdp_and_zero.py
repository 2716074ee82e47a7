"""Chapter 10: the same training by each strategy, in real processes."""

import itertools
from functools import partial

import pytest

from course_utils import models
from course_utils.distributed import communication, launch
from course_utils.lessons import c10_fsdp_and_zero as lesson
from course_utils.lessons.shared import largest_difference
from course_utils.memory import Recipe, dry_run
from course_utils.memory.trace.allocator import Account

WIDTH = {"hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 4}
LLAMA = models.configuration("llama", **WIDTH, vocab_size=1000, num_hidden_layers=3)
RECIPE = Recipe(batch=1, sequence=32)
METHODS = {"DDP": "ddp", "ZeRO-1": "zero1", "ZeRO-2": "zero2", "ZeRO-3": "zero3"}
P = models.parameter_count(models.from_configuration(LLAMA))
CARRIED = {"DDP": 1, "ZeRO-1": 5 / 4, "ZeRO-2": 3 / 2, "ZeRO-3": 4 / 3, "torch's ZeRO-1": 3 / 2}


@pytest.fixture(scope="module")
def ranks():
    return launch(lesson.measure_all_on_rank, 2, [*METHODS, "FSDP2", "torch's ZeRO-1"], LLAMA, RECIPE, seconds=100)


def test_every_strategy_is_the_training_of_one_process(ranks):
    truth = lesson.train_alone(LLAMA, RECIPE, ranks=2)
    for runs in ranks:
        for strategy, run in runs.items():
            assert largest_difference(truth, run.full) < 1e-6, strategy
    assert ranks[0]["DDP"].losses != ranks[1]["DDP"].losses, "the ranks had the same batch"


def test_each_keeps_its_share(ranks):
    for runs in ranks:
        elements = [runs[strategy].elements for strategy in METHODS]
        assert [count["parameters"] / P for count in elements] == pytest.approx([1, 1, 0.5, 0.5], rel=0.01)
        assert [count["optimizer state"] / P for count in elements] == pytest.approx([2, 1, 1, 1], rel=0.05)
        assert runs["FSDP2"].kinds == ("DTensor",)


@pytest.mark.parametrize("strategy", METHODS)
def test_what_is_sent_is_what_the_formula_says(ranks, strategy):
    sent = ranks[0][strategy].traffic.sent
    assert sent == pytest.approx(communication(METHODS[strategy], P, 2).bytes, rel=0.01)


def peak_of_dry_run(strategy, config, recipe, ranks):
    """The fullest rank: `strategy` itself on tensors without values, as each of `ranks`, while the others are pretended."""

    def build():
        setup = lesson.STRATEGIES[strategy](models.from_configuration(config))
        return setup.model, setup.optimizer, setup, lesson.batch_of(config, recipe, 0)

    def step(model, optimizer, setup, batch):
        setup.step(batch)

    return max(dry_run(build, step, ranks=ranks, rank=rank).peak for rank in range(ranks))


@pytest.mark.parametrize("strategy", METHODS)
def test_the_peak_of_the_fullest_rank_is_that_of_a_dry_run(ranks, strategy):
    highest = max(runs[strategy].peak for runs in ranks)
    assert highest == pytest.approx(peak_of_dry_run(strategy, LLAMA, RECIPE, 2), rel=0.02)


@pytest.mark.skipif(lesson.loopback_sent() is None, reason="needs Linux, which counts what its loopback device sends")
@pytest.mark.parametrize(("strategy", "factor"), CARRIED.items())
def test_the_loopback_device_carries_what_gloo_makes_of_the_collectives(ranks, strategy, factor):
    """At least: another program's bytes may come on top."""
    sent = communication(METHODS.get(strategy, "ddp"), P, 2).bytes
    for runs in ranks:
        assert runs[strategy].carried > 0.995 * factor * sent


def test_a_step_with_a_release_that_the_profiler_missed_is_left_out():
    def account(above, left):
        return Account(above, 0, {}, "a witness", left=left)

    assert lesson.lowest_peak([account(14, 4), account(11, 0), account(14, 4), account(14, 4)]) == 11


def test_a_step_in_which_gloo_was_late_is_no_peak_of_the_others():
    peaks = [11, 12, 11, 12, 11]
    assert lesson.lowest_peak([Account(above, 0, {}, "a witness") for above in peaks]) == 11


def larger_moment(strategy, config, recipe, ranks):
    return max(lesson.two_moments(strategy, lesson.Sizes.from_model(config, recipe), ranks).values())


QUICK_DRY_RUNS = {("ZeRO-3", 32, 1000), ("ZeRO-3", 256, 1000)}
DRY_RUNS = [
    *itertools.product(METHODS, (32, 256), (1000,), (2,), (4,)),
    *((strategy, *sizes) for strategy in METHODS for sizes in ((32, 8000, 2, 8), (256, 8000, 4, 8))),
    ("ZeRO-3", 32, 8000, 3, 2),  # the root is the largest unit
]


@pytest.mark.parametrize(
    ("strategy", "tokens", "vocabulary", "ranks", "blocks"),
    [pytest.param(*run, marks=() if run[:3] in QUICK_DRY_RUNS else pytest.mark.slow) for run in DRY_RUNS],
)
def test_the_larger_moment_is_the_peak_of_a_dry_run(strategy, tokens, vocabulary, ranks, blocks):
    config = models.configuration("llama", **WIDTH, vocab_size=vocabulary, num_hidden_layers=blocks)
    recipe = Recipe(batch=tokens // 32, sequence=32, keeps_outputs=False)
    expected = peak_of_dry_run(strategy, config, recipe, ranks)
    assert larger_moment(strategy, config, recipe, ranks) == pytest.approx(expected, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [32, 256])
@pytest.mark.parametrize("vocabulary", [1000, 8000])
def test_the_larger_moment_is_the_peak_of_real_ranks(tokens, vocabulary):
    config = models.configuration("llama", **WIDTH, vocab_size=vocabulary, num_hidden_layers=8)
    recipe = Recipe(batch=tokens // 32, sequence=32, keeps_outputs=False)
    ranks = launch(lesson.measure_all_on_rank, 2, list(METHODS), config, recipe)
    for strategy in METHODS:
        fullest = max(rank[strategy].peak for rank in ranks)
        assert larger_moment(strategy, config, recipe, 2) == pytest.approx(fullest, rel=0.02), strategy


def accumulations():
    return [lesson.accumulate_on_rank(LLAMA, RECIPE, 2, **options) for options in ({}, {"sync": False})]


def builds():
    """The median of three for each device, since the profiler may miss what gloo's own thread takes and frees."""
    return {device: sorted(lesson.build_on_rank(LLAMA, device)[1] for _ in range(3))[1] for device in ("cpu", "meta")}


def test_every_micro_batch_gathers_twice_and_scatters_once_unless_told_not_to():
    default, once = launch(accumulations, 2)[0]
    units, gathers = 4, 2 * 4 - 1  # the root stays gathered between forward and backward
    assert (default.gathers, default.scatters) == (2 * gathers, 2 * units)
    assert (once.gathers, once.scatters) == (2 * gathers, units)
    assert once.peak > default.peak


def test_a_model_built_on_meta_needs_memory_for_its_shards_only():
    for device, size in launch(builds, 2)[0].items():
        assert size == pytest.approx(4 * P / 2, rel=0.05) if device == "meta" else size > 4 * P


def test_what_stays_gathered_is_seen(ranks):
    assert ranks[0]["ZeRO-2"].peak - ranks[0]["ZeRO-3"].peak > P  # a good part of 4P bytes


@pytest.mark.slow
def test_hybrid_sharding_sends_shards_between_the_groups():
    run = launch(partial(lesson.measure_on_rank, mesh=(2, 2)), 4, "FSDP2", LLAMA, RECIPE, seconds=100)[0]
    assert run.traffic.frame()["sent"]["all-reduce"] == pytest.approx(communication("ddp", P // 2, 2).bytes, rel=0.02)
