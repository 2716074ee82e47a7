"""The answer for a named model as far as shipped formulas tell it: in a second or two, and without torch."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import inf, nan

from course_utils.errors import CourseError
from course_utils.memory.formulas.letters import LENGTH_STEP
from course_utils.memory.formulas.named import bounds_of, look_up
from course_utils.memory.planning.changes import CHANGES, disturbance, fields_set, least_disturbing
from course_utils.memory.planning.largest import most
from course_utils.memory.planning.verdict import DOES_NOT, FITS, Option, Plan, needs, needs_for, verdict_of
from course_utils.memory.step.recipe import LOOPS, Recipe
from course_utils.memory.trace.log import Log

_TRAINING = (
    (),
    ("8-bit AdamW",),
    ("Adafactor",),
    ("optimizer on the host",),
    ("LoRA of rank 16",),
    ("QLoRA of rank 16",),
    ("autocast",),
    ("autocast", "8-bit AdamW"),
    ("autocast", "Adafactor"),
    ("autocast", "QLoRA of rank 16"),
    ("all in bfloat16",),
    ("all in bfloat16", "8-bit AdamW"),
    ("all in bfloat16", "paged 8-bit AdamW"),
    ("all in bfloat16", "4-bit AdamW"),
    ("all in bfloat16", "Adafactor"),
    ("all in bfloat16", "optimizer on the host"),
    ("all in bfloat16", "update within backward", "paged 8-bit AdamW"),
    ("all in bfloat16", "update within backward", "Adafactor"),
    ("all in bfloat16", "update within backward", "SGD"),
    ("all in bfloat16", "LoRA of rank 16 on q_proj and v_proj"),
    ("all in bfloat16", "LoRA of rank 16"),
    ("all in bfloat16", "QLoRA of rank 16"),
)
_ACTIVATIONS = ((), ("gradient checkpointing",))
_BATCHES = ((), ("micro-batch of 1",))
_MOST_ROWS = 4
"""Of a level."""
_WAYS = sorted(filter(None, (sum(parts, ()) for parts in product(_TRAINING, _ACTIVATIONS, _BATCHES))), key=disturbance)
"""The changes that are asked about most, together, what disturbs least first."""


def known_recipes() -> Iterator[Recipe]:
    """Those that formulas are shipped for: Trainer's loop on a GPU and what changes make of it, for one example and for more."""
    for batch in (1, 2):
        usual = Recipe(**LOOPS["trainer"], device="cuda", batch=batch)
        yield from dict.fromkeys([usual, *(changed for _, changed in _apply_ways(usual))])


def plan_at_once(name: str, memory: int, recipe: Recipe) -> Plan | None:
    """The plan by formulas alone; None where they do not know this model or recipe."""
    stored = look_up(name, recipe)
    if stored is None:
        return None
    trial, estimate = stored
    need = needs(trial.log, recipe.device)
    verdict = verdict_of(need, memory)
    plan = Plan(model=name, recipe=recipe, memory=memory, estimate=estimate, trial=trial, need=need, verdict=verdict)
    largest, open_ended = _largest(plan)
    plan = replace(plan, largest=largest, open_ended=open_ended)
    if verdict == FITS:
        return plan
    rows, tight = [], []
    for names, changed in _apply_ways(recipe):
        of_level = [row for row in rows if row.level == disturbance(names)[0]]
        # There are enough of its level, or a part of these changes is enough.
        if len(of_level) == _MOST_ROWS or any(set(row.names) <= set(names) for row in rows):
            continue
        trial, _ = look_up(name, changed) or (None, None)
        if trial is None or (at_best := _verdict_at_best(trial.log, memory)) == DOES_NOT:
            continue
        if at_best == FITS and verdict_of(needs(trial.log, recipe.device), memory) == FITS:
            rows.append(_row(plan, names, changed))
        else:
            tight.append((trial.log.peak, names, changed))
    gentlest = min((row.level for row in rows), default=inf)
    gentler = [(peak, *way) for peak, *way in tight if disturbance(way[0])[0] < gentlest]
    nearest = _row(plan, *min(gentler)[1:]) if gentler else None
    return replace(plan, rows=tuple(least_disturbing(rows)), nearest=nearest)


def _verdict_at_best(log: Log, memory: int) -> str:
    """The verdict if the allocator reserved no more than the peak, which is known without its replay."""
    return verdict_of(needs_for(log.peak, log.peak, "cuda"), memory)


def _apply_ways(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], Recipe]]:
    """The names of the changes of each way that make a difference to `recipe`, and what they make of it."""
    seen = {recipe}
    for way in _WAYS:
        changes = [change for change in CHANGES if change.name in way and change.apply(recipe)]
        try:
            changed = replace(recipe, **fields_set(recipe, changes))
        except CourseError:  # they do not go together, or not with this recipe
            continue
        if changed not in seen:
            seen.add(changed)
            yield tuple(change.name for change in changes), changed


def _row(plan: Plan, names: tuple[str, ...], recipe: Recipe) -> Option:
    trial, estimate = look_up(plan.model, recipe)
    need = needs(trial.log, recipe.device)
    changes = [change for change in CHANGES if change.name in names]
    return Option(
        names=names,
        level=max(change.level for change in changes),
        costs="; ".join(dict.fromkeys(change.costs for change in changes)),
        peak=trial.log.peak,
        need=need,
        verdict=verdict_of(need, plan.memory),
        saves=plan.trial.log.peak - trial.log.peak,
        seconds=nan,
        sent=0,
        how=estimate.how,
        recipe=recipe,
    )


def _largest(plan: Plan) -> tuple[dict[str, int | None], tuple[str, ...]]:
    """The largest batch and the longest sequence that formulas know to fit, and which of them may be larger."""
    name, recipe = plan.model, plan.recipe

    def fits(**sizes: int) -> bool:
        stored = look_up(name, replace(recipe, **sizes))
        if stored is None or _verdict_at_best(stored[0].log, plan.memory) != FITS:
            return False
        return verdict_of(needs(stored[0].log, recipe.device), plan.memory) == FITS

    rows, length = bounds_of(name, recipe)
    batch = most(lambda b: fits(batch=b), recipe.batch, rows) or 0
    steps = most(lambda n: fits(sequence=n * LENGTH_STEP), recipe.sequence // LENGTH_STEP, length // LENGTH_STEP) or 0
    largest = {"largest batch": batch, "longest sequence": steps * LENGTH_STEP}
    if steps * LENGTH_STEP == plan.estimate.finder.positions:  # the model takes no more
        largest["longest sequence"] = None
    ends = zip(largest, (rows, length // LENGTH_STEP * LENGTH_STEP), strict=True)
    return largest, tuple(size for size, end in ends if largest[size] == end)
