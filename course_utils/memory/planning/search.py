"""The search for changes with which a step fits: each alone, then several together."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, groupby, product
from math import inf, isnan, prod
from typing import NamedTuple

from course_utils.errors import CourseError
from course_utils.hardware import Machine
from course_utils.hardware.machine import NoRateError
from course_utils.memory.formulas.trial import Trial, try_recipe
from course_utils.memory.planning.answer import Plan, Row
from course_utils.memory.planning.changes import (
    CHANGES,
    LORA,
    Change,
    apply_all,
    disturbance,
    fields_set,
    gentler_than,
    is_full,
    least_disturbing,
    level_of,
)
from course_utils.memory.planning.need import FITS, TIGHT, Need, fits, needs
from course_utils.memory.planning.progress import Progress
from course_utils.memory.step.model import Source
from course_utils.memory.step.recipe import Recipe

_LEVELS = {change.level for change in CHANGES}
_EASY = {change.name for change in CHANGES if change.is_easy}
# The most changes in one combination that cost something.
_MAX_COSTLY = 3
# Alternatives, combinations with the same gravest changes, that are tried beside the smallest of them.
_MAX_ALTERNATIVES = 4
# Failed trials of a level in one round, after which no more are made.
_MAX_FAILURES = 12
# The factor by which a guess of what several changes take together may be too high.
_TOLERANCE = 1.1
_BytesByPhase = dict[str, dict[str, int]]
_Changes = tuple[Change, ...]


class Candidate(NamedTuple):
    """A combination of changes that should fit. Its fields sort candidates into the order in which they are tried.

    Candidates of one `level` with the same `gravest` changes (how many and which) are alternatives: one that fits makes a row.
    """

    level: int
    gravest: tuple[int, tuple[int, ...]]
    disturbance: tuple[int, tuple[int, ...], bool]
    changes: _Changes


@dataclass
class Search:
    """Looks for changes with which the step of a plan fits.

    Each change is tried alone, then up to three that cost something together with any that are easy. A combination is tried if
    it should fit, by the bytes that each of its changes left alone. Where it fits, changes that it can do without are taken out.

    `base` is the trial without changes, `trials` are those of each change alone, `tried` what each tried combination needs, and
    `rows` those that fit.
    """

    source: Source
    plan: Plan
    machine: Machine | None
    progress: Progress
    trials: dict[str, Trial] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    tried: list[tuple[_Changes, Need]] = field(default_factory=list)

    def __post_init__(self):
        self.base = self.plan.trial

    def run(self) -> Plan:
        """The plan with all rows that are shown, or where nothing fits the five changes that alone lower the peak most."""
        single_trials = try_each(CHANGES, self.source, self.base.recipe, self.machine, self.progress)
        trials = {change.name: trial for change, trial in single_trials}
        self.trials = {name: trial for name, trial in trials.items() if trial is not None}
        changes = [change for change in CHANGES if change.name in self.trials]
        single_rows = [self._make_row((change,), self.trials[change.name]) for change in changes]
        self.tried = [((change,), row.need) for change, row in zip(changes, single_rows, strict=True)]
        for row in single_rows:
            if row.verdict == FITS:
                self._keep(row)
        useful = [change for change in changes if self._lowers_a_phase(change)]
        for count in range(_MAX_COSTLY + 1):
            self._run_round(useful, count)
        lower = sorted((row for row in single_rows if row.saves > 0), key=lambda row: row.peak)
        useless = [row for row in single_rows if row.saves <= 0.001 * self.base.peak and row.verdict != FITS]
        return replace(
            self.plan,
            rows=tuple(least_disturbing(self.rows) or lower[:5]),
            useless=tuple(row.names[0] for row in useless),
            unrated=tuple(name for name, trial in trials.items() if trial is None),
            nearest=self._find_nearest(),
        )

    def _run_round(self, useful: list[Change], count: int) -> None:
        """Make a row of the first alternative that fits, of all with `count` changes that cost something."""
        failures_by_level = Counter()
        candidates = sorted(self._make_candidates(useful, count))
        for (level, _), group in groupby(candidates, key=lambda candidate: (candidate.level, candidate.gravest)):
            if is_full(self.rows, level) or failures_by_level[level] == _MAX_FAILURES:
                continue
            changes, failures = self._find_first_that_fits(list(group))
            failures_by_level[level] += failures
            if changes:
                self._keep(self._make_row(changes))

    def _find_first_that_fits(self, candidates: list[Candidate]) -> tuple[_Changes | None, int]:
        """The fewest changes of the first alternative that makes another row, and how many did not fit."""
        failures = 0
        for changes in self._choose_alternatives(candidates):
            self.progress.report("trying " + " + ".join(change.name for change in changes))
            if not self._fits_with(changes):
                failures += 1
                continue
            fewest = _leave_out_spare(changes, lambda some: self._guess(some) <= _TOLERANCE and self._fits_with(some))
            if {change.name for change in fewest} not in [{*row.names} for row in self.rows]:
                return fewest, failures
        return None, failures

    def _make_candidates(self, useful: list[Change], count: int) -> Iterator[Candidate]:
        """Every combination of `count` changes that cost something gets the easy ones with which it should take the least, once
        with a smaller micro-batch and once without. Left out are those that should not fit, and those that disturb too much.
        """
        order = {change.name: index for index, change in enumerate(useful)}
        easy = [change for change in useful if change.is_easy]
        costly = [change for change in useful if not change.is_easy]
        # The largest come first, since `min` takes the first of equal guesses.
        additions = [some for size in range(len(easy), -1, -1) for some in combinations(easy, size)]
        limits = {level: self._limit_of_disturbance(level) for level in _LEVELS}
        for hard, is_cut in product(combinations(costly, count), (False, True)):
            level = level_of(hard)
            total = sum(change.level for change in hard)
            sufficient = _EASY | {change.name for change in hard}
            if total >= limits[level] or any({*row.names} <= sufficient for row in self.rows):
                continue
            allowed = [some for some in additions if ("batch" in fields_set(self.base.recipe, some)) is is_cut]
            changes = self._find_smallest(hard, allowed)
            if changes and self._guess(changes) <= _TOLERANCE:
                gravest = tuple(order[change.name] for change in hard if change.level == level)
                disturbs = total, tuple(order[change.name] for change in hard), is_cut
                yield Candidate(level, (len(gravest), gravest), disturbs, changes)

    def _find_smallest(self, hard: _Changes, additions: list[_Changes]) -> _Changes | None:
        """The combination of `hard` with one of `additions` that should take the least; None if none go together."""
        combined = (some + hard for some in additions)
        possible = (changes for changes in combined if len(changes) > 1 and _go_together(self.base.recipe, changes))
        return min(possible, key=self._guess, default=None)

    def _limit_of_disturbance(self, level: int) -> float:
        """The sum of levels below which a combination is still tried.

        Two rows of a level are enough, and so are three in all, unless a combination disturbs less than one of them.
        """
        totals = sorted(disturbance(row.names)[1] for row in self.rows if row.level == level)
        if len(totals) > 1:
            return totals[1]
        is_gentler = len(self.rows) < 3 or level < max(row.level for row in self.rows)
        return inf if is_gentler else 0

    def _choose_alternatives(self, candidates: list[Candidate]) -> Iterator[_Changes]:
        """The changes of the least disturbing candidates, and of the smallest."""
        first = candidates[:_MAX_ALTERNATIVES]
        smallest = min(candidates, key=lambda candidate: (self._guess(candidate.changes), candidate.disturbance[1:]))
        yield from (candidate.changes for candidate in first)
        if smallest not in first:
            yield smallest.changes

    @cached_property
    def _room(self) -> float:
        """The peak that fits, if what is needed falls as the peak does."""
        return self.plan.memory * self.base.peak / needs(self.base.log, self.base.recipe.device).high

    def _guess(self, changes: Sequence[Change]) -> float:
        """How much of the room `changes` should take together."""
        by_change = [self.trials[change.name].kinds_by_phase for change in changes]
        return _guess_peak(self.base.kinds_by_phase, by_change) / self._room

    def _need(self, changes: Sequence[Change]) -> Need:
        try:
            recipe = apply_all(self.base.recipe, changes)
            trial = try_recipe(self.source, recipe, traffic=False)  # seconds take longer to predict
        except CourseError:  # they do not go together, or not with this model
            return Need(inf, inf)
        return needs(trial.log, recipe.device)

    def _fits_with(self, changes: _Changes) -> bool:
        need = self._need(changes)
        self.tried.append((changes, need))
        return need.verdict(self.plan.memory) == FITS

    def _keep(self, row: Row) -> None:
        self.rows.append(row)
        self.progress.show_row(row)

    def _make_row(self, changes: _Changes, trial: Trial | None = None) -> Row:
        trial = trial or try_recipe(self.source, apply_all(self.base.recipe, changes), self.machine)
        return Row.from_trial(self.plan, changes, trial, trial.basis, self._explain(changes, trial))

    def _explain(self, changes: _Changes, trial: Trial) -> Iterator[str]:
        """Remarks that explain the row's numbers, beside what each change costs."""
        if trial.peak >= 0.999 * self.base.peak and fits(trial.log, trial.recipe.device, self.plan.memory):
            yield "only what the allocator reserves beyond the peak falls"
        if isnan(trial.seconds):
            return
        if trial.recipe.quantized and trial.recipe.precision == "bf16":
            # As PEFT prepares what is not of 4 bits.
            yield "time: attention and the output layer multiply in float32"
        elif trial.recipe.quantized and trial.recipe.precision != "fp32":
            # bitsandbytes' operator is given float32; on CUDA, with many tokens, it calls torch's product, where autocast is on.
            yield "seconds count products with weights of 4 bits in float32, and autocast may reach them"
        others = [change.name for change in changes if change.name != LORA]
        if len(others) == len(changes) or len(others) > 1:  # there is no trial of the same without it
            return
        if trial.seconds > (self.trials[others[0]] if others else self.base).seconds:
            yield "time: adapters take each layer's input and output in float32, more here than the weights' gradients save"

    def _find_nearest(self) -> Row | None:
        """The row that needs the least, of all that are tight and disturb less than each row that fits."""
        tight = [(changes, need) for changes, need in self.tried if changes and need.verdict(self.plan.memory) == TIGHT]
        gentler = gentler_than(self.rows, tight)
        if not gentler:
            return None
        changes, need = min(gentler, key=lambda pair: pair[1].high)
        return self._make_row(_leave_out_spare(changes, lambda fewer: fewer and self._need(fewer).high <= need.high))

    def _lowers_a_phase(self, change: Change) -> bool:
        sizes = {phase: sum(kinds.values()) for phase, kinds in self.trials[change.name].kinds_by_phase.items()}
        base = {phase: sum(kinds.values()) for phase, kinds in self.base.kinds_by_phase.items()}
        return any(sizes.get(phase, 0) < 0.99 * size for phase, size in base.items())


