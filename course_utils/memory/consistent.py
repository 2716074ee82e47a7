"""Which lengths of a sequence agree with a published largest batch: the unknown of a table, worked out by the pencil."""

from dataclasses import replace
from typing import NamedTuple

from course_utils.errors import CourseError
from course_utils.memory.estimate import estimate
from course_utils.memory.recipe import Recipe


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
    longest = _longest(config, replace(recipe, batch=largest), budget)
    shortest = 1 + _longest(config, replace(recipe, batch=largest + 1), budget)
    return Lengths(shortest, longest) if shortest <= longest else None


def _longest(config, recipe: Recipe, budget: float) -> int:
    """The longest sequence that fits, 0 for none: more tokens never take less memory.

    Peaks grow about evenly, so a straight line between two lengths guesses well; every second guess is the middle.
    """

    def spare(length: int) -> float:
        return budget - estimate(config, replace(recipe, sequence=length)).peak

    low, high = 1, config.max_position_embeddings
    over, under = spare(low), spare(high)
    if over < 0 or under >= 0:
        return 0 if over < 0 else high
    straight = True
    while high - low > 1:
        guess = low + round((high - low) * (over / (over - under) if straight else 0.5))
        guess, straight = min(max(guess, low + 1), high - 1), not straight
        left = spare(guess)
        low, over, high, under = (guess, left, high, under) if left >= 0 else (low, over, guess, left)
    return low
