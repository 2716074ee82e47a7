"""What fits on a card, what to change where it does not, and how much larger it could be."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations, product
from math import inf, isnan, prod
from typing import NamedTuple

from course_utils.errors import CourseError
from course_utils.hardware import Machine
from course_utils.hardware.machine import NoRateError
from course_utils.memory.formulas.estimate import Estimate
from course_utils.memory.formulas.finder import finder_of
from course_utils.memory.formulas.trial import Trial, attempt
from course_utils.memory.planning.changes import CHANGES, Change, disturbance, fields_set, least_disturbing
from course_utils.memory.planning.largest import largest_sizes
from course_utils.memory.planning.verdict import CARDS, FITS, TIGHT, Option, Plan, needs, verdict_of
from course_utils.memory.step.model import ModelLike, Source, source_of
from course_utils.memory.step.recipe import Recipe

_LEVELS = {change.level for change in CHANGES}
_EASY = {
    "keep only the loss",
    "gradients dropped after the update",
    "fused optimizer",
    "fused attention",
    "micro-batch of 1",
    "chunked loss",
}
"""Changes that cost hardly anything, so that as many as are needed may go with others."""
_WAYS, _MOST_ROWS, _MOST_FAILED = 4, 4, 12
"""Ways to try with the same gravest changes; rows of a level, and trials of a level that did not fit, after which no more are
tried."""
_TOO_HIGH = 1.1
"""A guess of what several changes take together may be as much too high."""


def plan(
    what: ModelLike,
    memory: int,
    recipe: Recipe = Recipe("adamw-foreach", device="cuda"),  # noqa: B008 frozen
    *,
    batch: Callable | None = None,
    machine: Machine | None = None,
    cards: Sequence[int] = (2, 4, 8, 16, 32, 64, 128, 256, 512),
    say: Callable[[str], None] = lambda _: None,
    show: Callable[["Plan | Option"], None] = lambda _: None,
) -> Plan:
    """Whether a step of `what` by `recipe` fits into `memory` bytes of a card, and what to do where it does not.

    `what` and `batch` as for `estimate`. With `machine` each row has its predicted seconds. `cards` are the numbers of them to
    try for the fewest that suffice. `say` gets what is being done, since some of it takes seconds; `show` what is known already:
    the plan without rows and largest sizes once there is a verdict, then each row that fits, as it is found.
    """
    if not memory > 0:
        raise CourseError(f"A card of {memory} bytes holds nothing; give its memory, as memory=24 * GiB.")
    source = source_of(what, batch)
    say("the step as it is")
    why_no_seconds = ""
    try:
        trial = attempt(source, recipe, machine)
    except NoRateError as error:  # bytes are the same on any machine
        machine, why_no_seconds = None, f"Seconds are not known: {error}"
        trial = attempt(source, recipe)
    finder = finder_of(source, recipe)
    finder.trials[recipe.batch, recipe.sequence] = trial
    base = Estimate(source.name, recipe, trial.log, trial.how, finder)
    need = needs(trial.log, recipe.device)
    verdict = verdict_of(need, memory)

    def tell(what_now: str) -> None:
        say(f"it {verdict.replace(TIGHT, f'is {TIGHT}')}; {what_now}")

    about = source.name, recipe, memory, base, trial, need, verdict
    show(Plan(*about, why_no_seconds=why_no_seconds))
    changes = Changes() if verdict == FITS else _ladder(source, trial, memory, machine, tell, show)
    tell("finding the largest that fits")
    largest = largest_sizes(finder, recipe, memory, trial)
    if verdict != FITS and recipe.device == "cuda" and cards:
        enough = [count for count in cards if _least_of_a_share(trial, count) < memory]
        with suppress(CourseError):  # it does not go together with the recipe
            largest[CARDS] = _fewest_cards(source, recipe, memory, enough, tell)
    return Plan(
        *about,
        **changes._asdict(),
        largest=largest,
        why_no_seconds=why_no_seconds,
        most_cards=max(cards, default=0),
    )


class Changes(NamedTuple):
    """What a search for changes ends with; the fields are a `Plan`'s."""

    rows: tuple[Option, ...] = ()
    helpless: tuple[str, ...] = ()
    unrated: tuple[str, ...] = ()
    nearest: Option | None = None


