"""Libraries that are asked to shard without a GPU: two give plain data parallelism, one shards."""

from importlib.util import find_spec

import pytest

from course_utils import memory, models
from course_utils.distributed import launch
from course_utils.memory import Recipe
from course_utils.training import sharded_libraries, sharding

WIDTH = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
LLAMA = models.configuration("llama", **WIDTH, vocab_size=100, num_hidden_layers=2)
RECIPE = Recipe(batch=1, sequence=8)
P = models.parameter_count(models.from_configuration(LLAMA))


@pytest.mark.parametrize("name", ["accelerate_on_rank", "trainer_on_rank"])
def test_accelerate_and_trainer_fall_back_to_data_parallelism(name, tmp_path):
    arguments = [str(tmp_path)] if name == "trainer_on_rank" else []
    for seen in launch(getattr(sharded_libraries, name), 2, LLAMA, RECIPE, *arguments):
        assert (seen.kind, seen.wrapper) == ("DistributedType.MULTI_CPU", "DistributedDataParallel")
        assert seen.elements == P
        sent = seen.sent.frame()["sent"]
        assert set(sent.index) <= {"all-reduce", "broadcast", "all-gather"}
        assert sent["all-reduce"] == pytest.approx(memory.communication("ddp", P, 2).bytes, rel=0.01)


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("deepspeed"), reason='needs the extra: pip install "course-utils[distributed]"')
@pytest.mark.timeout(500)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_trains_as_we_do(stage):
    ours = launch(sharding.share, 2, "ZeRO-3", LLAMA, RECIPE)[0]
    seen = launch(sharded_libraries.deepspeed_on_rank, 2, LLAMA, RECIPE, stage, seconds=400)[0]
    assert seen.kind.startswith("DeepSpeedZeroOptimizer")
    assert seen.loss == pytest.approx(ours.losses[-1], rel=1e-3)
    assert seen.sent.sent > 0
