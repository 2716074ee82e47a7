"""What sharding sends and keeps, as counted and as the allocator saw it, beside the predictions; and real models in it."""

from functools import partial

import fsdp_model as work
import pytest
import torch

from course_utils import memory, models
from course_utils.distributed import communication, launch

LARGER = {"n_embd": 128, "n_layer": 4, "n_head": 4, "vocab_size": 2000}


def test_transformers_in_shards_are_bit_equal_to_one_process_under_all_checkpoints():
    families = ("gpt2", "llama", "distilbert")
    expected = {family: work.train(work.model_of(family), [0, 1]).state_dict() for family in families}
    first, second = launch(work.sharded_families, 2, families)
    for (family, checkpoint, is_one_unit), state in first.items():
        assert list(state) == list(expected[family])
        for name, right in expected[family].items():
            assert torch.equal(state[name], right), f"{family}, {checkpoint}, {is_one_unit}, {name}"
            assert torch.equal(state[name], second[family, checkpoint, is_one_unit][name])


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_bytes_on_the_wire_are_predicted_within_1_percent(ranks):
    elements = models.parameter_count(work.model_of("gpt2"))
    results = launch(work.count_sent, ranks)
    for method in ("ddp", "zero1", "zero2", "zero3"):
        counted = sum(sent[method] for sent in results) / ranks / work.UPDATES
        assert counted == pytest.approx(communication(method, elements, ranks).bytes, rel=0.01), method


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "stages"), [(2, (1, 2, 3)), (4, (3,))])
def test_the_peak_of_a_rank_is_predicted_within_5_percent(ranks, stages):
    """The prediction is a dry run in which this process is that rank and the others are pretended."""
    for rank, results in enumerate(launch(work.peaks, ranks, stages, LARGER)):
        for stage, runs in results.items():
            build = partial(work.sharded, stage, LARGER, ranks)
            predicted = memory.dry_run(build, work.step, ranks=ranks, rank=rank).peak
            assert predicted == pytest.approx(min(runs), rel=0.05), f"stage {stage}, rank {rank}"
