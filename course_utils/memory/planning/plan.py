"""Whether a step fits on a card, what to change if it does not, and how large batch and sequence can be."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from course_utils.errors import CourseError
from course_utils.hardware import Machine
from course_utils.hardware.machine import NoRateError
from course_utils.memory.formulas.estimate import Estimate
from course_utils.memory.formulas.finder import finder_of
from course_utils.memory.formulas.prediction import Trial
from course_utils.memory.formulas.trial import try_recipe
from course_utils.memory.planning.largest import largest_sizes
from course_utils.memory.planning.need import FITS, Need, fits
from course_utils.memory.planning.progress import Progress
from course_utils.memory.planning.result import FEWEST_CARDS, Plan
from course_utils.memory.planning.search import Search
from course_utils.memory.step.model import ModelLike, Source, source_of
from course_utils.memory.step.recipe import Recipe


def plan(
    model: ModelLike,
    memory: int,
    recipe: Recipe = Recipe("adamw-foreach", device="cuda"),  # noqa: B008 frozen
    *,
    batch: Callable[[int, int], object] | None = None,
    machine: Machine | None = None,
    cards: Sequence[int] = (2, 4, 8, 16, 32, 64, 128, 256, 512),
    progress: Progress = Progress(),  # noqa: B008 it has no state
) -> Plan:
    """Whether a step of `model` by `recipe` fits into `memory` bytes of a card, and what to change if it does not.

    - `model` and `batch` are as for `estimate`.
    - `machine`: each row has its predicted seconds on it.
    - `cards` are numbers of cards, in ascending order, of which the least that is enough is found.
    - `progress` gets what is done and known on the way.

    Raises `CourseError` as `estimate` does, and for a card without memory.
    """
    if not memory > 0:
        raise CourseError(f"A card of {memory} bytes holds nothing; give its memory, as memory=24 * GiB.")
    source = source_of(model, batch)
    progress.report("the step as it is")
    why_no_seconds = ""
    try:
        trial = try_recipe(source, recipe, machine)
    except NoRateError as error:  # bytes are the same on any machine
        machine = None
        why_no_seconds = f"Seconds are not known: {error}"
        trial = try_recipe(source, recipe)
    finder = finder_of(source, recipe)
    finder.remember(trial)
    base = Estimate(source.name, recipe, trial.log, trial.basis, finder)
    need = Need.from_log(trial.log, recipe.device)
    verdict = need.verdict(memory)

    result = Plan(source.name, recipe, memory, base, trial, need, verdict, why_no_seconds=why_no_seconds)
    progress.show_verdict(result)
    if verdict != FITS:
        result = Search(source, result, machine, progress).run()
    progress.report("finding the largest that fits")
    largest = largest_sizes(finder, recipe, memory, trial)
    if verdict != FITS and recipe.device == "cuda" and cards:
        enough = [count for count in cards if _least_of_a_share(trial, count) < memory]
        with suppress(CourseError):  # ZeRO-3 contradicts the recipe
            largest[FEWEST_CARDS] = _fewest_cards(source, recipe, memory, enough, progress)
    return replace(result, largest=largest, most_cards=max(cards, default=0))


def _least_of_a_share(trial: Trial, ranks: int) -> float:
    """The least bytes that each of `ranks` needs if parameters, gradients and state are sharded, and nothing is gathered."""
    shared = {"parameters", "gradients", "optimizer state", "optimizer temporaries"}
    if trial.recipe.precision == "autocast":  # autocast's copies of the weights are among the activations
        shared.add("activations")
    in_use = (kinds.items() for kinds in trial.kinds_by_phase.values())
    return max(sum(size / ranks if kind in shared else size for kind, size in kinds) for kinds in in_use)


def _fewest_cards(source: Source, recipe: Recipe, memory: int, cards: Sequence[int], progress: Progress) -> int | None:
    """The least number in `cards` that is enough by ZeRO-3; None if even the last is not.

    The first is tried first, since it mostly is enough; then bisection, since with more cards each needs less.
    """

    def is_enough(count: int) -> bool:
        progress.report(f"trying {count} cards")
        shared = replace(recipe, zero_stage=3, ranks=count, replicas=1, in_backward=False)
        return fits(try_recipe(source, shared, traffic=False).log, recipe.device, memory)

    if not cards or is_enough(cards[0]):
        return next(iter(cards), None)
    return cards[bisect_left(cards, True, 1, len(cards) - 1, key=is_enough)] if is_enough(cards[-1]) else None
