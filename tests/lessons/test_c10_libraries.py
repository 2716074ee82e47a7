"""Chapter 10: libraries that are asked to shard without a GPU."""

import pytest

from course_utils import models
from course_utils.distributed import communication, launch
from course_utils.lessons import c10_libraries
from course_utils.memory import Recipe

TINY = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
SMALL = models.configuration("llama", **TINY, vocab_size=100, num_hidden_layers=2)
SHORT = Recipe(batch=1, sequence=8)
SMALL_P = models.parameter_count(models.from_configuration(SMALL))


@pytest.mark.parametrize("name", ["accelerate_on_rank", "trainer_on_rank"])
def test_accelerate_and_trainer_fall_back_to_data_parallelism(name, tmp_path):
    arguments = [str(tmp_path)] if name == "trainer_on_rank" else []
    for run in launch(getattr(c10_libraries, name), 2, SMALL, SHORT, *arguments):
        assert run.kind == "DistributedType.MULTI_CPU"
        assert run.wrapper == "DistributedDataParallel"
        assert run.elements == SMALL_P
        sent = run.sent.frame()["sent"]
        assert set(sent.index) <= {"all-reduce", "broadcast", "all-gather"}
        assert sent["all-reduce"] == pytest.approx(communication("ddp", SMALL_P, 2).bytes, rel=0.01)
