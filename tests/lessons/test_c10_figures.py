"""The figures of chapter 10: a step on paper keeps its rules, and each figure says what it shows."""

import pandas as pd
import pytest
from figures import title
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils.lessons import c10_figures as figures
from course_utils.lessons.c10_figures import PaperStep
from course_utils.lessons.c10_timeline import PHASES, Activity

steps = st.fixed_dictionaries(
    {
        "stage": st.sampled_from(range(4)),
        "ranks": st.sampled_from((1, 2, 8)),
        "units": st.integers(1, 8),
        "wire": st.floats(0.1, 3),
        "latency": st.floats(0, 0.2),
        "prefetch": st.booleans(),
        "slowest": st.sampled_from((1.0, 1.7)),
    }
)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_a_lane_does_one_thing_at_a_time_and_memory_returns_to_what_is_kept(step):
    schedule = PaperStep(**step)
    for rank in (0, 1):
        for computes in (True, False):
            jobs = sorted(job[2:] for job in schedule.jobs if job[0] == rank and (job[1] in PHASES) == computes)
            assert all(end <= start + 1e-9 for (_, end), (start, _) in zip(jobs, jobs[1:], strict=False))
    stage, ranks = step["stage"], step["ranks"]
    shares = [1 / ranks if stage >= first else 1 for first in (2, 2, 1)]
    assert schedule.memory[-1] == pytest.approx(shares[0] + shares[1] + 2 * shares[2])
    assert min(schedule.memory) > 0


def jobs_of_rank_0(*step, **options):
    return [job[1:] for job in PaperStep(*step, **options).jobs if job[0] == 0]


@settings(max_examples=30, deadline=None)
@given(steps)
def test_ranks_send_together_and_only_the_slow_one_computes_longer(step):
    jobs = PaperStep(**step).jobs
    by_rank = {rank: [job[1:] for job in jobs if job[0] == rank] for rank in (0, 1)}
    if step["ranks"] == 1:
        assert not by_rank[1]
        return
    sent = [[job for job in by_rank[rank] if job[0] not in PHASES] for rank in by_rank]
    assert sent[0] == sent[1]
    computed = [sum(end - start for kind, start, end in by_rank[rank] if kind in PHASES) for rank in by_rank]
    assert computed[1] == pytest.approx(step["slowest"] * computed[0])


def test_others_wait_for_the_slow_rank():
    even, uneven = (PaperStep(3, ranks=8, units=6, slowest=slowest) for slowest in (1.0, 2.0))
    assert uneven.end > even.end
    assert uneven.waiting_share > even.waiting_share
    assert figures.play_sharding(ranks=1, slowest=2.0)[1] == figures.play_sharding(ranks=1)[1]


@settings(max_examples=30, deadline=None)
@given(steps)
def test_prefetch_never_makes_a_step_longer(step):
    slow, quick = (PaperStep(**{**step, "prefetch": prefetch}).end for prefetch in (False, True))
    assert quick <= slow + 1e-9


@pytest.mark.parametrize(("stage", "gathers"), [(0, 0), (1, 1), (2, 6), (3, 12)])
def test_stages_send_what_they_say(stage, gathers):
    jobs = jobs_of_rank_0(stage, ranks=4, units=6)
    assert [kind for kind, *_ in jobs].count("all-gather") == gathers
    reductions = "reduce-scatter" if stage else "all-reduce"
    assert [kind for kind, *_ in jobs].count(reductions) == 6


@pytest.mark.parametrize("latency", [0, 0.01])
def test_stages_1_and_2_send_as_much_as_ddp_and_stage_3_half_as_much_again(latency):
    def on_the_wire(stage):
        jobs = jobs_of_rank_0(stage, ranks=8, units=6, latency=latency)
        return sum(end - start for kind, start, end in jobs if kind not in PHASES)

    wire = [on_the_wire(stage) for stage in range(4)]
    assert wire == pytest.approx([wire[0], wire[0], wire[0], 1.5 * wire[0]])
    assert wire[0] == pytest.approx(2 * 7 / 8 + 2 * 7 * 6 * latency)


