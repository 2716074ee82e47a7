"""Trained weights from a folder, and the names by which a model is known."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from course_utils import models
from course_utils.errors import CourseError

SIZES = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 64, "n_positions": 16}


@pytest.fixture
def saved_model(tmp_path):
    """A folder as Transformers writes it, with weights that no seed of ours gives."""
    torch.manual_seed(123)
    model = AutoModelForCausalLM.from_config(models.configuration("gpt2", **SIZES))
    model.save_pretrained(tmp_path / "trained")
    return tmp_path / "trained", model


def test_the_weights_are_those_of_the_folder(saved_model):
    folder, model = saved_model
    config = models.configuration("gpt2", **SIZES)
    loaded = models.load_pretrained(config, str(folder))
    assert loaded.training
    for name, value in model.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], value, rtol=0, atol=0)
    random_state = models.from_configuration(config).state_dict()
    assert any(not torch.equal(random_state[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("change", [{"n_layer": 3}, {"n_layer": 1}, {"vocab_size": 60}])
def test_the_weights_of_another_model_are_refused(saved_model, change):
    folder, _ = saved_model
    with pytest.raises(CourseError, match="another model|There are no weights"):
        models.load_pretrained(models.configuration("gpt2", **{**SIZES, **change}), str(folder))


def test_a_place_without_weights_is_refused(tmp_path):
    with pytest.raises(CourseError, match="There are no weights of GPT2LMHeadModel to be had"):
        models.load_pretrained(models.configuration("gpt2", **SIZES), str(tmp_path))


@pytest.mark.parametrize("spelling", ["llama-3.1-8B", "meta-llama/Llama-3.1-8B", "META-LLAMA/llama-3.1-8b"])
def test_a_name_in_other_capitals_or_on_the_hub_is_understood(spelling):
    assert models.canonical_name(spelling) == "llama-3.1-8b"
    assert models.configuration(spelling).to_dict() == models.configuration("llama-3.1-8b").to_dict()


def test_no_two_models_are_known_by_one_name():
    names = [*models.NAMES, *(public.hub for public in models.PUBLIC.values())]
    assert len({name.lower() for name in names}) == len(names)
    assert [models.canonical_name(name) for name in models.NAMES] == list(models.NAMES)
    assert models.canonical_name("my-model") == "my-model"
