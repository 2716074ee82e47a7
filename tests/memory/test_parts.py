"""A step put together from dry runs of its parts is that of one dry run of all of it, event by event."""

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import tests.dry_runs
from course_utils import models
from course_utils.errors import CourseError
from course_utils.hardware import MACHINES
from course_utils.memory import Recipe, trial
from course_utils.memory.model import source_of
from course_utils.memory.plan import CHANGES
from course_utils.memory.recipe import LOOPS, OPTIMIZERS

_SMALL = {"vocab_size": 1000, "max_position_embeddings": 256}
MODELS = {
    "llama": lambda: models.configuration(
        "llama-7b", hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4, **_SMALL
    ),
    "gpt2": lambda: models.configuration("gpt2-large", n_embd=64, n_layer=3, n_head=4, **_SMALL),
    "distilbert": lambda: models.configuration(
        "distilbert-base-cased", labels=2, dim=64, hidden_dim=128, n_layers=3, n_heads=4, **_SMALL
    ),
}
WAYS = {
    "ordinary": {},
    "trainer": LOOPS["trainer"],
    "checkpointing": {"checkpointing": True, "keeps_outputs": False},
    "chunked loss": {"chunked_loss": 32},
    "LoRA": {"lora": 4, "batch": 1},
    "QLoRA": {"lora": 4, "quantized": "nf4", "clipping": True},
    "QLoRA by TRL": {"lora": 4, "quantized": "nf4", "upcast": False, "checkpointing": True},
    "accumulation": {"accumulation": 3},
    "parts frozen": {"frozen": ("model.embed", "transformer.wte", "distilbert.embeddings")},
    "plain products": {"attention": "eager"},
    "modules saved": {"lora": 4, "modules_to_save": ("lm_head",), "clipping": True},
    "activations away": {"offload_activations": True},
    "label smoothing": {"label_smoothing": 0.1},
}


def _require_equal(source, recipe, machine=None):
    refused = None
    try:
        whole = tests.dry_runs._run_whole(source, recipe, machine)
    except CourseError as error:
        refused = str(error)
    if refused:
        with pytest.raises(CourseError, match=re.escape(refused)):
            trial.run_in_parts(source, recipe, machine)
        return
    found = trial.run_in_parts(source, recipe, machine)
    for one, other in ((found.log, whole.log), (found.host, whole.host)):
        assert one.labels == other.labels
        np.testing.assert_array_equal(one.changes, other.changes)
        assert one.grain == other.grain
    assert found.log.reserved == whole.log.reserved
    assert found.clock == whole.clock
    assert found.traffic == whole.traffic


def test_the_parts_of_a_step_are_the_whole_step(monkeypatch):
    source = source_of(MODELS["llama"]())
    recipe = Recipe(batch=2, sequence=64, device="cuda", precision="bf16", **LOOPS["trainer"])
    _require_equal(source, recipe, MACHINES["H100"])
    _require_equal(source, replace(recipe, optimizer="adamw8bit", lora=4, clipping=False, precision="autocast"))
    # What has been found is not run again, and neither is a pass for another optimizer.
    monkeypatch.setattr(trial, "_watch", None)
    again = trial.run_in_parts(source, recipe, MACHINES["H100"])
    assert again.log.labels


def test_what_does_not_separate_is_run_whole(monkeypatch):
    source, asked = source_of(MODELS["llama"]()), []
    monkeypatch.setattr(trial, "run_whole", lambda source, recipe, *_: asked.append(recipe))
    trial._run_kept.cache_clear()
    usual = Recipe(sequence=32, device="cuda")
    together = [{"in_backward": True}, {"galore": 4}, {"offload": True}, {"ranks": 2, "zero_stage": 3}]
    together += [{"precision": "fp16"}, {"precision": "bf16-masters"}, {"zero_grad": "never"}, {"eval_batch": 2}]
    together += [{"optimizer": "adafactor"}, {"optimizer": "adafactor-transformers"}]
    for fields in together:
        trial.run_in_parts(source, replace(usual, **fields))
    assert asked == [replace(usual, **fields) for fields in together]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "autocast"])
def test_every_way_to_train_is_the_sum_of_its_parts(model, device, precision):
    source = source_of(MODELS[model]())
    for (_, fields), optimizer in product(WAYS.items(), OPTIMIZERS):
        if device == "cpu" and ("offload_activations" in fields or optimizer == "adamw8bit"):
            continue
        sizes = {"batch": 2, "sequence": 64, "precision": precision, "device": device}
        recipe = Recipe(**{**sizes, **fields, "optimizer": optimizer})
        _require_equal(source, recipe, MACHINES["H100"] if device == "cuda" else None)


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["own", "trainer"])
def test_every_rung_of_the_ladder_is_the_sum_of_its_parts(loop):
    source = source_of("llama-3.1-8b").with_blocks(2)
    base = Recipe(precision="bf16", batch=2, sequence=2048, device="cuda", **LOOPS[loop])
    for change in CHANGES:
        _require_equal(source, replace(base, **change.apply(base)))
