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
from course_utils.memory.formulas.prediction import Trial
from course_utils.memory.formulas.trial import try_recipe
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
from course_utils.memory.planning.need import FITS, TIGHT, Need, fits
from course_utils.memory.planning.progress import Progress
from course_utils.memory.planning.result import Plan, Row
from course_utils.memory.step.model import Source
from course_utils.memory.step.recipe import Recipe

_LEVELS = {change.level for change in CHANGES}
_EASY_NAMES = {change.name for change in CHANGES if change.is_easy}
# The most costly changes in one combination.
_MAX_COSTLY = 3
# The most alternatives (combinations with the same gravest changes) that are tried, in addition to the smallest of them.
_MAX_ALTERNATIVES = 4
# The number of failed trials of a level in one round after which no more are made.
_MAX_FAILURES = 12
# The factor by which a guess may exceed what fits and still be tried.
_TOLERANCE = 1.1
_BytesByPhase = dict[str, dict[str, int]]
_Changes = tuple[Change, ...]


class Candidate(NamedTuple):
    """A combination of changes that should fit. Candidates are tried in the order of their fields.

    Candidates of one `level` with the same `gravest` changes (how many and which) are alternatives: one that fits makes a row.
    """

    level: int
    gravest: tuple[int, tuple[int, ...]]
    disturbance: tuple[int, tuple[int, ...], bool]
    changes: _Changes


