"""Lengths that agree with a published batch, against the estimate tried length by length."""

import pytest

from course_utils import models
from course_utils.errors import CourseError
from course_utils.memory import Recipe, estimate
from course_utils.training.consistent import consistent_lengths

GPT2 = models.configuration("gpt2", n_embd=16, n_layer=1, n_head=2, vocab_size=50, n_positions=40)


def tried(recipe: dict, largest: int, budget: int) -> list[int]:
    def peak(batch, length):
        return estimate(GPT2, Recipe(**recipe, batch=batch, sequence=length)).peak

    return [n for n in range(1, 41) if peak(largest, n) <= budget < peak(largest + 1, n)]


@pytest.mark.parametrize("recipe", [{}, {"zero_stage": 3, "ranks": 2}, {"attention": "eager"}])
@pytest.mark.parametrize("largest", [1, 3])
def test_the_stretch_is_what_trying_finds(recipe, largest):
    budget = estimate(GPT2, Recipe(**recipe, batch=largest, sequence=20)).peak + 1000
    expected = tried(recipe, largest, budget)
    assert expected
    assert consistent_lengths(GPT2, Recipe(**recipe), largest, budget) == (expected[0], expected[-1])


def test_where_nothing_fits_or_everything_does_there_is_none():
    assert consistent_lengths(GPT2, Recipe(), 1, 1) is None
    assert consistent_lengths(GPT2, Recipe(), 1, 1e12) is None


@pytest.mark.parametrize(("largest", "budget"), [(0, 1e9), (1, 0)])
def test_numbers_that_say_nothing_are_refused(largest, budget):
    with pytest.raises(CourseError, match="give numbers above 0"):
        consistent_lengths(GPT2, Recipe(), largest, budget)