def try_each(
    changes: Sequence[Change], source: Source, recipe: Recipe, machine: Machine | None, progress: Progress
) -> Iterator[tuple[Change, Trial | None]]:
    """Each of `changes` alone with its trial, without those that change nothing in `recipe` or do not go with it.

    The trial is None where `machine` has no rate for the matrix products.
    """
    for change in changes:
        if fields := change.apply(recipe):
            progress.report(f"trying {change.name}")
            try:
                trial = try_recipe(source, replace(recipe, **fields), machine)
            except NoRateError:
                trial = None
            except CourseError:  # the two do not go together, or not with this model
                continue
            yield change, trial


def _go_together(recipe: Recipe, changes: Sequence[Change]) -> bool:
    """Whether no two of `changes` set the same, and no two refuse each other."""
    try:
        apply_all(recipe, changes)
    except CourseError:
        return False
    return len(fields_set(recipe, changes)) == sum(len(change.apply(recipe)) for change in changes)


def _leave_out_spare(changes: _Changes, is_enough: Callable[[_Changes], bool]) -> _Changes:
    """`changes` without each that is not needed, the gravest tried first."""
    for change in reversed(changes):
        fewer = tuple(other for other in changes if other is not change)
        changes = fewer if is_enough(fewer) else changes
    return changes


def _guess_peak(base: _BytesByPhase, singles: list[_BytesByPhase]) -> float:
    """The peak of several changes together, from bytes by phase and kind without any (`base`) and with each alone (`singles`).

    In each phase and of each kind there should be as much as with the change that alone leaves the most there, times what the
    others leave of the most there ever is of that kind: max(singles) * product(min(1, peak(other) / peak(base))).
    """

    def peak(phases: _BytesByPhase, kind: str) -> int:
        return max(kinds.get(kind, 0) for kinds in phases.values())

    def size(phase: str, kind: str) -> float:
        largest = max(singles, key=lambda phases: phases.get(phase, {}).get(kind, 0))
        others = (peak(phases, kind) for phases in singles if phases is not largest and peak(base, kind))
        return largest.get(phase, {}).get(kind, 0) * prod(min(1, other / peak(base, kind)) for other in others)

    kinds = {kind for phases in singles for of_phase in phases.values() for kind in of_phase}
    return max(sum(size(phase, kind) for kind in kinds) for phase in base)
