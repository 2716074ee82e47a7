"""The largest batch and the longest sequence that fit."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from course_utils.errors import CourseError
from course_utils.memory.formulas.letters import LENGTH_STEP
from course_utils.memory.planning.need import fits
from course_utils.memory.planning.result import LARGEST_BATCH, LONGEST_SEQUENCE
from course_utils.memory.step.recipe import Recipe

if TYPE_CHECKING:
    from course_utils.memory.formulas.finder import FormulaFinder
    from course_utils.memory.formulas.prediction import Trial
    from course_utils.memory.trace.log import Log

_NO_LIMIT = 2**20


def largest_sizes(finder: "FormulaFinder", recipe: Recipe, memory: int, trial: "Trial") -> dict[str, int | None]:
    """The largest batch and the longest sequence that fit into `memory` bytes: 0 if none does, None if it does not matter."""
    if sum(trial.kinds_by_phase.get("update", {}).values()) > memory:  # the update's bytes do not depend on the batch
        return {LARGEST_BATCH: 0, LONGEST_SEQUENCE: 0}
    positions = finder.source.positions
    # A chunked loss and a teacher's choose tokens by their labels, whose values a dry run knows only up to this many tokens.
    by_labels = recipe.chunked_loss or recipe.teacher
    rows, length = (_NO_LIMIT // n if by_labels else _NO_LIMIT for n in (recipe.sequence, recipe.batch))
    fits_on_card = partial(fits, device=recipe.device, memory=memory)
    batch = largest_confirmed(finder, lambda b: (b, recipe.sequence), recipe.batch, rows, fits_on_card)
    unit = 2 * recipe.context_parallel if recipe.context_parallel > 1 else 1  # lengths are multiples of it
    start = recipe.sequence // unit
    limit = min(positions or length, length) // unit
    longest = largest_confirmed(finder, lambda n: (recipe.batch, n * unit), start, limit, fits_on_card)
    largest = {LARGEST_BATCH: (batch, rows), LONGEST_SEQUENCE: (longest and longest * unit, length // unit * unit)}
    # If even the limit fits, the size is no constraint: None.
    return {name: None if count == limit else count or 0 for name, (count, limit) in largest.items()}


def largest_confirmed(
    finder: "FormulaFinder",
    sizes_of: Callable[[int], tuple[int, int]],
    start: int,
    limit: int,
    is_enough: "Callable[[Log], bool]",
) -> int | None:
    """The largest number up to `limit` whose log `is_enough`; `sizes_of` gives its batch and sequence. None if there is none.

    It is found by formulas and confirmed by a dry run. If formulas do not hold there, dry runs near it find the largest; if they
    are far off, dry runs alone do.
    """

    def fits_by(log_of: "Callable[[int, int], Log]", n: int) -> bool:
        try:
            return is_enough(log_of(*sizes_of(n)))
        except CourseError:  # the model does not take that many
            return False

    confirm = partial(fits_by, lambda b, s: finder.log(b, s)[0])
    guessed = largest_that_fits(partial(fits_by, finder.guess), start, limit)
    if guessed is None:
        return None
    if confirm(guessed):
        formulas = finder.formulas_for(*sizes_of(guessed))
        if formulas is not None and formulas.holds(*sizes_of(guessed)):
            return guessed
        low, step = guessed, 1
        while low + step <= limit and confirm(low + step):
            low, step = low + step, 2 * step
        return _bisect(confirm, low, min(low + step, limit + 1))
    rounded = guessed // LENGTH_STEP * LENGTH_STEP  # a length to which kernels round up
    if rounded and confirm(rounded):
        return _bisect(confirm, rounded, guessed)
    return largest_that_fits(confirm, start, limit)


def _bisect(is_enough: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number that is enough, by bisection; `low` is enough and `high` is not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_enough(middle) else (low, middle)
    return low


def largest_that_fits(is_enough: Callable[[int], bool], start: int, limit: int) -> int | None:
    """The largest number up to `limit` that is enough; None if none is. It is found by doubling or halving, then by bisection.

    Reserved bytes do not grow evenly, so a smaller number need not be enough. The search begins at a power of two, since else its
    answer would depend on `start`.
    """
    low = high = 1 << start.bit_length() - 1
    if is_enough(low):
        while high < limit and is_enough(min(2 * high, limit)):
            high = low = min(2 * high, limit)
        if high >= limit:
            return limit
        high = min(2 * high, limit)
    else:
        while low > 1 and not is_enough(low := low // 2):
            high = low
        if low == 1 and not is_enough(1):
            return start if is_enough(start) else None
    low = _bisect(is_enough, low, high)
    return start if start > low and is_enough(start) else low
