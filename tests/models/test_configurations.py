"""Models by name: sizes as published, and what makes no model is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils import models
from course_utils.errors import CourseError
from course_utils.models import configurations
from course_utils.settings import SCALES, Settings


@pytest.mark.parametrize(
    ("name", "labels", "count"),
    [("distilbert-base-cased", 2, 65_783_042), ("gpt2-large", None, 774_030_080), ("llama-7b", None, 6_738_415_616)],
)
def test_published_sizes_are_exact(name, labels, count):
    with torch.device("meta"):
        model = models.build(name, labels=labels)
    assert models.parameter_count(model) == count
    assert models.parameter_bytes(model) == 4 * count


@pytest.mark.parametrize("family", models.FAMILIES)
@pytest.mark.parametrize("labels", [None, 4])
def test_each_family_learns_at_the_smallest_scale(family, labels):
    model = models.build(family, labels=labels, scale=SCALES["smoke"])
    ids = torch.randint(5, 1000, (3, 16), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    targets = ids if labels is None else torch.tensor([0, 3, 1])
    loss = model(input_ids=ids, attention_mask=mask, labels=targets).loss
    loss.backward()
    assert torch.isfinite(loss)
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    assert model.training


@given(seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=20)
def test_the_seed_decides_the_weights_and_nothing_else_moves(seed):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second = (models.build("distilbert", labels=2, scale=SCALES["smoke"], seed=seed) for _ in range(2))
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))
    assert torch.equal(torch.get_rng_state(), before)


def test_configuration_changes_are_passed_on():
    model = models.build("distilbert", labels=2, vocab_size=77, dropout=0.0)
    assert (model.config.vocab_size, model.config.dropout) == (77, 0.0)


@pytest.mark.parametrize("wrong", [{"dropuot": 0.1}, {"n_layer": 3}])
def test_a_change_that_would_be_ignored_is_refused(wrong):
    with pytest.raises(CourseError, match="DistilBertConfig has no setting"):
        models.build("distilbert", labels=2, **wrong)


@pytest.mark.parametrize(
    ("name", "half", "left_out"),
    [
        ("llama", {"hidden_size": 2048}, "vocab_size=1000, intermediate_size=128, num_hidden_layers=1, num_attention_"),
        ("llama", {"num_hidden_layers": 24}, "vocab_size=1000, hidden_size=32"),
        ("gpt2", {"hidden_size": 512, "n_layer": 2, "n_head": 4}, "vocab_size=1000"),
        ("distilbert", {"dim": 64, "n_layers": 1, "n_heads": 2, "vocab_size": 9}, "hidden_dim=128"),
    ],
)
def test_half_a_size_is_refused_since_the_small_models_other_half_would_stay(name, half, left_out, monkeypatch):
    monkeypatch.setattr(configurations, "settings", lambda: Settings(scale_name="smoke"))
    with pytest.raises(CourseError, match=f"small model, and {left_out}.* would stay; give these too, or start from"):
        models.configuration(name, **half)
    halved = models.configuration(name, **half, scale=SCALES["smoke"])
    assert all(getattr(halved, size) == value for size, value in half.items())


def test_a_whole_size_is_taken_and_a_published_one_may_be_changed():
    sizes = {"n_embd": 96, "n_layer": 3, "n_head": 4, "vocab_size": 70}
    config = models.configuration("gpt2", **sizes)
    assert {size: getattr(config, size) for size in sizes} == sizes
    assert models.configuration("llama-7b", num_hidden_layers=2).vocab_size == 32_000


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"vocab_size": 0}, "vocab_size must be a whole number from 1 on, not 0"),
        ({"num_hidden_layers": -1}, "num_hidden_layers must be a whole number from 1 on, not -1"),
        ({"intermediate_size": True}, "intermediate_size must be a whole number"),
        ({"hidden_size": 64.0}, "hidden_size must be a whole number"),
        ({"num_attention_heads": 0}, "num_attention_heads must be a whole number"),
        ({"num_key_value_heads": 3}, "32 attention heads do not divide by 3 of keys and values"),
    ],
)
def test_sizes_that_make_no_model_are_refused(changes, sentence):
    with pytest.raises(CourseError, match=sentence):
        models.configuration("llama-7b", **changes)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"hidden_size": 66}, "66"), ({"rms_norm_eps": "x"}, "LlamaConfig does not take this: .*rms_norm_eps")],
)
def test_what_transformers_refuses_is_said_in_a_sentence(changes, sentence):
    with pytest.raises(CourseError, match=sentence) as error:
        models.configuration("llama-7b", **changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("wrong", [{"num_labels": 5}, {"labels": 0}, {"labels": "2"}, {"labels": 2, "num_labels": 2}])
def test_the_number_of_classes_has_one_name(wrong):
    with pytest.raises(CourseError, match="labels=…, a whole number from 1 on"):
        models.build("distilbert", **wrong)


def test_a_scale_is_no_name():
    with pytest.raises(CourseError, match=r"scale='smoke' is no Scale; give one of settings\.SCALES"):
        models.build("distilbert", scale="smoke")


@pytest.mark.parametrize("wrong", [{"widths": ()}, {"widths": (8, 0)}, {"depth": 0}, {"image": 1.5}])
def test_a_network_without_layers_is_refused(wrong):
    with pytest.raises(CourseError, match="A ConvNet has stages, and sizes that are whole numbers from 1 on"):
        models.ConvNetConfig(**wrong)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(CourseError, match="'bert'; did you mean bert-base.* given by its config.json"):
        models.build("bert", labels=2)
    sentence = "'zzz'; give its config.json, or choose one of distilbert, gpt2, llama, .*, qwen3-8b"
    with pytest.raises(CourseError, match=sentence):
        models.build("zzz")
