"""Chapter 13: a scenario on this machine, a recipe that takes the bytes it promised, figures that say what they draw."""

import math

import pytest

from course_utils.capstone.kept import load
from course_utils.capstone.scenarios import weigh
from course_utils.lessons import c13_capstone as lesson
from course_utils.memory import measure
from course_utils.memory.step.recipe import Recipe
from course_utils.memory.step.workload import Workload
from course_utils.settings import settings

LENGTH = settings().scale.sequence
PLAIN = Recipe(batch=16, sequence=LENGTH)
SMALL = Recipe("adafactor", batch=2, sequence=LENGTH, accumulation=8)


def test_half_of_what_plain_adamw_really_takes_is_there():
    work = Workload(lesson.own_scenario().source, PLAIN)
    assert lesson.own_scenario().memory == pytest.approx(measure(work.build(), work.step, timed=0).peak / 2, rel=0.001)
    assert not weigh(lesson.own_scenario(), PLAIN).fits


def test_a_proved_recipe_takes_the_bytes_it_promised_and_is_kept_with_them():
    proof, weighed = lesson.prove(SMALL), weigh(lesson.own_scenario(), SMALL)
    assert weighed.fits
    assert proof.peak == pytest.approx(weighed.estimate.peak, rel=0.001)
    (own_choice,) = (choice for choice in load() if choice.scenario == "here")
    assert [row.measured for row in own_choice.rows] == [proof.peak, proof.seconds]
    assert own_choice.recipe == {"optimizer": "adafactor", "batch": 2, "sequence": LENGTH, "accumulation": 8}


def test_the_libraries_make_the_updates_that_the_recipe_asks_for():
    recipe = Recipe(batch=2, sequence=LENGTH, accumulation=8)
    for run in lesson.through_libraries(recipe, updates=2).values():
        assert run == ("AdamW", 2, 16, 2)


def test_the_figure_says_how_many_keep_the_budgets():
    by_name = {"plain": weigh(lesson.own_scenario(), PLAIN), "small": weigh(lesson.own_scenario(), SMALL)}
    figure, alt = lesson.budgets_figure(by_name)
    count = sum(w.fits and w.seconds <= lesson.own_scenario().seconds for w in by_name.values())
    assert figure.get_suptitle() == f"Within both budgets (dashed): {count} of 2"
    bytes_drawn = {bar.get_y(): 0.0 for bar in figure.axes[0].patches}
    for bar in figure.axes[0].patches:
        bytes_drawn[bar.get_y()] += bar.get_width()
    shares = [width / bytes_drawn[min(bytes_drawn)] for _, width in sorted(bytes_drawn.items())]
    assert shares == pytest.approx([w.estimate.peak / by_name["plain"].estimate.peak for w in by_name.values()])
    assert "plain: " in alt


@pytest.mark.parametrize("micro_batch", [1, 16])
def test_a_choice_is_drawn_or_told_why_not(micro_batch):
    _, alt = lesson.chosen_figure("adamw", "fp32", micro_batch, False, True)
    assert ("allows no clipping, accumulation" in alt) == (micro_batch == 1)
    assert math.isfinite(lesson.own_scenario().seconds)
