"""A verdict for a named model as far as shipped formulas tell it: within a second, and without torch."""

from dataclasses import replace
from itertools import chain, combinations
from math import nan

from course_utils.errors import CourseError
from course_utils.memory.formulas.named import RECIPES, look_up
from course_utils.memory.plan.changes import CHANGES, Change
from course_utils.memory.plan.verdict import FITS, Option, Plan, needs, verdict_of
from course_utils.memory.step.recipe import Recipe

_TOGETHER = 3
"""Changes of a row at most."""
_SHOWN = 6


def verdict_at_once(name: str, memory: int, recipe: Recipe) -> Plan | None:
    """The plan without rows and largest sizes; None where the formulas do not know this model or recipe."""
    stored = look_up(name, recipe)
    if stored is None:
        return None
    trial, estimate = stored
    need = needs(trial.log, recipe.device)
    verdict = verdict_of(need, memory)
    return Plan(model=name, recipe=recipe, memory=memory, estimate=estimate, trial=trial, need=need, verdict=verdict)


def rows_at_once(plan: Plan) -> tuple[Option, ...]:
    """Of the recipes that the formulas know those that fit, the least disturbing first."""
    rows = []
    for recipe, changes in _reach(plan.recipe).items():
        stored = look_up(plan.model, recipe)
        if stored is None or verdict_of(need := needs(stored[0].log, recipe.device), plan.memory) != FITS:
            continue
        peak = stored[0].log.peak
        rows.append(
            Option(
                names=tuple(change.name for change in changes),
                level=max(change.level for change in changes),
                costs="; ".join(change.costs for change in changes),
                peak=peak,
                need=need,
                verdict=FITS,
                saves=plan.trial.log.peak - peak,
                seconds=nan,
                sent=0,
                how=stored[1].how,
                recipe=recipe,
            )
        )
    return tuple(sorted(rows, key=lambda row: (row.level, len(row.names), row.peak))[:_SHOWN])


def _reach(recipe: Recipe) -> dict[Recipe, tuple[Change, ...]]:
    """By recipe, the fewest changes that lead to it, of those that the formulas know at this batch and length."""
    targets = {replace(one, batch=recipe.batch, sequence=recipe.sequence) for one in RECIPES}
    useful = [change for change in CHANGES if change.apply(recipe)]
    by_recipe = {}
    for changes in chain.from_iterable(combinations(useful, count) for count in range(1, _TOGETHER + 1)):
        fields = {name: value for change in changes for name, value in change.apply(recipe).items()}
        try:
            changed = replace(recipe, **fields)
        except CourseError:  # they do not go together
            continue
        if changed in targets and changed != recipe:
            by_recipe.setdefault(changed, changes)
    return by_recipe
