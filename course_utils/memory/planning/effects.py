"""What each change does to the bytes of each kind, the seconds and the traffic of a step, by dry runs with and without it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from course_utils.errors import CourseError
from course_utils.hardware import Machine
from course_utils.memory.formulas.prediction import Trial
from course_utils.memory.formulas.trial import try_recipe
from course_utils.memory.planning.changes import CHANGES, Change, apply_all
from course_utils.memory.planning.progress import Progress
from course_utils.memory.planning.search import try_each
from course_utils.memory.step.model import ModelLike, source_of
from course_utils.memory.step.recipe import Recipe

LEAST_REDUCTION = 0.2
"""The least share of a kind's bytes that must go for a change to count as lowering that kind."""
LEAST_SHARE_OF_PEAK = 0.05
"""Kinds with a smaller share of the bytes at a phase's fullest instant are ignored in that phase."""
LEAST_CHANGE_OF_PACE = 0.1
"""The least share by which a change of seconds or of bytes sent is worth showing."""


@dataclass(frozen=True)
class Effect:
    """What a change does to a step."""

    change: Change
    lowers: dict[str, tuple[str, ...]]  # by kind of bytes, the phases at whose fullest instant the change lowers it
    peak_kinds: frozenset[str]  # the kinds that are lowered in the phase that has most of them
    seconds: float  # a step's seconds, as a multiple of those without the change
    sent: float  # the bytes sent, as a multiple of those without the change


def effects(model: ModelLike, recipes: Sequence[Recipe], machine: Machine) -> dict[str, Effect]:
    """The effect of each change, by name, on the first of `recipes` to which it makes a difference; in the order of `CHANGES`.

    `model` is as for `estimate`. Raises `CourseError` if a change makes no difference to any of the recipes.
    """
    source = source_of(model)
    effects = {}
    for recipe in recipes:
        remaining = [change for change in CHANGES if change.name not in effects]
        base = try_recipe(source, recipe, machine)
        trials = try_each(remaining, source, recipe, machine, Progress())
        effects |= {change.name: effect_of(change, base, trial) for change, trial in trials if trial is not None}
    missing = [change.name for change in CHANGES if change.name not in effects]
    if missing:
        raise CourseError(f"No recipe here is one that {missing[0]!r} makes a difference to; give one more.")
    return {change.name: effects[change.name] for change in CHANGES}


def effect_of(change: Change, base: Trial, trial: Trial) -> Effect:
    """What `change` does, from a dry run of a step without it (`base`) and one with it."""
    maxima = base.log.most_of_kind()
    maxima_with_change = trial.log.most_of_kind()
    lowers = {}
    for phase, sizes in base.kinds_by_phase.items():
        for kind, size in sizes.items():
            if size < LEAST_SHARE_OF_PEAK * sum(sizes.values()):
                continue
            at_peak = trial.kinds_by_phase.get(phase, {}).get(kind, 0) / size
            # If the fullest instant has moved, it may have less of a kind although the phase has as much of it as before.
            ever = maxima_with_change.get((phase, kind), 0) / maxima[phase, kind]
            if max(at_peak, ever) <= 1 - LEAST_REDUCTION:
                lowers[kind] = (*lowers.get(kind, ()), phase)

    def fullest_phase(kind: str) -> str:
        return max(base.kinds_by_phase, key=lambda phase: base.kinds_by_phase[phase].get(kind, 0))

    peak_kinds = frozenset(kind for kind, phases in lowers.items() if fullest_phase(kind) in phases)
    sent = trial.sent / base.sent if base.sent else 1.0
    return Effect(change, lowers, peak_kinds, trial.seconds / base.seconds, sent)


def contradictions(recipes: Sequence[Recipe]) -> dict[str, list[tuple[str, str]]]:
    """Pairs of changes that contradict each other, by the sentence with which a recipe refuses them.

    Each change of a pair alone can be applied to one of `recipes`, and both together cannot.
    """
    by_sentence: dict[str, dict[tuple[str, str], None]] = {}  # the keys are the pairs, in order
    for recipe in recipes:
        possible = [change for change in CHANGES if change.apply(recipe) and not _refusal(recipe, [change])]
        for first, second in combinations(possible, 2):
            overlap = first.apply(recipe).keys() & second.apply(recipe).keys()
            if not overlap and (sentence := _refusal(recipe, [first, second])):
                by_sentence.setdefault(sentence, {})[first.name, second.name] = None
    return {sentence: list(pairs) for sentence, pairs in by_sentence.items()}


def _refusal(recipe: Recipe, changes: Sequence[Change]) -> str:
    try:
        apply_all(recipe, changes)
    except CourseError as error:
        return str(error)
    return ""
