"""The chunked loss: its value compared with Transformers' own loss, and its bytes with the allocator."""

from dataclasses import replace

import pytest
import torch
from llamas import SMALL_SIZES, assert_measured, dry, small_llama

from course_utils import models
from course_utils.errors import CourseError
from course_utils.memory import Recipe, Workload, estimate

LLAMA = small_llama(2, vocab_size=3000)
TIED = models.configuration("gpt2-large", n_embd=64, n_head=4, n_layer=2, vocab_size=3000, n_positions=128)
RECIPE = Recipe("sgd", batch=3, sequence=40)


def parameters_after_step(config, recipe) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    workload = Workload(config, recipe)
    model, optimizer, batches = workload.build()
    torch.manual_seed(1)
    workload.step(model, optimizer, batches)
    return dict(model.named_parameters())


@pytest.mark.parametrize("config", [TIED, LLAMA], ids=["tied", "untied"])
@pytest.mark.parametrize("changes", [{}, {"precision": "autocast"}, {"checkpointing": True, "accumulation": 2}])
def test_an_update_is_that_of_transformers_own_loss(config, changes):
    recipe = replace(RECIPE, **changes)
    expected, by_pieces = (parameters_after_step(config, replace(recipe, chunked_loss=tokens)) for tokens in (0, 50))
    before = dict(models.from_configuration(config).named_parameters())
    for name, parameter in expected.items():
        update = (parameter - before[name]).norm()
        assert update > 0
        difference = (by_pieces[name] - parameter).norm() / update
        assert difference < (0.02 if recipe.precision == "autocast" else 1e-3), name


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (TIED, {"chunked_loss": 50}),
        (TIED, {"chunked_loss": 32, "precision": "autocast", "keeps_outputs": False}),
        pytest.param(TIED, {"chunked_loss": 10_000, "optimizer": "adamw"}, marks=pytest.mark.slow),
        pytest.param(LLAMA, {"chunked_loss": 50, "accumulation": 2}, marks=pytest.mark.slow),
        (LLAMA, {"chunked_loss": 32, "precision": "bf16", "checkpointing": True}),
        (LLAMA, {"chunked_loss": 50, "lora": 4}),
    ],
)
def test_an_estimate_is_what_the_allocator_counts(config, changes):
    predicted = estimate(config, replace(RECIPE, **changes))
    assert_measured(predicted, 0.002)


@pytest.mark.parametrize(
    ("batch", "sequence"), [(4, 40), *(pytest.param(*s, marks=pytest.mark.slow) for s in ((2, 64), (3, 25)))]
)
def test_at_other_sizes_there_are_more_pieces_which_no_formula_follows(batch, sequence):
    deep = small_llama(5, vocab_size=3000)
    first = estimate(deep, replace(RECIPE, chunked_loss=50, batch=2, sequence=20))
    assert first.basis == "a dry run of 3 of its 5 blocks"
    predicted = first.with_fields(batch=batch, sequence=sequence)
    assert predicted.peak == dry(deep, predicted.recipe).peak


def small_config(kind, **changes):
    import transformers

    return getattr(transformers, kind)(**{**SMALL_SIZES, **changes}, num_hidden_layers=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: models.configuration("distilbert", labels=3),
            "causal language models of Transformers.*leave it out for Dis",
        ),
        (lambda: models.ConvNetConfig((8, 16), image=16), "leave it out for ConvNet"),
        (
            lambda: small_config("PhiConfig"),
            "PhiForCausalLM has a bias between hidden states and loss; leave chunked_loss out",
        ),
        (lambda: small_config("Gemma2Config"), "Gemma2ForCausalLM has final_logit_softcapping between"),
    ],
)
def test_a_model_without_such_a_loss_is_refused(make, message):
    with pytest.raises(CourseError, match=message):
        estimate(make(), replace(RECIPE, chunked_loss=50))