def _ladder(
    source: Source,
    base: Trial,
    memory: int,
    machine: Machine | None,
    say: Callable[[str], None],
    show: Callable[[Plan | Option], None],
) -> Changes:
    """Look for changes of the `base` trial with which it fits: each alone, then up to three that cost something with any that are
    easy. Those that should fit, by bytes that each left alone, are tried; then those that a row can do without are taken out.
    """
    trials = {change.name: trial for change, trial in try_each(CHANGES, source, base.recipe, machine, say)}
    unrated = tuple(name for name, trial in trials.items() if trial is None)
    tried = {name: trial for name, trial in trials.items() if trial is not None}
    changes = [change for change in CHANGES if change.name in tried]
    rows = [_row(base, (change,), tried[change.name], memory, tried) for change in changes]
    helpless = tuple(row.names[0] for row in rows if row.saves <= 0.001 * base.peak and row.verdict != FITS)
    useful = [change for change in changes if _lowers_a_phase(base, tried[change.name])]
    fitting = [row for row in rows if row.verdict == FITS]
    for row in fitting:
        show(row)
    room = memory * base.peak / needs(base.log, base.recipe.device)[1]

    def guess(changes: Sequence[Change]) -> float:
        """How much of the room they should take together."""
        return _guess(base.by_phase, [tried[change.name].by_phase for change in changes]) / room

    tight = [((change,), row.need[1]) for change, row in zip(changes, rows, strict=True) if row.verdict == TIGHT]

    def need(changes: tuple[Change, ...]) -> tuple[float, float]:
        try:
            recipe = replace(base.recipe, **fields_set(base.recipe, changes))
            trial = attempt(source, recipe, traffic=False)  # seconds take longer to predict
        except CourseError:  # they do not go together, or not with this model
            return inf, inf
        return needs(trial.log, recipe.device)

    def fits(changes: tuple[Change, ...]) -> bool:
        verdict = verdict_of(needed := need(changes), memory)
        if changes and verdict == TIGHT:
            tight.append((changes, needed[1]))
        return verdict == FITS

    def row_of(changes: tuple[Change, ...]) -> Option:
        recipe = replace(base.recipe, **fields_set(base.recipe, changes))
        return _row(base, changes, attempt(source, recipe, machine), memory, tried)

    for count in range(4):
        rows_so_far, levels = [set(row.names) for row in fitting], Counter(row.level for row in fitting)
        # Two rows of a level are enough, and so are three in all, but for what disturbs less than one of them.
        totals = {level: sorted(disturbance(row.names)[1] for row in fitting if row.level == level) for level in levels}
        searched = range(max(levels)) if len(fitting) > 2 else _LEVELS
        wanted = dict.fromkeys(searched, inf) | {level: of[1] for level, of in totals.items() if len(of) > 1}
        failed = Counter()
        for level, alternatives in _promising(base.recipe, useful, wanted, count, rows_so_far, guess):
            if levels[level] == _MOST_ROWS or failed[level] == _MOST_FAILED:
                continue
            for combined in alternatives:
                say("trying " + " + ".join(change.name for change in combined))
                if not fits(combined):
                    failed[level] += 1
                    continue
                fewest = _fewest(combined, lambda fewer: guess(fewer) <= _TOO_HIGH and fits(fewer))
                if {change.name for change in fewest} not in [set(row.names) for row in fitting]:
                    fitting.append(row_of(fewest))
                    show(fitting[-1])
                    levels[fitting[-1].level] += 1
                    break
    shown = least_disturbing(fitting)
    gentlest = min((row.level for row in fitting), default=len(_LEVELS))
    nearest, gentler = None, [one for one in tight if max(change.level for change in one[0]) < gentlest]
    if gentler:
        best, most = min(gentler, key=lambda one: one[1])
        nearest = row_of(_fewest(best, lambda fewer: fewer and need(fewer)[1] <= most))
    lower = sorted((row for row in rows if row.saves > 0), key=lambda row: row.peak)
    return Changes(tuple(shown or lower[:5]), helpless, unrated, nearest)


