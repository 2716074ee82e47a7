"""Which lengths of a sequence agree with a published largest batch: the unknown of a table, worked out backwards."""

from dataclasses import replace
from typing import NamedTuple

from course_utils.errors import CourseError
from course_utils.memory import Recipe, estimate
from course_utils.memory.plan import most_that_fits


class Lengths(NamedTuple):
    """From `shortest` to `longest` tokens."""

    shortest: int
    longest: int


def consistent_lengths(config, recipe: Recipe, largest: int, budget: float) -> Lengths | None:
    """The lengths at which a micro-batch of `largest` examples fits into `budget` bytes and one of `largest + 1` does not.

    `config` as for `estimate`; the recipe's own batch and sequence do not matter. None where there is no such length. Raises
    `CourseError` for a batch below 1 and a budget that is not above 0.
    """
    if largest < 1 or not budget > 0:
        raise CourseError(f"A largest batch of {largest} in {budget} bytes says nothing; give numbers above 0.")

    start, limit = min(128, config.max_position_embeddings), config.max_position_embeddings
    finder = estimate(config, replace(recipe, batch=largest, sequence=start)).finder

    def longest_of(batch: int) -> int:
        return most_that_fits(finder, lambda s: (batch, s), start, limit, lambda log: log.peak <= budget) or 0

    longest, shortest = longest_of(largest), 1 + longest_of(largest + 1)
    return Lengths(shortest, longest) if shortest <= longest else None
