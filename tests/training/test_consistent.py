"""Lengths that agree with a published batch, against dry runs just inside and just outside of them."""

import pytest

from course_utils import models
from course_utils.errors import CourseError
from course_utils.memory import Recipe, Workload, dry_run
from course_utils.training.consistent import consistent_lengths

GPT2 = models.configuration("gpt2", n_embd=16, n_layer=1, n_head=2, vocab_size=50, n_positions=12)


def peak(batch, length):
    work = Workload(GPT2, Recipe(batch=batch, sequence=length))
    return dry_run(work.build, work.step).peak


def test_the_ends_of_the_stretch_are_where_dry_runs_begin_and_cease_to_fit():
    budget = peak(2, 8) + 100
    shortest, longest = consistent_lengths(GPT2, Recipe(), 2, budget)
    assert shortest <= 8 <= longest
    assert peak(2, longest) <= budget < peak(2, longest + 1)
    assert peak(3, shortest - 1) <= budget < peak(3, shortest)


def test_where_nothing_fits_or_everything_does_there_is_none():
    assert consistent_lengths(GPT2, Recipe(), 2, 1) is None
    assert consistent_lengths(GPT2, Recipe(), 2, 1e12) is None


@pytest.mark.parametrize(("largest", "budget"), [(0, 1e9), (1, 0)])
def test_numbers_that_say_nothing_are_refused(largest, budget):
    with pytest.raises(CourseError, match="give numbers above 0"):
        consistent_lengths(GPT2, Recipe(), largest, budget)