def test_no_unit_is_computed_before_it_is_there():
    jobs = jobs_of_rank_0(3, ranks=4, units=5)
    starts = [start for kind, start, _ in jobs if kind == "forward"]
    arrivals = [end for kind, _, end in jobs if kind == "all-gather"][:5]
    assert all(start >= arrived for start, arrived in zip(starts, arrivals, strict=True))


def test_runs_share_one_time_axis():
    by_hand = [Activity("all-gather", 5, 6), Activity("forward", 6, 8), Activity("reduce-scatter", 8, 9)]
    other = [Activity("forward", 70.0, 70.5), Activity("all-gather", 70.1, 70.2)]
    figure, alt = figures.lanes_figure({"by hand": by_hand, "other": other})
    assert [round(patch.get_x(), 6) for patch in figure.axes[0].patches] == [0, 1, 3, 0, 0.1]
    assert "by hand: computes: forward × 1 (2.00 s)" in alt
    assert "by hand: sends, receives: all-gather × 1 (1.00 s), reduce-scatter × 1 (1.00 s)" in alt
    assert "other: computes: forward × 1 (500 ms); other: sends, receives: all-gather × 1 (100 ms)" in alt


def test_a_unit_is_whole_twice_and_its_gradient_three_times():
    life = figures.unit_life(unit=12, ranks=4, activations=5)
    assert [event for event, lane, _ in life if lane == "wire"] == ["all-gather", "all-gather", "reduce-scatter"]
    assert [sum(sizes.values()) for *_, sizes in life] == [15, 20, 8, 20, 32, 42, 6]
    _, alt = figures.unit_life_figure(12 * 2**20, 4, 5 * 2**20)
    gradient = "gradient 12.0 MiB, flat row 12.0 MiB, gloo's copy 12.0 MiB"
    assert f"reduce-scatter (wire): 42.0 MiB, of it shard 3.00 MiB, {gradient}" in alt


@pytest.fixture(scope="module")
def default_play():
    return figures.play_sharding()[1]


@pytest.mark.parametrize(
    "setting",
    [{"stage": 1}, {"ranks": 2}, {"units": 12}, {"wire": 3.0}, {"latency": 0.2}, {"prefetch": False}, {"slowest": 2}],
)
def test_the_playing_figure_follows_each_control(default_play, setting):
    assert default_play != figures.play_sharding(**setting)[1]


def test_one_rank_sends_nothing():
    assert "1 rank:" in figures.play_sharding(ranks=1)[1]
    assert all(kind in PHASES for _, kind, *_ in PaperStep(3, ranks=1, units=4).jobs)


def test_the_moments_and_the_measured_peaks_of_each_strategy_are_drawn():
    moments = pd.DataFrame({"tokens": [32, 64], "loss": [1 * 2**20, 4 * 2**20], "gradients": [2 * 2**20] * 2})
    paper = pd.concat([moments.assign(strategy="ZeRO-1"), moments.assign(strategy="DDP")])
    measured = pd.DataFrame({"strategy": ["DDP", "ZeRO-1"], "tokens": [64, 32], "peak": [4 * 2**20, 2 * 2**20]})
    figure, alt = figures.moments_figure(paper, measured, vocabulary=1000)
    assert [title(axes) for axes in figure.axes] == ["ZeRO-1", "DDP"]
    assert [list(axes.lines[2].get_xdata()) for axes in figure.axes] == [[32], [64]]
    assert "on paper: loss: 1.00 MiB at 32, 4.00 MiB at 64; measured: 2.00 MiB at 32." in alt
    assert alt.endswith("measured: 4.00 MiB at 64.")


def test_the_peak_on_paper_has_every_kind():
    plan = PaperStep(3, ranks=4, units=4)
    peak = plan.memory.index(max(plan.memory))
    at_peak = {kind: sizes[peak] for kind, sizes in plan.sizes.items()}
    assert at_peak["copies of gradients"] == pytest.approx(2 / 4)  # a unit's flat row, and gloo's copy
    assert at_peak["parameters"] == pytest.approx(1 / 4)
    assert "the memory peaks at" in figures.play_sharding()[1]
