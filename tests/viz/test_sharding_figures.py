"""What the figures about sharding draw is the data, and the step on paper obeys its own rules."""

from itertools import product

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils import viz
from course_utils.training.sharded_trace import Activity
from course_utils.viz.sharded_schedule import COMPUTE, STATE, WIRE, sharded_schedule

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
    schedule = sharded_schedule(**step)
    for lane in product((0, 1), (COMPUTE, WIRE)):
        jobs = sorted((job for job in schedule.jobs if (job.rank, job.lane) == lane), key=lambda job: job.start)
        assert all(a.end <= b.start + 1e-9 for a, b in zip(jobs, jobs[1:], strict=False))
    stage, ranks = step["stage"], step["ranks"]
    kept = [1 / ranks if stage >= first else 1 for first in (2, 2, 1)]
    assert schedule.curve[1][-1] == pytest.approx(kept[0] + kept[1] + STATE * kept[2])
    assert min(schedule.curve[1]) > 0


def jobs_of_rank_0(*step, **more):
    return [job for job in sharded_schedule(*step, **more).jobs if job.rank == 0]


@settings(max_examples=30, deadline=None)
@given(steps)
def test_ranks_send_together_and_only_the_slow_one_computes_longer(step):
    jobs = sharded_schedule(**step).jobs
    of = {rank: [job for job in jobs if job.rank == rank] for rank in (0, 1)}
    if step["ranks"] == 1:
        assert not of[1]
        return
    sent = [[(job.what, job.start, job.end) for job in of[rank] if job.lane == WIRE] for rank in of]
    assert sent[0] == sent[1]
    computed = [sum(job.end - job.start for job in of[rank] if job.lane == COMPUTE) for rank in of]
    assert computed[1] == pytest.approx(step["slowest"] * computed[0])


def test_others_wait_for_the_slow_rank():
    alike, apart = (sharded_schedule(3, ranks=8, units=6, slowest=slowest) for slowest in (1.0, 2.0))
    assert apart.end > alike.end
    assert apart.waiting > alike.waiting
    assert "the last rank computes 2 times as long" in viz.play_sharding(slowest=2.0)[1]
    assert viz.play_sharding(ranks=1, slowest=2.0)[1] == viz.play_sharding(ranks=1)[1]


@settings(max_examples=30, deadline=None)
@given(steps)
def test_prefetch_never_makes_a_step_longer(step):
    slow, quick = (sharded_schedule(**{**step, "prefetch": prefetch}).end for prefetch in (False, True))
    assert quick <= slow + 1e-9


@pytest.mark.parametrize(("stage", "gathers"), [(0, 0), (1, 1), (2, 6), (3, 12)])
def test_stages_send_what_they_say(stage, gathers):
    jobs = jobs_of_rank_0(stage, ranks=4, units=6)
    assert [job.what for job in jobs].count("all-gather") == gathers
    reductions = "reduce-scatter" if stage >= 2 else "all-reduce"
    assert [job.what for job in jobs].count(reductions) == 6


def test_no_unit_is_computed_before_it_is_there():
    jobs = jobs_of_rank_0(3, ranks=4, units=5)
    forward = [job for job in jobs if job.what == "forward"]
    arrivals = [job.end for job in jobs if job.what == "all-gather"][:5]
    assert all(job.start >= arrived for job, arrived in zip(forward, arrivals, strict=True))


def test_a_later_stage_needs_less_memory():
    peaks = [sharded_schedule(stage, ranks=8, units=8).peak for stage in range(4)]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[3] < 0.4 * peaks[0]


def test_the_idea_shares_out_one_kind_more_at_each_stage():
    figure, alt = viz.sharding_figure(ranks=3)
    gray = viz.COLORS["grid"]
    from matplotlib.colors import to_hex

    filled = [to_hex(patch.get_facecolor()).upper() != gray for patch in figure.axes[0].patches]
    per_stage = [sum(filled[27 * row : 27 * row + 27]) for row in range(4)]
    assert per_stage == [27, 21, 15, 9]
    assert "What each of 3 ranks keeps" in alt


def test_the_lanes_have_one_clock():
    rank_0 = [Activity("forward", 5.0, 5.4, True), Activity("all-gather", 5.1, 5.2, False)]
    rank_1 = [Activity("forward", 5.2, 5.5, True), Activity("reduce-scatter", 5.5, 6.0, False)]
    figure, alt = viz.lanes_figure([rank_0, rank_1], "a run")
    lefts = [round(patch.get_x(), 6) for patch in figure.axes[0].patches]
    assert min(lefts) == 0
    assert lefts == [0, 0.1, 0.2, 0.5]
    assert alt.startswith("a run: rank 0 computes 400 ms and takes part in 1 all-gather; rank 1 computes 300 ms")


@pytest.mark.parametrize(
    "changed",
    [{"stage": 1}, {"ranks": 2}, {"units": 12}, {"wire": 3.0}, {"latency": 0.2}, {"prefetch": False}, {"slowest": 2}],
)
def test_the_playing_figure_follows_each_control(changed):
    assert viz.play_sharding()[1] != viz.play_sharding(**changed)[1]


def test_one_rank_sends_nothing():
    assert "1 rank:" in viz.play_sharding(ranks=1)[1]
    assert not [job for job in sharded_schedule(3, ranks=1, units=4).jobs if job.lane == WIRE]


def test_units_and_networks_are_said():
    table = pd.DataFrame({"units": [1, 8], "peak": [4e6, 2e6], "gathered": [2e6, 1e6], "slow": [0.1, 0.2]})
    figure, alt = viz.units_figure(table)
    assert list(figure.axes[1].lines[0].get_ydata()) == [0.1, 0.2]
    assert "8 units: peak 1.91 MiB, largest unit 977 KiB, slow 200 ms" in alt


def test_lengths_are_said_and_none_is_none():
    figure, alt = viz.lengths_figure({"a: 7": (100, 120), "b: 9": None}, longest=1024)
    assert [patch.get_width() for patch in figure.axes[0].patches] == [21, 0]
    assert alt.endswith("a: 7: 100 to 120; b: 9: none.")
