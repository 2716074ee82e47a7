"""Models of others: the parameters that their publishers count, and configurations from a `config.json`."""

import json

import pytest
import torch

from course_utils import models
from course_utils.errors import CourseError
from course_utils.models.public import PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_model_has_the_parameters_that_its_publisher_counts(name):
    """Counted in two sizes of few blocks: each further block has as many as the third."""
    config = models.configuration(name)
    depth = next(field for field in ("num_hidden_layers", "n_layer", "n_layers") if field in config.to_dict())

    def counted(blocks):
        with torch.device("meta"):
            return models.parameter_count(models.build(name, **{depth: blocks}))

    two, three = counted(2), counted(3)
    assert three + (three - two) * (getattr(config, depth) - 3) == PUBLIC[name].parameters


def test_a_config_json_is_the_configuration_that_was_written(tmp_path):
    original = models.configuration("qwen3-0.6b", num_hidden_layers=2)
    original.to_json_file(tmp_path / "config.json")
    read = models.from_json(tmp_path / "config.json")
    assert type(read) is type(original)
    assert read.architectures == ["Qwen3ForCausalLM"]
    assert read.to_dict() == original.to_dict()


def test_transformers_remarks_on_a_familys_usual_token_ids_are_not_shown(tmp_path, caplog):
    fields = models.configuration("qwen3-0.6b", num_hidden_layers=2).to_dict()
    for text in ('{"model_type": "starcoder2"}', json.dumps(fields)):
        (tmp_path / "config.json").write_text(text)
        models.from_json(tmp_path / "config.json")
    assert not caplog.records


def test_a_field_that_resembles_none_of_the_familys_is_left_to_transformers(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "nemotron", "auto_map": {"AutoConfig": "x.Y"}, "my_note": 1}')
    assert models.from_json(tmp_path / "config.json").my_note == 1


@pytest.mark.slow
def test_of_no_family_is_a_field_taken_for_a_misspelled_one(tmp_path):
    from transformers import CONFIG_MAPPING

    read, refused = 0, []
    for family in CONFIG_MAPPING:
        try:
            text = json.dumps({**CONFIG_MAPPING[family]().to_dict(), "model_type": family})
        except Exception:  # it has no usual sizes, or holds what JSON does not
            continue
        (tmp_path / "config.json").write_text(text)
        try:
            read += bool(models.from_json(tmp_path / "config.json"))
        except CourseError as error:
            refused.append(str(error))
    assert read > 300
    assert not [sentence for sentence in refused if "rename it" in sentence]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "could not be read as a model's config.json"),
        ("[]", "could not be read as a model's config.json"),
        ('{"hidden_size": 8}', "an object with a model_type"),
        ('{"model_type": "nemotron", "hidden_sise": 128}', "has a field 'hidden_sise', .* rename it to 'hidden_size'"),
        (
            '{"model_type": "smollm3", "num_attention_heads": 16, "num_key_value_heads": 5}',
            "16 attention heads .* by 5",
        ),
        ('{"model_type": "lama"}', r"knows no family 'lama' \(nearest: .*llama.*\)"),
        ('{"model_type": "llama", "hidden_size": "wide"}', "is no configuration of llama"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_in_a_sentence(tmp_path, text, sentence):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CourseError, match=sentence) as error:
        models.from_json(tmp_path / "config.json")
    assert "\n" not in str(error.value)
    with pytest.raises(CourseError, match="There is no file .*missing.json"):
        models.from_json(tmp_path / "missing.json")
