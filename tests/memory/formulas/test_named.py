"""Shipped formulas of named models, which equal dry runs to the byte and need no torch."""

import os
import random
import subprocess
import sys
from dataclasses import replace

import pytest

from course_utils import models
from course_utils.memory.formulas.estimate import estimate
from course_utils.memory.formulas.letters import LENGTH_STEP
from course_utils.memory.formulas.named import look_up
from course_utils.memory.formulas.named import models as named_models
from course_utils.memory.formulas.trial import try_recipe
from course_utils.memory.planning.at_once import known_recipes
from course_utils.memory.step.model import source_of
from course_utils.memory.step.recipe import LOOPS, Recipe

DEFAULT = Recipe(**LOOPS["trainer"], device="cuda")
RECIPES = tuple(known_recipes())
IN_BACKWARD = {"in_backward": True, "clipping": False}
NOT_CONFIRMED = {
    "llama-2-70b": [{"batch": 2, "lora": 16, "checkpointing": True}],
    "llama-3-8b": [{"batch": 2, "precision": "bf16", "optimizer": "sgd", "checkpointing": True, **IN_BACKWARD}],
    "llama-3.2-1b": [{"batch": 1, "accumulation": 2, "checkpointing": True}],
}
"""By model, changes for which formulas did not equal dry runs at the largest sizes, so that none are shipped."""
BARE = """
import sys
from importlib.metadata import packages_distributions

ours = {*sys.stdlib_module_names, "course_utils", "course_staff", "numpy", "yaml", "_yaml"}
sys.modules |= dict.fromkeys(packages_distributions().keys() - ours)
from course_utils.cli import main

code = main(sys.argv[1:])
assert not sys.modules["torch"]
sys.exit(code)
"""
"""A program that runs `course` with only the packages that the bare wheel requires."""


def draw(seed):
    """A random model and recipe for which the archive has formulas; a window of attention limits some models' lengths."""
    generator = random.Random(seed)
    name = generator.choice(list(named_models()))
    shuffled = generator.sample(RECIPES, len(RECIPES))
    recipe = next(recipe for recipe in shuffled if look_up(name, replace(recipe, sequence=512)))
    batches = (1,) if recipe.batch == 1 else (2, 3, 8, 50)
    rounds = 1 if recipe.accumulation == 1 else generator.choice((2, 3, 8))
    config = source_of(name).config
    window = 2048 if getattr(config, "sliding_window", None) else 8192
    longest = min(config.max_position_embeddings, window) // LENGTH_STEP
    sizes = {"batch": generator.choice(batches), "sequence": LENGTH_STEP * generator.randint(2, longest)}
    return name, replace(recipe, **sizes, accumulation=rounds)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 150))])
def test_shipped_formulas_are_a_dry_run_to_the_byte(seed):
    name, recipe = draw(seed)
    shipped, answer = look_up(name, recipe)
    trial, expected = try_recipe(source_of(name), recipe), estimate(name, recipe)
    figures = (shipped.log.peak, shipped.log.reserved, shipped.host.peak, shipped.sent)
    assert figures == (trial.log.peak, trial.log.reserved, trial.host.peak, trial.sent), (name, recipe)
    assert answer.by_instant() == expected.by_instant()
    actual_terms, terms = (estimated.peak_instant.terms_in_bytes for estimated in (answer, expected))
    assert [(term.name, term.bytes) for term in actual_terms] == [(term.name, term.bytes) for term in terms]


@pytest.mark.slow
@pytest.mark.parametrize("name", list(named_models()))
def test_every_model_is_known_by_every_recipe(name):
    sizes = {1: {"sequence": 512}, 2: {"sequence": 512, "batch": 16}}
    unknown = {recipe for recipe in RECIPES if look_up(name, replace(recipe, **sizes[recipe.batch])) is None}
    calls_it_otherwise = source_of(name).config.model_type in ("bert", "distilbert", "gpt2", "roberta")  # than q_proj
    impossible = {recipe for recipe in RECIPES if recipe.lora_targets and calls_it_otherwise}
    assert unknown == impossible | {replace(DEFAULT, **fields) for fields in NOT_CONFIRMED.get(name, ())}


def test_every_published_model_is_in_the_archive():
    assert set(named_models()) == set(models.NAMES) - set(models.FAMILIES)


@pytest.mark.parametrize(
    "changes",
    [{"sequence": 1000}, {"batch": 1000}, {"accumulation": 4}, {"loop": "own"}, {"lora": 8}, {"device": "cpu"}],
    ids=str,
)
def test_what_was_not_confirmed_is_not_answered(changes):
    recipe = replace(DEFAULT, batch=4, sequence=512)
    changes = LOOPS["own"] if "loop" in changes else changes
    assert look_up("gpt2-small", recipe)
    assert look_up("gpt2-small", replace(recipe, **changes)) is None
    assert look_up("no-such-model", recipe) is None


def test_an_estimate_from_the_archive_prints_changes_and_runs_as_any_other():
    _, answer = look_up("gpt2-small", replace(DEFAULT, sequence=512))
    expected = estimate("gpt2-small", answer.recipe)
    assert str(answer).splitlines()[0] == str(expected).splitlines()[0]
    columns = ["kind", "what", "bytes"]
    assert answer.working()[columns].equals(expected.working()[columns])
    assert answer.sizes == {"b": answer.recipe.batch, "s": 512}
    assert answer.with_fields(batch=2).peak == expected.with_fields(batch=2).peak
    assert answer.workload.source == expected.workload.source


def test_the_bare_wheel_answers_for_a_named_model_and_says_what_all_else_needs(tmp_path):
    def run(*argv):
        environment = os.environ | {"COURSE_HOME": str(tmp_path)}
        command = [sys.executable, "-c", BARE, *argv]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)

    result = run("plan", "llama-3.1-8b", "--memory", "24GB")
    assert (result.returncode, result.stderr) == (1, "")
    assert result.stdout.startswith("llama-3.1-8b: does not fit in 24.0 GiB.")
    assert "What would make it fit" in result.stdout
    searched = run("plan", "llama-3.1-8b", "--memory", "24GB", "--search")
    assert (searched.returncode, searched.stdout) == (2, "")
    assert "course-utils[course" in searched.stderr
    for argv in (("plan", "config.json", "--memory", "24GB"), ("plan", "gpt2", "--memory", "1GB"), ("ledger",)):
        result = run(*argv)
        assert result.returncode == 2
        assert result.stderr.count("\n") == 1
        assert "course-utils[course" in result.stderr or "no file" in result.stderr
    assert "--memory SIZE" in run("plan", "-h").stdout
