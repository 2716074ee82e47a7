"""Shipped formulas of named models: a dry run to the byte, without torch."""

import os
import random
import subprocess
import sys
from dataclasses import replace

import pytest

from course_utils import models
from course_utils.memory.formulas.estimate import estimate
from course_utils.memory.formulas.named import RECIPES, STEP, look_up
from course_utils.memory.formulas.named import models as named_models
from course_utils.memory.formulas.trial import attempt
from course_utils.memory.plan.at_once import rows_at_once, verdict_at_once
from course_utils.memory.plan.changes import CHANGES
from course_utils.memory.plan.plan import plan
from course_utils.memory.step.model import source_of
from course_utils.memory.step.recipe import LOOPS, Recipe
from course_utils.units import GiB

DEFAULT = Recipe(**LOOPS["trainer"], device="cuda")
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
"""A Python that has what the bare wheel brings."""


def draw(seed, count):
    """Models, recipes and sizes that the archive answers; a window of attention ends some lengths early."""
    drawn = random.Random(seed)
    for _ in range(count):
        name, recipe = drawn.choice(list(named_models())), drawn.choice(RECIPES)
        config = source_of(name).config
        most = 2048 if getattr(config, "sliding_window", None) else 8192
        longest = min(config.max_position_embeddings, most) // STEP
        yield name, replace(recipe, batch=drawn.choice((1, 2, 3, 8, 50)), sequence=STEP * drawn.randint(2, longest))


def assert_is_a_dry_run(name, recipe):
    shipped, answer = look_up(name, recipe)
    trial, expected = attempt(source_of(name), recipe), estimate(name, recipe)
    figures = (shipped.log.peak, shipped.log.reserved, shipped.host.peak, shipped.sent)
    assert figures == (trial.log.peak, trial.log.reserved, trial.host.peak, trial.sent)
    assert answer.by_instant() == expected.by_instant()
    assert [(term.name, term.bytes) for term in answer.peak_instant.parts] == [
        (term.name, term.bytes) for term in expected.peak_instant.parts
    ]


@pytest.mark.parametrize(("name", "recipe"), list(draw(0, 4)))
def test_shipped_formulas_are_a_dry_run_to_the_byte(name, recipe):
    assert_is_a_dry_run(name, recipe)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(named_models()))
def test_every_model_is_known_by_every_recipe(name):
    assert all(look_up(name, replace(recipe, batch=batch, sequence=512)) for recipe in RECIPES for batch in (1, 16))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "recipe"), list(draw(1, 150)))
def test_shipped_formulas_are_a_dry_run_to_the_byte_wherever(name, recipe):
    assert_is_a_dry_run(name, recipe)


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


def test_the_verdict_at_once_is_the_plans_and_each_row_does_what_it_says():
    recipe, first = replace(DEFAULT, batch=2, sequence=512), []
    verdict = verdict_at_once("gpt2-small", 2 * GiB, recipe)
    with pytest.raises(StopIteration):
        plan("gpt2-small", 2 * GiB, recipe, show=lambda part: (first.append(part), next(iter(()))))
    assert (verdict.headline, verdict.estimate.by_instant()) == (first[0].headline, first[0].estimate.by_instant())
    rows = rows_at_once(verdict)
    assert rows
    assert [row.level for row in rows] == sorted(row.level for row in rows)
    changes = {change.name: change for change in CHANGES}
    for row in rows:
        fields = {name: value for one in row.names for name, value in changes[one].apply(recipe).items()}
        assert replace(recipe, **fields) == row.recipe
        assert row.need[1] <= 2 * GiB
        assert row.peak == attempt(source_of("gpt2-small"), row.recipe).peak


def test_the_bare_wheel_answers_for_a_named_model_and_says_what_all_else_needs(tmp_path):
    def ask(*words):
        environment = os.environ | {"COURSE_HOME": str(tmp_path)}
        command = [sys.executable, "-c", BARE, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)

    done = ask("plan", "llama-3.1-8b", "--memory", "24GB")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("llama-3.1-8b: does not fit in 24.0 GiB.")
    assert "course-utils[course]" in done.stdout
    for words in (("plan", "config.json", "--memory", "24GB"), ("plan", "gpt2", "--memory", "1GB"), ("ledger",)):
        done = ask(*words)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "course-utils[course" in done.stderr or "no file" in done.stderr
    assert "--memory SIZE" in ask("plan", "-h").stdout
