"""What sharding sends, as counted, beside the prediction; and real models in it."""

import fsdp_model as work
import pytest
import torch

from course_utils import models
from course_utils.distributed import communication, launch


def test_transformers_in_shards_are_bit_equal_to_one_process_under_all_checkpoints():
    families = ("gpt2", "llama", "distilbert")
    expected = {family: work.trained(work.model_of(family), [0, 1]).state_dict() for family in families}
    first, second = launch(work.sharded_families, 2, families)
    for (family, checkpoint, whole), state in first.items():
        assert list(state) == list(expected[family])
        for name, right in expected[family].items():
            assert torch.equal(state[name], right), f"{family}, {checkpoint}, {whole}, {name}"
            assert torch.equal(state[name], second[family, checkpoint, whole][name])


def test_bytes_on_the_wire_are_predicted_within_1_percent():
    ranks = 2
    elements = models.parameter_count(work.model_of("gpt2"))
    found = launch(work.sent, ranks)
    for method in ("ddp", "zero1", "zero2", "zero3"):
        counted = sum(sent[method] for sent in found) / ranks / work.UPDATES
        assert counted == pytest.approx(communication(method, elements, ranks).bytes, rel=0.01), method