def try_each(
    changes: Sequence[Change],
    source: Source,
    recipe: Recipe,
    machine: Machine | None,
    say: Callable = lambda _: None,
) -> Iterator[tuple[Change, Trial | None]]:
    """Each of `changes` that makes a difference to `recipe`, alone, with its trial; those that do not go with it are left out.

    The trial is None where `machine` has no rate for the matrix products.
    """
    for change in changes:
        if fields := change.apply(recipe):
            say(f"trying {change.name}")
            try:
                trial = attempt(source, replace(recipe, **fields), machine)
            except NoRateError:
                trial = None
            except CourseError:  # the two do not go together, or not with this model
                continue
            yield change, trial


def _go_together(recipe: Recipe, changes: Sequence[Change]) -> bool:
    """Whether no two of `changes` set the same, and no two refuse each other."""
    fields = fields_set(recipe, changes)
    with suppress(CourseError):
        replace(recipe, **fields)
        return len(fields) == sum(len(change.apply(recipe)) for change in changes)
    return False


def _fewest(changes: tuple[Change, ...], fits: Callable) -> tuple[Change, ...]:
    """`changes` without each that is not needed, the gravest tried first."""
    for change in reversed(changes):
        fewer = tuple(other for other in changes if other is not change)
        changes = fewer if fits(fewer) else changes
    return changes


def _promising(
    recipe: Recipe, useful: list[Change], wanted: dict[int, float], count: int, fitting: list[set], guess: Callable
) -> Iterator[tuple[int, list[tuple[Change, ...]]]]:
    """By level, sets of changes to try in their order: the first that fits makes a row.

    Every set of `count` changes that cost something gets the easy ones with which it should take the least, once with a smaller
    micro-batch and once without. Sets that should not fit are left out, and those that disturb as much as is `wanted` of their
    level. Sets with the same changes of their level are alternatives, of which the least disturbing and the smallest are given.
    """
    by_level, places = {}, {change.name: place for place, change in enumerate(useful)}
    easy, hard = ([change for change in useful if (change.name in _EASY) is is_easy] for is_easy in (True, False))
    # Of equal guesses the first counts, which has most changes.
    beside = [some for size in range(len(easy), -1, -1) for some in combinations(easy, size)]
    for costly, whole in product(combinations(hard, count), (True, False)):
        level, total = max((c.level for c in costly), default=0), sum(c.level for c in costly)
        if total >= wanted.get(level, 0) or any(one <= _EASY | {c.name for c in costly} for one in fitting):
            continue
        alike = [some + costly for some in beside if ("batch" not in fields_set(recipe, some)) is whole]
        together = [changes for changes in alike if len(changes) > 1 and _go_together(recipe, changes)]
        changes = min(together, key=guess, default=None)
        if changes and guess(changes) <= _TOO_HIGH:
            of_level = tuple(places[c.name] for c in costly if c.level == level)
            order = total, tuple(places[c.name] for c in costly), not whole
            by_level.setdefault(level, {}).setdefault((len(of_level), of_level), []).append((order, changes))
    for level in sorted(by_level):
        for _, ways in sorted(by_level[level].items()):
            gentlest, smallest = sorted(ways)[:_WAYS], min(ways, key=lambda way: guess(way[-1]))
            yield level, [way[-1] for way in (*gentlest, *([] if smallest in gentlest else [smallest]))]


