"""Chapter 12: cuts are compared with one process, bytes with the counter's and the allocator's."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from course_utils import models
from course_utils.distributed import launch
from course_utils.distributed.pipeline_schedules import Schedule, gpipe, one_f_one_b
from course_utils.lessons import c12_scaling_out as lesson


def llama(width=32, inner=64, blocks=4):
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    sizes = {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": blocks, **heads}
    return models.configuration("llama", **sizes, vocab_size=50)


@pytest.fixture(scope="module")
def work():
    return lesson.TrainingTask(llama(), micro_batches=3, examples=2, tokens=8)


@pytest.fixture(scope="module")
def truth(work):
    return lesson.gradients_alone(work)


def test_the_truth_is_transformers_own_loss(work, truth):
    model = models.from_configuration(work.config).double()
    for ids in work.batches():
        (model(input_ids=ids, labels=ids).loss / 3).backward()
    for name, parameter in model.named_parameters():
        # The model computes the loss in 32 bits.
        torch.testing.assert_close(truth[name], parameter.grad, rtol=1e-6, atol=1e-8)


def launched(ranks, *calls):
    """What each of the calls gives on each rank, call by call; the ranks start once."""
    return zip(*launch(lambda: [call() for call in calls], ranks), strict=True)


def test_a_model_cut_by_width_is_the_same_model(work, truth):
    all_reduces_by_cut = {
        lesson.split_by_hand: 4,
        lesson.split_by_torch: 7,
        partial(lesson.split_by_torch, inputs_first=True): 4,
    }
    elements = sum(grad.numel() for grad in truth.values())
    elements -= sum(grad.numel() for name, grad in truth.items() if "_proj" in name) // 2
    results = launched(2, *(partial(lesson.measure_tensor_on_rank, work, cut) for cut in all_reduces_by_cut))
    for all_reduces, ranks in zip(all_reduces_by_cut.values(), results, strict=True):
        for rank, seen in enumerate(ranks):
            assert seen.gradients.keys() == truth.keys()
            assert seen.largest_difference(truth, rank) < 1e-10
            assert seen.elements == elements
            assert [entry.collective for entry in seen.sent.entries] == ["all-reduce"] * all_reduces * 4 * 3
            assert seen.sent.sent == all_reduces * 4 * 3 * work.boundary_bytes


def test_a_model_cut_by_depth_is_the_same_model(work, truth):
    orders = gpipe, one_f_one_b, lesson.one_at_a_time
    for ranks in launched(4, *(partial(lesson.measure_pipeline_on_rank, work, order) for order in orders)):
        assert sum(seen.elements for seen in ranks) == sum(grad.numel() for grad in truth.values())
        assert sorted(name for seen in ranks for name in seen.gradients) == sorted(truth)
        for rank, seen in enumerate(ranks):
            assert seen.largest_difference(truth, rank) < 1e-10
            assert seen.sent.sent == (1 if rank in (0, 3) else 2) * 3 * work.boundary_bytes


def test_stages_that_sleep_need_their_slots_and_no_processor(work):
    slot, schedules = 0.01, {"one at a time": lesson.one_at_a_time, "1F1B": one_f_one_b}
    for ranks in launch(lesson.time_schedules_on_rank, 2, work, schedules, 1, slot):
        for name, orders in schedules.items():
            slots = Schedule(orders(2, work.micro_batches)).end
            assert ranks[name].seconds >= slots * slot
            assert ranks[name].computing < slots * slot


def test_speeds_are_compared_by_slots_asleep_and_computing():
    slots = {"old": Schedule(lesson.one_at_a_time(2, 8)), "1F1B": Schedule(one_f_one_b(2, 8))}
    asleep = {"old": lesson.UpdateSeconds(1.0, 0.0), "1F1B": lesson.UpdateSeconds(0.5, 0.0)}
    timed = {"old": lesson.UpdateSeconds(3.0, 1.5), "1F1B": lesson.UpdateSeconds(4.0, 1.0)}
    table = lesson.table_of_speeds(slots, asleep, timed)
    assert table.loc["times as quick"].tolist() == ["1.78", "2.00", "0.75"]
    assert table.loc["1F1B"].tolist() == ["27", "500 ms", "4.00 s"]


def test_torch_s_pipeline_is_ours(work):
    """It divides gradients, not the loss; Llama's norm works in 32 bits, so only a power of two gives the same."""
    work = replace(work, micro_batches=4)
    truth = lesson.gradients_alone(work)
    kinds = "ScheduleGPipe", "Schedule1F1B", "ScheduleInterleavedZeroBubble"
    results = launched(2, *(partial(lesson.measure_torch_pipeline_on_rank, work, kind) for kind in kinds))
    for kind, ranks in zip(kinds, results, strict=True):
        for rank, (seen, order) in enumerate(ranks):
            assert seen.largest_difference(truth, rank) < 1e-10
            assert seen.sent.sent == 4 * work.boundary_bytes
            assert any("W" in action for action in order) == (kind == kinds[-1])


def test_without_the_sum_what_lies_below_the_last_cut_is_wrong(work, truth):
    seen = launch(lesson.measure_tensor_on_rank, 2, work, lesson.split_without_sum)
    assert lesson.error_of("lm_head.weight", seen, truth) == 0
    assert lesson.error_of("model.layers.3.mlp.down_proj.weight", seen, truth) < 1e-10
    assert lesson.error_of("model.layers.3.post_attention_layernorm.weight", seen, truth) > 0.01


def test_a_stage_holds_what_is_in_flight():
    """A message may still be on its way: b·s·h numbers."""
    work = lesson.TrainingTask(llama(), 6, examples=4, tokens=32, dtype=torch.float32)
    updates = {"one": (gpipe, 1), "gpipe": (gpipe, 6), "1F1B": (one_f_one_b, 6)}
    for rank, results in enumerate(launch(lesson.bytes_on_rank, 2, work, updates, 8)):
        for name, (orders, count) in updates.items():
            flying = Schedule(orders(2, count)).in_flight[rank]
            predicted = results["one"].peak + (flying - 1) * results["one"].saved
            assert predicted - 0.01 * predicted < results[name].peak <= predicted + work.boundary_bytes + 1024
