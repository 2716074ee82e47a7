"""The plan for a named model by shipped formulas alone, in a second or two and without torch."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from course_utils.errors import CourseError
from course_utils.memory.formulas.letters import LENGTH_STEP
from course_utils.memory.formulas.named import bounds_of, look_up
from course_utils.memory.planning.changes import (
    CHANGES,
    LORA,
    Change,
    apply_all,
    disturbance,
    gentler_than,
    is_full,
    least_disturbing,
    level_of,
)
from course_utils.memory.planning.largest import largest_that_fits
from course_utils.memory.planning.need import FITS, Need, fits
from course_utils.memory.planning.result import LARGEST_BATCH, LONGEST_SEQUENCE, Plan, Row
from course_utils.memory.step.recipe import LOOPS, Recipe

# Names of changes of the optimizer and of what is trained, by the other changes with which they are combined.
_BASES = {
    (): ("", "8-bit AdamW", "Adafactor", "optimizer on the host", LORA, "QLoRA of rank 16"),
    ("autocast",): ("", "8-bit AdamW", "Adafactor", "QLoRA of rank 16"),
    ("all in bfloat16",): ("", "8-bit AdamW", "paged 8-bit AdamW", "4-bit AdamW", "Adafactor", "optimizer on the host",
                           f"{LORA} on q_proj and v_proj", LORA, "QLoRA of rank 16"),
    ("all in bfloat16", "update within backward"): ("paged 8-bit AdamW", "Adafactor", "SGD"),
}  # fmt: skip
_MILD_SETS = tuple(product(("", "gradient checkpointing"), ("", "micro-batch of 1")))
_NAME_SETS = [{*base, name, *mild} - {""} for base, names in _BASES.items() for name in names for mild in _MILD_SETS]
# Sets of names of common changes that go together, the least disturbing first.
_COMBINATIONS = sorted(filter(None, _NAME_SETS), key=disturbance)


def known_recipes() -> Iterator[Recipe]:
    """The recipes for which formulas are shipped: Trainer's loop on a GPU, and that with each combination of changes."""
    for batch in (1, 2):
        recipe = Recipe(**LOOPS["trainer"], device="cuda", batch=batch)
        yield from dict.fromkeys([recipe, *(variant for _, variant in _apply_combinations(recipe))])


def plan_at_once(name: str, memory: int, recipe: Recipe) -> Plan | None:
    """The plan by formulas alone; None if there are none for this model and recipe."""
    formulas = look_up(name, recipe)
    if formulas is None:
        return None
    trial, estimate = formulas
    need = Need.from_log(trial.log, recipe.device)
    verdict = need.verdict(memory)
    plan = Plan(model=name, recipe=recipe, memory=memory, estimate=estimate, trial=trial, need=need, verdict=verdict)
    largest, open_ended = _largest(plan)
    plan = replace(plan, largest=largest, open_ended=open_ended)
    if verdict == FITS:
        return plan
    rows, tight = [], []
    for changes, variant in _apply_combinations(recipe):
        names = {change.name for change in changes}
        # A row with some of the changes makes all of them unnecessary.
        if is_full(rows, level_of(changes)) or any({*row.names} <= names for row in rows):
            continue
        trial, _ = look_up(name, variant) or (None, None)
        if trial is None or Need.from_log(trial.log, recipe.device, replay=False).low > memory:
            continue
        if fits(trial.log, recipe.device, memory):
            rows.append(Row.from_trial(plan, changes, trial))
        else:
            tight.append((changes, trial))
    by_peak = sorted(gentler_than(rows, tight), key=lambda pair: (pair[1].log.peak, [c.name for c in pair[0]]))
    nearest = Row.from_trial(plan, *by_peak[0]) if by_peak else None
    return replace(plan, rows=tuple(least_disturbing(rows)), nearest=nearest)


def _apply_combinations(recipe: Recipe) -> Iterator[tuple[list[Change], Recipe]]:
    """For each combination, the changes that make a difference to `recipe`, and the recipe with them."""
    seen = {recipe}
    for names in _COMBINATIONS:
        changes = [change for change in CHANGES if change.name in names and change.apply(recipe)]
        try:
            variant = apply_all(recipe, changes)
        except CourseError:  # they do not go together, or not with this recipe
            continue
        if variant not in seen:
            seen.add(variant)
            yield changes, variant


def _largest(plan: Plan) -> tuple[dict[str, int | None], tuple[str, ...]]:
    """The largest batch and the longest sequence that fit by formulas, and the keys of those that may be larger."""
    name = plan.model
    recipe = plan.recipe

    def fits_with(**sizes: int) -> bool:
        formulas = look_up(name, replace(recipe, **sizes))
        return formulas is not None and fits(formulas[0].log, recipe.device, plan.memory)

    rows, length = bounds_of(name, recipe)
    batch = largest_that_fits(lambda b: fits_with(batch=b), recipe.batch, rows) or 0
    limit = length // LENGTH_STEP
    start = recipe.sequence // LENGTH_STEP
    steps = largest_that_fits(lambda n: fits_with(sequence=n * LENGTH_STEP), start, limit) or 0
    largest = {LARGEST_BATCH: batch, LONGEST_SEQUENCE: steps * LENGTH_STEP}
    if steps * LENGTH_STEP == plan.estimate.finder.source.positions:  # the model takes no more
        largest[LONGEST_SEQUENCE] = None
    ends = zip(largest, (rows, limit * LENGTH_STEP), strict=True)
    return largest, tuple(size for size, end in ends if largest[size] == end)