def _guess(base: dict, alone: list[dict]) -> float:
    """The peak of several changes together, from bytes by phase and kind: where a change alone has most of a kind, the others
    lower that as they lower the most there ever is of it."""

    def most(one: dict, kind: str) -> int:
        return max(kinds.get(kind, 0) for kinds in one.values())

    def size(phase: str, kind: str) -> float:
        largest = max(alone, key=lambda one: one.get(phase, {}).get(kind, 0))
        others = [one for one in alone if one is not largest and most(base, kind)]
        return largest.get(phase, {}).get(kind, 0) * prod(min(1, most(one, kind) / most(base, kind)) for one in others)

    kinds = {kind for one in alone for of_phase in one.values() for kind in of_phase}
    return max(sum(size(phase, kind) for kind in kinds) for phase in base)


def _lowers_a_phase(base: Trial, trial: Trial) -> bool:
    then = {phase: sum(kinds.values()) for phase, kinds in trial.by_phase.items()}
    return any(then.get(phase, 0) < 0.99 * sum(kinds.values()) for phase, kinds in base.by_phase.items())


def _row(base: Trial, changes: Sequence[Change], trial: Trial, memory: int, tried: dict[str, Trial]) -> Option:
    need = needs(trial.log, trial.recipe.device)
    verdict = verdict_of(need, memory)
    return Option(
        names=tuple(change.name for change in changes),
        level=max(change.level for change in changes),
        costs="; ".join(dict.fromkeys(_costs(base, changes, trial, verdict, tried))),
        peak=trial.peak,
        need=need,
        verdict=verdict,
        saves=base.peak - trial.peak,
        seconds=trial.seconds - base.seconds,
        sent=trial.sent - base.sent,
        how=trial.how,
        recipe=trial.recipe,
    )


def _costs(
    base: Trial, changes: Sequence[Change], trial: Trial, verdict: str, tried: dict[str, Trial]
) -> Iterator[str]:
    """What each change costs, and what else explains the row's numbers."""
    yield from (change.costs for change in changes)
    if verdict == FITS and trial.peak >= 0.999 * base.peak:
        yield "only what the allocator reserves beyond the peak falls"
    if isnan(trial.seconds):
        return
    if trial.recipe.quantized and trial.recipe.precision == "bf16":
        yield "time: attention and the output layer multiply in float32"  # as PEFT prepares what is not of 4 bits
    elif trial.recipe.quantized and trial.recipe.precision != "fp32":
        # bitsandbytes' operator is given float32; on CUDA, with many tokens, it calls torch's product, where autocast is on.
        yield "seconds count products with weights of 4 bits in float32, and autocast may reach them"
    others = [change.name for change in changes if change.name != "LoRA of rank 16"]
    if len(others) == len(changes) or len(others) > 1:  # there is no trial of the same without it
        return
    if trial.seconds > (tried[others[0]] if others else base).seconds:
        yield "time: adapters take each layer's input and output in float32, more here than the weights' gradients save"


def _least_of_a_share(trial: Trial, ranks: int) -> float:
    """Bytes that a rank needs at least when parameters, gradients and state are shared out, and nothing is gathered."""
    shared = {"parameters", "gradients", "optimizer state", "optimizer temporaries"}
    if trial.recipe.precision == "autocast":  # whose copies of the weights are among the activations
        shared.add("activations")
    in_use = (kinds.items() for kinds in trial.by_phase.values())
    return max(sum(size / ranks if kind in shared else size for kind, size in kinds) for kinds in in_use)


def _fewest_cards(
    source: Source, recipe: Recipe, memory: int, cards: Sequence[int], say: Callable[[str], None]
) -> int | None:
    """The first of `cards`, which mostly is enough, else the last, which may be too few; then by halves: more hold less each."""

    def fits(count: int) -> bool:
        say(f"trying {count} cards")
        shared = replace(recipe, zero_stage=3, ranks=count, replicas=1, in_backward=False)
        return verdict_of(needs(attempt(source, shared, traffic=False).log, recipe.device), memory) == FITS

    if not cards or fits(cards[0]):
        return next(iter(cards), None)
    return cards[bisect_left(cards, True, 1, len(cards) - 1, key=fits)] if fits(cards[-1]) else None