@dataclass
class Search:
    """Looks for changes with which the step of a plan fits.

    Each change is tried alone, then up to three costly changes with any number of easy ones. A combination is tried if it should
    fit, by a guess from the bytes with each of its changes alone. If it fits, changes that are not needed are taken out.

    `trials` are those of each change alone, `tried` has what each tried combination needs, and `rows` are those that fit.
    """

    source: Source
    plan: Plan
    machine: Machine | None
    progress: Progress
    trials: dict[str, Trial] = field(init=False, default_factory=dict)
    rows: list[Row] = field(init=False, default_factory=list)
    tried: list[tuple[_Changes, Need]] = field(init=False, default_factory=list)

    @property
    def base(self) -> Trial:
        """The trial of the recipe as it is."""
        return self.plan.trial

    def run(self) -> Plan:
        """The plan with its rows; if nothing fits, these are the five changes that alone lower the peak most."""
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
        """Make a row of the first alternative that fits in each group of candidates with `count` costly changes."""
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
        """The necessary changes of the first alternative that makes a new row, and how many alternatives did not fit."""
        failures = 0
        for changes in self._choose_alternatives(candidates):
            self.progress.report("trying " + " + ".join(change.name for change in changes))
            if not self._fits_with(changes):
                failures += 1
                continue
            fewest = _leave_out_spare(changes, lambda rest: self._guess(rest) <= _TOLERANCE and self._fits_with(rest))
            if {change.name for change in fewest} not in [{*row.names} for row in self.rows]:
                return fewest, failures
        return None, failures

    def _make_candidates(self, useful: list[Change], count: int) -> Iterator[Candidate]:
        """Candidates of `count` costly changes.

        To each combination of these are added the easy changes that make the guess of its peak smallest: once those that make the
        micro-batch smaller, and once others. Combinations whose guess does not fit, whose sum of levels reaches
        `_limit_of_disturbance`, or which include the changes of a row are left out.
        """
        recipe = self.base.recipe
        order = {change.name: index for index, change in enumerate(useful)}
        easy = [change for change in useful if change.is_easy]
        costly = [change for change in useful if not change.is_easy]
        # The largest come first, since `min` takes the first of equal guesses.
        easy_sets = [easy_set for size in range(len(easy), -1, -1) for easy_set in combinations(easy, size)]
        limits = {level: self._limit_of_disturbance(level) for level in _LEVELS}
        for costly_set, cuts_batch in product(combinations(costly, count), (False, True)):
            level = level_of(costly_set)
            total = sum(change.level for change in costly_set)
            sufficient = _EASY_NAMES | {change.name for change in costly_set}
            if total >= limits[level] or any({*row.names} <= sufficient for row in self.rows):
                continue
            allowed = [easy_set for easy_set in easy_sets if ("batch" in fields_set(recipe, easy_set)) is cuts_batch]
            changes = self._find_smallest(costly_set, allowed)
            if changes and self._guess(changes) <= _TOLERANCE:
                gravest = tuple(order[change.name] for change in costly_set if change.level == level)
                disturbs = total, tuple(order[change.name] for change in costly_set), cuts_batch
                yield Candidate(level, (len(gravest), gravest), disturbs, changes)

    def _find_smallest(self, costly_set: _Changes, easy_sets: list[_Changes]) -> _Changes | None:
        """The combination of `costly_set` with one of `easy_sets` that has the smallest guess; None if none go together."""
        combined = (easy_set + costly_set for easy_set in easy_sets)
        possible = (changes for changes in combined if len(changes) > 1 and _go_together(self.base.recipe, changes))
        return min(possible, key=self._guess, default=None)

    def _limit_of_disturbance(self, level: int) -> float:
        """The sum of levels below which a combination of this level is tried.

        Two rows of a level are enough, and so are three in all, unless a combination disturbs less than one of them.
        """
        totals = sorted(disturbance(row.names).total for row in self.rows if row.level == level)
        if len(totals) > 1:
            return totals[1]
        is_gentler = len(self.rows) < 3 or level < max(row.level for row in self.rows)
        return inf if is_gentler else 0

    def _choose_alternatives(self, candidates: list[Candidate]) -> Iterator[_Changes]:
        """The changes of the least disturbing candidates, and of the one with the smallest guess."""
        first = candidates[:_MAX_ALTERNATIVES]
        smallest = min(candidates, key=lambda candidate: (self._guess(candidate.changes), candidate.disturbance[1:]))
        yield from (candidate.changes for candidate in first)
        if smallest not in first:
            yield smallest.changes

    @cached_property
    def _room(self) -> float:
        """The largest peak that fits, if the needed bytes are proportional to the peak."""
        return self.plan.memory * self.base.peak / Need.from_log(self.base.log, self.base.recipe.device).high

    def _guess(self, changes: Sequence[Change]) -> float:
        """The guessed peak with all of `changes`, as a share of the room."""
        by_change = [self.trials[change.name].kinds_by_phase for change in changes]
        return _guess_peak(self.base.kinds_by_phase, by_change) / self._room

    def _need(self, changes: Sequence[Change]) -> Need:
        try:
            recipe = apply_all(self.base.recipe, changes)
            trial = try_recipe(self.source, recipe, traffic=False)  # no seconds, which take longer to predict
        except CourseError:  # they do not go together, or not with this model
            return Need(inf, inf)
        return Need.from_log(trial.log, recipe.device)

    def _fits_with(self, changes: _Changes) -> bool:
        need = self._need(changes)
        self.tried.append((changes, need))
        return need.verdict(self.plan.memory) == FITS

    def _keep(self, row: Row) -> None:
        self.rows.append(row)
        self.progress.show_row(row)

    def _make_row(self, changes: _Changes, trial: Trial | None = None) -> Row:
        trial = trial or try_recipe(self.source, apply_all(self.base.recipe, changes), self.machine)
        return Row.from_trial(self.plan, changes, trial, self._explain(changes, trial))

    def _explain(self, changes: _Changes, trial: Trial) -> Iterator[str]:
        """Remarks on the row's figures, in addition to what each change costs."""
        if trial.peak >= 0.999 * self.base.peak and fits(trial.log, trial.recipe.device, self.plan.memory):
            yield "only what the allocator reserves beyond the peak falls"
        if isnan(trial.seconds):
            return
        if trial.recipe.quantized and trial.recipe.precision == "bf16":
            # PEFT makes float32 of everything that is not in 4 bits.
            yield "time: attention and the output layer multiply in float32"
        elif trial.recipe.quantized and trial.recipe.precision != "fp32":
            # bitsandbytes' operator is given float32; on CUDA, with many tokens, it calls torch's product, where autocast is on.
            yield "seconds count products with weights of 4 bits in float32, and autocast may reach them"
        others = [change.name for change in changes if change.name != LORA]
        if len(others) == len(changes) or len(others) > 1:  # the same step without LoRA was not tried
            return
        if trial.seconds > (self.trials[others[0]] if others else self.base).seconds:
            yield "time: adapters take each layer's input and output in float32, more here than the weights' gradients save"

    def _find_nearest(self) -> Row | None:
        """The tight row that needs the least, of those that disturb less than all rows that fit; None if there is none."""
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
    """Each of `changes` with its trial alone; those that change nothing in `recipe` or contradict it are left out.

    The trial is None if `machine` has no rate for the matrix products.
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
    """Whether no two of `changes` set the same field, and the recipe with all of them has no contradiction."""
    try:
        apply_all(recipe, changes)
    except CourseError:
        return False
    return len(fields_set(recipe, changes)) == sum(len(change.apply(recipe)) for change in changes)


def _leave_out_spare(changes: _Changes, is_enough: Callable[[_Changes], bool]) -> _Changes:
    """`changes` without those that are not needed, the gravest left out first."""
    for change in reversed(changes):
        fewer = tuple(other for other in changes if other is not change)
        changes = fewer if is_enough(fewer) else changes
    return changes


def _guess_peak(base: _BytesByPhase, singles: list[_BytesByPhase]) -> float:
    """A guess of the peak with several changes, from bytes by phase and kind without (`base`) and with each alone (`singles`).

    For each phase and kind it takes the largest of `singles`, times a factor for each of the others: the share of that kind's
    largest bytes in any phase that the change leaves. This is max(singles) * product(min(1, peak(other) / peak(base))).
    """

    def peak(phases: _BytesByPhase, kind: str) -> int:
        return max(kinds.get(kind, 0) for kinds in phases.values())

    def size(phase: str, kind: str) -> float:
        largest = max(singles, key=lambda phases: phases.get(phase, {}).get(kind, 0))
        others = (peak(phases, kind) for phases in singles if phases is not largest and peak(base, kind))
        return largest.get(phase, {}).get(kind, 0) * prod(min(1, other / peak(base, kind)) for other in others)

    kinds = {kind for phases in singles for of_phase in phases.values() for kind in of_phase}
    return max(sum(size(phase, kind) for kind in kinds) for phase in base)
