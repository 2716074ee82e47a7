"""The plan of a named model by shipped formulas, compared with the plan by dry runs."""

from dataclasses import replace
from unittest.mock import Mock

import pytest

from course_utils.memory.formulas.letters import LENGTH_STEP
from course_utils.memory.formulas.trial import try_recipe
from course_utils.memory.planning.at_once import plan_at_once
from course_utils.memory.planning.changes import CHANGES, apply_all
from course_utils.memory.planning.need import fits
from course_utils.memory.planning.plan import plan
from course_utils.memory.step.model import source_of
from course_utils.memory.step.recipe import LOOPS, Recipe
from course_utils.units import GiB

DEFAULT = Recipe(**LOOPS["trainer"], device="cuda")


def test_the_plan_at_once_is_the_plan_and_each_row_does_what_it_says():
    recipe = replace(DEFAULT, batch=2, sequence=512)
    answer = plan_at_once("gpt2-small", 2 * GiB, recipe)
    progress = Mock(show_verdict=Mock(side_effect=StopIteration))
    with pytest.raises(StopIteration):
        plan("gpt2-small", 2 * GiB, recipe, progress=progress)
    (first,) = progress.show_verdict.call_args.args
    assert (answer.headline, answer.estimate.by_instant()) == (first.headline, first.estimate.by_instant())
    assert answer.rows
    assert [row.level for row in answer.rows] == sorted(row.level for row in answer.rows)
    for row in answer.rows:
        assert apply_all(recipe, [change for change in CHANGES if change.name in row.names]) == row.recipe
        assert row.need.high <= 2 * GiB
        assert row.peak == try_recipe(source_of("gpt2-small"), row.recipe).peak
        assert not any(set(other.names) < set(row.names) for other in answer.rows)


def test_the_largest_sizes_at_once_are_the_last_that_fit():
    def fits_with(**sizes):
        recipe = replace(DEFAULT, **{"batch": 4, "sequence": 512, **sizes})
        return fits(try_recipe(source_of("gpt2-small"), recipe).log, "cuda", 6 * GiB)

    answer = plan_at_once("gpt2-small", 6 * GiB, replace(DEFAULT, batch=4, sequence=512))
    batch, length = answer.largest.values()
    assert answer.open_ended == ()
    assert fits_with(batch=batch)
    assert fits_with(sequence=length)
    assert not fits_with(batch=batch + 1)
    assert not fits_with(sequence=length + LENGTH_STEP)


def test_where_the_largest_that_formulas_know_fits_it_may_be_more():
    answer = plan_at_once("gpt2-small", 180 * GiB, replace(DEFAULT, sequence=512))
    assert answer.largest == {"largest batch": 64, "longest sequence": None}
    assert answer.open_ended == ("largest batch",)
    assert str(answer).endswith("largest batch: 64 or more")
    longer = plan_at_once("llama-3.2-1b", 180 * GiB, replace(DEFAULT, batch=1, sequence=16384, checkpointing=True))
    assert longer.largest["largest batch"] == 1, "two examples are known up to 8,192 tokens"
    assert "largest batch: 1 or more" in str(longer)
