"""Orders of a pipeline's stages: closed forms and torch's orders are the oracles; what is not legal is refused by a sentence."""

from fractions import Fraction

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from course_utils.distributed import launch
from course_utils.distributed.pipeline_schedules import Schedule, gpipe, needs, one_f_one_b, zero_bubble
from course_utils.errors import CourseError

STAGES, MICRO_BATCHES, SLOTS = st.integers(1, 7), st.integers(1, 12), st.integers(1, 5)


@given(STAGES, MICRO_BATCHES, SLOTS, SLOTS)
def test_the_bubble_is_p_minus_1_of_k_plus_p_minus_1_whatever_a_pass_takes(p, k, forward, backward):
    for orders in (gpipe, one_f_one_b):
        schedule = Schedule(orders(p, k), {"F": forward, "B": backward})
        assert schedule.bubble == Fraction(p - 1, k + p - 1)
        assert schedule.end == (k + p - 1) * (forward + backward)


@given(STAGES, MICRO_BATCHES)
def test_gpipe_holds_all_and_1f1b_as_many_as_there_are_stages_to_come(p, k):
    assert Schedule(gpipe(p, k)).in_flight == [k] * p
    assert Schedule(one_f_one_b(p, k)).in_flight == [min(k, p - stage) for stage in range(p)]
    assert Schedule(zero_bubble(p, k)).in_flight == [min(k, p)] * p


def test_what_is_held_follows_from_the_orders_whatever_is_said_of_costs():
    assert Schedule(one_f_one_b(4, 8), {"F": 1, "B": 1, "W": 1}).in_flight == [4, 3, 2, 1]
    assert Schedule(zero_bubble(4, 8), {"F": 2, "B": 2, "W": 2}).in_flight == [4, 4, 4, 4]


@given(STAGES, st.integers(0, 8))
def test_zero_bubble_leaves_a_third_of_the_empty_slots(p, extra):
    """(p − 1)(F + B − W), by the paper's table 2, where there are as many micro-batches as stages."""
    k = p + extra
    halves, uncut = Schedule(zero_bubble(p, k)), Schedule(one_f_one_b(p, k))
    assert halves.end - 3 * k == p - 1
    assert uncut.end - 3 * k == 3 * (p - 1)


@given(STAGES, MICRO_BATCHES, st.sampled_from([gpipe, one_f_one_b, zero_bubble]), st.integers(0, 4))
def test_nothing_begins_before_what_it_needs_and_a_stage_does_one_thing_at_a_time(p, k, orders, wire):
    schedule = Schedule(orders(p, k), wire=wire)
    for (stage, *action), (begin, _) in schedule.spans.items():
        for need in needs(stage, tuple(action), p):
            assert begin >= schedule.spans[need][1] + wire * (need[0] != stage)
    for stage in range(p):
        spans = sorted(span for (place, *_), span in schedule.spans.items() if place == stage)
        assert all(end <= begin for (_, end), (begin, _) in zip(spans, spans[1:], strict=False))
    assert len(schedule.spans) == p * k * len(schedule.cost)


def orders_of_torch(micro_batches):
    """This rank's orders in torch's letters, by kind of schedule: I is the gradient of the input, W that of the weights."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
    from torch.distributed.pipelining.schedules import ScheduleInterleavedZeroBubble

    rank, ranks = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(nn.Linear(2, 2), rank, ranks, torch.device("cpu"))
    options = {"n_microbatches": micro_batches, "loss_fn": nn.functional.mse_loss}
    plans = [kind(stage, **options) for kind in (ScheduleGPipe, Schedule1F1B)]
    plans.append(ScheduleInterleavedZeroBubble([stage], **options))
    orders = [[str(action).removeprefix(str(rank)) for action in plan.pipeline_order[rank] if action] for plan in plans]
    return [[action for action in order if "REDUCE" not in action] for order in orders]


@pytest.mark.parametrize("ranks", [2, 4])
def test_orders_are_torchs(ranks):
    ours = gpipe(ranks, 8), one_f_one_b(ranks, 8), zero_bubble(ranks, 8)
    for rank, (all_first, uncut, halves) in enumerate(launch(orders_of_torch, ranks, 8)):
        assert [f"{kind}{i}" for kind, i in ours[0][rank]] == all_first
        # torch 2.13 numbers the last rank's forward passes from 1, so only the letters are compared.
        assert [kind for kind, _ in ours[1][rank]] == [action[0] for action in uncut]
        assert [f"{'I' if kind == 'B' else kind}{i}" for kind, i in ours[2][rank]] == halves


F0, B0, F1, B1 = ("F", 0), ("B", 0), ("F", 1), ("B", 1)


def test_orders_for_which_all_wait_are_refused_and_it_says_who_waits():
    message = "stage 0 waits at B0 for B0 of stage 1, stage 1 waits at B0 for F0 of stage 1"
    with pytest.raises(CourseError, match=message):
        Schedule([[F0, B0], [B0, F0]])
    message = "stage 0 waits at B1 for F1 of stage 0, stage 1 waits at F1 for F1 of stage 0"
    with pytest.raises(CourseError, match=message):
        Schedule([[F0, B0, ("B", 1), F1], [F0, B0, F1, B1]])


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([F0, B0, F1], "Stage 1 has B1 0 times"),
        ([F0, B0, F1, B1, F1], "Stage 1 has F1 2 times"),
        ([F0, B0, F1, B1, ("F", 2)], "Stage 1 has F2 1 times in its order; it should have it never"),
        ([F0, B0, F1, B1, ("X", 0)], "Stage 1 has X0 1 times in its order; it should have it never"),
        ([], "Stage 1 has B0 0 times"),
    ],
)
def test_orders_that_leave_out_or_repeat_are_refused(order, message):
    with pytest.raises(CourseError, match=message):
        Schedule([[F0, B0, F1, B1], order])


def test_no_order_at_all_is_refused():
    for orders in ([], [[]], [[], [F0, B0]]):
        with pytest.raises(CourseError, match="no micro-batch"):
            Schedule(orders)
