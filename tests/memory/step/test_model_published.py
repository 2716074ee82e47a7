"""Published `config.json` files of many families: the model is theirs, and is planned, or refused in a sentence that helps."""

import json
from pathlib import Path

import pytest
import torch
import transformers

from course_utils import models
from course_utils.errors import CourseError
from course_utils.memory import Recipe, estimate
from course_utils.memory.formulas.estimate import Estimate
from course_utils.memory.step.model import source_of

PUBLISHED = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
"""Each names a model, where its file was read, its parameters where its publisher counts them, and its fields."""
QUICK = ("decapoda-research/llama-7b-hf", "distilbert/distilgpt2", "microsoft/Phi-3-vision-128k-instruct")
REFUSED = {
    "FacebookAI/roberta-base": "set architectures to a class with the head that you train",
    "facebook/detr-resnet-50": "needs a package that is not installed .*timm.*; install it",
    "facebook/dinov2-small": "set architectures to a class with the head that you train",
    "google-bert/bert-base-uncased": "set architectures to a class with the head that you train",
    "allenai/longformer-base-4096": "needs their values, and a dry run has none",
    "microsoft/layoutlmv3-base": "set the configuration's architectures to the name of one of its classes",
    "microsoft/Phi-3-vision-128k-instruct": "update it, or give a function that makes the model",
    "mistralai/Voxtral-Mini-3B-2507": "give batch=",
}


def parameters_in(estimated: Estimate) -> int:
    log = estimated.log
    resident = zip(log.changes[: log.before_step].tolist(), log.labels, strict=False)
    return sum(size for size, (_, kind, _, _) in resident if kind == "parameters")


def count_as_transformers(published: dict) -> int:
    """The bytes of the model that Transformers makes from the file, in float32."""
    fields = dict(published["config"])
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    class_name = (config.architectures or [""])[0].replace("LLaMA", "Llama")
    kind = getattr(transformers, class_name, None) or transformers.AutoModelForCausalLM
    with torch.device("meta"):
        model = kind(config) if class_name else kind.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


def test_they_are_of_forty_families():
    assert len({published["config"]["model_type"] for published in PUBLISHED}) >= 40


@pytest.mark.parametrize(
    "published",
    [
        pytest.param(published, id=published["name"], marks=() if published["name"] in QUICK else pytest.mark.slow)
        for published in PUBLISHED
    ],
)
def test_a_published_file_is_planned_or_refused_in_our_words(published, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(published["config"]), encoding="utf-8")
    longer = {"vision_config", "audio_config"} & published["config"].keys()
    recipe = Recipe("sgd", batch=1, sequence=published.get("sequence", 1024 if longer else 64), device="cuda")
    if published["name"] in REFUSED:
        with pytest.raises(CourseError, match=REFUSED[published["name"]]):
            estimate(file, recipe)
        return
    predicted, source = estimate(file, recipe), source_of(file)
    with torch.device("meta"):
        count = models.parameter_count(source.make())
    assert count == published.get("parameters", count)
    if published["config"]["model_type"] not in AS_ANOTHER:
        assert count == count_as_transformers(published)
    assert parameters_in(predicted) == 4 * count


AS_ANOTHER = ("kimi_k2", "llama4")
"""Kinds of models whose published files Transformers does not read as they are."""


def test_what_is_not_used_of_a_file_is_said(tmp_path):
    published = next(model for model in PUBLISHED if model["name"] == "distilbert/distilgpt2")
    fields = published["config"] | {"quantization_config": {"bits": 4}, "tie_encoder_decoder": False, "n_layer": 2}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(fields), encoding="utf-8")
    notes = " ".join(estimate(file, Recipe(batch=1, sequence=16)).notes)
    assert "its quantization_config is left out" in notes
    assert "GPT2Config ignores finetuning_task" in notes


def test_a_field_of_nearly_a_sizes_name_is_refused_only_where_that_is_absent(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "gpt2", "n_layers": 4}), encoding="utf-8")
    with pytest.raises(CourseError, match="rename it to 'n_layer'"):
        models.from_json(file)
    file.write_text(json.dumps({"model_type": "gpt2", "n_layers": 4, "n_layer": 3}), encoding="utf-8")
    assert models.from_json(file).n_layer == 3


def test_a_tower_of_another_dtype_is_made_in_the_recipes():
    vision = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {**vision, "vocab_size": 500, "model_type": "llama", "dtype": "float16"}
    picture = {**vision, "image_size": 56, "patch_size": 14, "model_type": "clip_vision_model"}
    options = {"architectures": ["LlavaForConditionalGeneration"], "image_token_index": 499}
    config = transformers.LlavaConfig(vision_config=picture, text_config=text, **options)
    assert {parameter.dtype for parameter in models.from_configuration(config).parameters()} == {torch.float32}
    assert config.text_config.dtype == torch.float16


def test_the_courses_own_small_models_say_so():
    assert "gpt2-small" in " ".join(source_of("gpt2").remarks)
    assert source_of("gpt2-small").remarks == []


def test_where_no_block_can_be_left_out_it_says_so_first():
    published = next(model for model in PUBLISHED if model["name"] == "ai21labs/AI21-Jamba-1.5-Mini")
    jamba = transformers.JambaConfig(**published["config"])
    assert source_of(jamba).warning_of_slowness.startswith("None of its 32 blocks can be left out: all are run")
    assert source_of("gpt2-small").warning_of_slowness == ""
