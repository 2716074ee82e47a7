"""Formulas that come with the package, in all sizes of a model: against dry runs of sizes at which they were not found."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.formulas import FAMILIES, keys, lettered
from course_utils import memory, models
from course_utils.memory import Recipe
from course_utils.memory.formulas.letters import sizes_of
from course_utils.memory.formulas.shipped import from_formulas, load, name_of, shipped
from course_utils.memory.step.model import source_of
from course_utils.memory.trace.log import Log, sign

SIZES = {"vocab_size": 1234, "max_position_embeddings": 700}


def llama(blocks=3, **changes):
    heads = {"num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 16}
    sizes = {"hidden_size": 96, "intermediate_size": 272, "num_hidden_layers": blocks, **heads, **SIZES}
    return models.configuration("llama-7b", **{**sizes, **changes})


def gpt2(blocks=3, **changes):
    return models.configuration("gpt2-large", n_embd=96, n_layer=blocks, n_head=6, **SIZES, **changes)


def distilbert(blocks=3, labels=2, **changes):
    sizes = {"dim": 96, "hidden_dim": 272, "n_layers": blocks, "n_heads": 6, **SIZES}
    return models.configuration("distilbert-base-cased", labels=labels, **sizes, **changes)


def dry(config, recipe):
    work = memory.Workload(config, recipe)
    return memory.dry_run(work.build, work.step, recipe.device)


@pytest.mark.parametrize(
    ("config", "recipe"),
    [
        (llama(4), Recipe("adamw-foreach", "autocast", batch=3, sequence=96, device="cuda")),
        (llama(num_key_value_heads=2), Recipe("adafactor", batch=2, sequence=32, checkpointing=True)),
        (gpt2(), Recipe("adamw-fused", "bf16", batch=1, sequence=160, device="cuda")),
        (gpt2(4), Recipe("sgd", "autocast", batch=2, sequence=32, checkpointing=True, device="cuda")),
        (distilbert(4), Recipe("momentum", batch=5, sequence=64)),
    ],
    ids=lambda value: f"{value.optimizer} {value.precision}" if isinstance(value, Recipe) else value.model_type,
)
def test_a_shipped_answer_is_a_dry_run_to_the_byte(config, recipe):
    usage, found = dry(config, recipe), from_formulas(config, recipe)
    assert found.peak == usage.peak
    assert found.peak_instant.name == usage.peak_phase
    assert found.peak_instant.by_kind == usage.split


@pytest.mark.parametrize(
    ("optimizer", "precision"), [("adamw", "fp32"), ("adamw-foreach", "bf16"), ("adafactor", "autocast")]
)
def test_the_allocator_reserves_what_it_would_for_a_dry_run(optimizer, precision):
    """It gives what dies to what is born next: gradients that nobody sees die stay its own."""
    recipe = Recipe(optimizer, precision, batch=2, sequence=512, checkpointing=True, device="cuda")
    config = models.configuration("gpt2-large", n_layer=3)
    assert from_formulas(config, recipe).log.reserved == Log.of(dry(config, recipe)).reserved


@pytest.mark.parametrize(
    ("config", "recipe"),
    [
        (distilbert(), Recipe("adamw", batch=3, sequence=80, device="cuda")),
        (gpt2(), Recipe("sgd", "bf16", batch=2, sequence=64, checkpointing=True)),
    ],
    ids=["a length that a kernel rounds up", "half precision on a CPU"],
)
def test_where_it_is_not_promised_to_the_byte_it_is_near(config, recipe):
    without_scratch = Log.of(dry(config, recipe)).plain  # of which each processor's kernels take as much as they like
    assert from_formulas(config, recipe).peak == pytest.approx(without_scratch.peak, rel=0.005)


def test_its_formulas_have_the_values_of_their_terms():
    found = from_formulas(gpt2(5), Recipe(batch=3, sequence=64, device="cuda"))
    letters = set()
    for instant in found.by_instant():
        table = found.working(instant)
        assert table["bytes"].sum() == sum(found.by_instant()[instant].values())
        for _, row in table.iterrows():
            plain = row.formula.replace("²", "**2").replace("·", "*").replace("×", "*")
            assert eval(plain, {}, found.sizes) == row["bytes"], row.formula
            letters |= set(re.findall("[a-zV]", row.formula))
    assert letters == {"b", "s", "h", "V", "a", "n"}


def test_it_leads_on_to_other_recipes():
    found = from_formulas(llama(), Recipe("sgd", batch=2, sequence=32))
    clipped = found.at(clipping=True)
    assert clipped.how == "a dry run of just this step"
    assert clipped.peak == dry(llama(), clipped.recipe).peak


@pytest.mark.parametrize(
    "config",
    [
        models.configuration("qwen3-8b"),
        models.ConvNetConfig(),
        llama(hidden_size=192),
        llama(attention_dropout=0.1),
        llama(tie_word_embeddings=True),
        gpt2(resid_pdrop=0.0),
        gpt2(n_inner=200),
        distilbert(labels=5),
        llama(2),
    ],
    ids=[
        "family",
        "no transformer",
        "width of heads",
        "dropout",
        "tied",
        "no dropout",
        "inner width",
        "classes",
        "depth",
    ],
)
def test_for_another_kind_of_model_there_is_none(config):
    assert from_formulas(config, Recipe(batch=2, sequence=32)) is None


@pytest.mark.parametrize("changes", [{"optimizer": "adamw8bit"}, {"optimizer": torch.optim.AdamW}, {"accumulation": 2}])
def test_for_another_recipe_there_is_none(changes):
    assert from_formulas(llama(), replace(Recipe(), **changes)) is None


def test_the_file_holds_what_would_be_written():
    assert shipped().keys() - {"versions", "families"} == {name_of(*key) for key in keys()}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("family", "recipe"),
    [
        ("llama, grouped heads", Recipe("sgd", "autocast", batch=2, checkpointing=True, device="cuda")),
        ("llama, grouped heads", Recipe("adafactor", batch=2)),
        ("llama, grouped heads", Recipe("sgd", "bf16", batch=1)),
    ],
    ids=lambda value: f"{value.optimizer} {value.precision}" if isinstance(value, Recipe) else value,
)
def test_formulas_found_again_are_the_same(family, recipe):
    config = FAMILIES[family]()
    found, known = lettered(source_of(config), recipe), load(name_of(family, recipe))
    assert set(found.polynomials) == set(known.polynomials)
    sizes = {"b": recipe.batch, "s": 32, **sizes_of(config)}
    for blocks in (3, 6, 10):
        one, other = found.log(sizes, blocks), known.log(sizes, blocks)
        assert np.array_equal(one.changes, other.changes)
        assert list(map(sign, one.labels)) == list(
            map(sign, other.labels)
        )  # any of equal blocks may be the repeated one
