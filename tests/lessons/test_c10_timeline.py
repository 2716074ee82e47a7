"""Chapter 10: what a rank did in a real step, and when."""

from collections import Counter

import pytest

from course_utils import models
from course_utils.distributed import launch
from course_utils.lessons.c10_fsdp_and_zero import measure_on_rank
from course_utils.lessons.c10_timeline import Activity, overlap, read_activities, trace_on_rank
from course_utils.memory import Recipe

WIDTH = {"hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 4}
LLAMA = models.configuration("llama", **WIDTH, vocab_size=1000, num_hidden_layers=3)
RECIPE = Recipe(batch=1, sequence=32)
RUNS = {"ours": ("ZeRO-3", {}), "torch's": ("FSDP2", {})}


def count_and_trace() -> tuple[dict, dict]:
    runs = {name: measure_on_rank(strategy, LLAMA, RECIPE) for name, (strategy, _) in RUNS.items()}
    calls = {name: run.traffic.frame()["calls"] for name, run in runs.items()}
    return calls, trace_on_rank(RUNS, LLAMA, RECIPE)


@pytest.fixture(scope="module")
def ranks():
    return launch(count_and_trace, 2, seconds=100)


@pytest.mark.parametrize("name", RUNS)
def test_the_timeline_has_every_collective_of_the_ledger(ranks, name):
    calls, traced = ranks[0]
    collectives = Counter(activity.name for activity in traced[name] if not activity.computes)
    for kind in ("all-gather", "reduce-scatter"):
        assert collectives[kind] == calls[name][kind]
    assert {"forward", "backward", "update"} <= {a.name for a in traced[name] if a.computes}


def test_by_hand_no_operator_runs_while_a_collective_does(ranks):
    """gloo's own thread copies meanwhile, which is no computing of the step."""
    for _, traced in ranks:
        assert overlap(traced["ours"]) < 0.01


def test_a_trace_is_read_into_lanes():
    microseconds = [
        ("forward", 0, 1000),
        ("aten::mm", 10, 110),
        ("aten::add", 120, 200),  # soon after: one stretch with the product
        ("aten::mm", 800, 900),
        ("c10d::_reduce_scatter_base_", 300, 305),
        ("gloo:all_reduce", 310, 910),  # what gloo makes of it
    ]
    activities = read_activities([(name, start * 1e-6, end * 1e-6) for name, start, end in microseconds])
    expected = [("forward", True), ("reduce-scatter", False), ("forward", True)]
    assert [(a.name, a.computes) for a in activities] == expected
    assert activities[0].start == pytest.approx(10e-6)
    assert activities[0].end - activities[0].start == pytest.approx(190e-6)
    assert overlap(activities) == pytest.approx(100 / 600)


def test_nothing_sent_overlaps_with_nothing():
    assert overlap([Activity("forward", 0, 1)]) == 0
