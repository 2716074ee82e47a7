"""From dry runs of one model and recipe to formulas for any batch and length.

The order of a step's events depends neither on the examples b of a batch nor on their length s, and each size is a polynomial in
both. So a few dry runs at small sizes give every event's polynomial, which further dry runs confirm.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from course_utils.errors import CourseError
from course_utils.memory.formulas.depth import DepthRule
from course_utils.memory.formulas.letters import DENOMINATOR, MONOMIALS, Polynomial, factor_number, siblings, sizes_of
from course_utils.memory.formulas.prediction import Trial
from course_utils.memory.formulas.trial import keys_of, run_few_batches, try_recipe
from course_utils.memory.step.model import Source
from course_utils.memory.step.recipe import Recipe
from course_utils.memory.trace.log import Label, Log, block_of

# Of `MONOMIALS`: those in b alone, those in s alone, and those that seven sizes can tell apart.
_BATCH_COLUMNS, _LENGTH_COLUMNS, _COLUMNS_WITHOUT_B2 = (0, 1, 6), (0, 2, 4), range(6)
# Batch and length of the dry run that finds letters: primes that occur in no other size, and 32 for kernels that round.
_PRIME_BATCH, _PRIME_LENGTH = 23, 32 * 29
# A size takes one or two dry runs, and formulas take seven. To print an estimate, formulas are found at once.
_SIZES_BEFORE_FORMULAS = 3
_POSITIONS = ("max_position_embeddings", "max_target_positions")


@dataclass(eq=False)
class Formulas:
    """Polynomials for one example, or for several, which hold between the sizes at which dry runs confirmed them.

    They leave out libraries' scratch space, so a dry run with scratch space at its peak confirms nothing.
    """

    coefficients: np.ndarray  # a row an event, a column for each of `MONOMIALS`
    labels: tuple[Label, ...]
    grain: int
    depth: DepthRule | None  # if there is one, the polynomials are those of a model of three blocks
    first: Trial  # the first dry run of the whole model
    run_count: int
    confirmed: list[tuple[int, int]]

    @cached_property
    def are_exact(self) -> bool:
        """Whether they give the first dry run too; they may not where kernels round lengths up, each in its own way."""
        recipe = self.first.recipe
        return np.array_equal(self.log(recipe.batch, recipe.sequence).totals, self.first.log.plain.totals)

    @property
    def omit_scratch(self) -> bool:
        """Whether the first dry run had scratch space of libraries."""
        return self.first.log.plain is not self.first.log

    def holds(self, b: int, s: int) -> bool:
        """Whether dry runs have confirmed them at sizes on both sides of `b` and `s`."""
        bounds = [(min(sizes), max(sizes)) for sizes in zip(*self.confirmed, strict=True)]
        return bool(bounds) and all(low <= size <= high for size, (low, high) in zip((b, s), bounds, strict=True))

    def small_log(self, b: int, s: int) -> Log:
        """The log of the small model that was run to find them."""
        return Log(np.rint(self.coefficients @ powers(b, s)).astype(np.int64), self.labels, self.grain)

    def log(self, b: int, s: int) -> Log:
        """The log of the whole model."""
        small = self.small_log(b, s)
        return small if self.depth is None else self.depth.deepen(small, self.first.block_count)

    @property
    def basis(self) -> str:
        """How the formulas were found and confirmed, for the printed answer."""
        b, s = max(self.confirmed)
        scratch = ", without libraries' scratch space" if self.omit_scratch else ""
        return f"formulas found from {self.run_count} dry runs, confirmed by another at b={b}, s={s}{scratch}"


def powers(b: int, s: int) -> np.ndarray:
    """The values of `MONOMIALS` at these sizes."""
    return np.array([float(b) ** i * float(s) ** j for i, j in MONOMIALS])


def fit(logs: dict[tuple[int, int], Log], columns: Iterable[int] = _COLUMNS_WITHOUT_B2) -> np.ndarray | None:
    """The coefficients, (events, monomials), that give all `logs`, each at its (b, s), to the byte; None if none do.

    `columns` are the monomials that may occur; there must be at least as many logs.
    """
    columns = list(columns)
    first = next(iter(logs.values()))
    if any(log.labels != first.labels for log in logs.values()):
        return None
    matrix = np.array([powers(b, s) for b, s in logs])
    changes = np.array([log.changes for log in logs.values()], dtype=float)
    scale = np.abs(matrix[:, columns]).max(0)
    solution = np.linalg.lstsq(matrix[:, columns] / scale, changes, rcond=None)[0].T / scale
    coefficients = np.zeros((changes.shape[1], len(MONOMIALS)))
    coefficients[:, columns] = np.rint(solution * DENOMINATOR) / DENOMINATOR
    return coefficients if np.array_equal(np.rint(matrix @ coefficients.T), changes) else None


@dataclass
class FormulaFinder:
    """The dry runs of one model by one recipe at any batch and length, and the formulas found from them."""

    source: Source
    recipe: Recipe
    trials: dict[tuple[int, int], Trial] = field(default_factory=dict)
    by_regime: dict[tuple[bool, int | None], Formulas | None] = field(default_factory=dict)
    """By `(is_single, length)`, since PyTorch leaves some copies out for one example; a length of None is for all lengths."""
    _in_letters: dict[Formulas, list[Polynomial]] = field(default_factory=dict)

    def with_recipe(self, recipe: Recipe) -> "FormulaFinder":
        """The finder of the same model for another recipe; this one if only batch or length differ."""
        return self if replace(recipe, batch=1, sequence=1) == self.recipe else finder_of(self.source, recipe)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes in the model's configuration, by letter."""
        return sizes_of(self.source.config) if hasattr(self.source.config, "to_dict") else {}

    def run(self, b: int, s: int) -> Trial:
        """A dry run at these sizes, extrapolated from a few blocks if possible."""
        trial = try_recipe(self.source, replace(self.recipe, batch=b, sequence=s))
        self.remember(trial)
        return trial

    def remember(self, trial: Trial) -> None:
        """Take a dry run by this recipe into account, whoever ran it."""
        self.trials[trial.recipe.batch, trial.recipe.sequence] = trial

    def log(self, b: int, s: int) -> tuple[Log, str]:
        """The log at these sizes, and its basis."""
        if (b, s) not in self.trials:
            pays = self.by_regime or len(self.trials) >= _SIZES_BEFORE_FORMULAS
            formulas = self.formulas_for(b, s) if pays else None
            if formulas is not None and formulas.holds(b, s):
                return formulas.log(b, s), formulas.basis
            self.run(b, s)
        return self.trials[b, s].log, self.trials[b, s].basis

    def guess(self, b: int, s: int) -> Log:
        """The log at these sizes by formulas, even unconfirmed ones; by a dry run if there are none."""
        formulas = self.by_regime.get((b == 1, s)) or self.by_regime.get((b == 1, None))
        return formulas.log(b, s) if formulas else self.log(b, s)[0]

    def formulas_for(self, b: int, s: int) -> Formulas | None:
        """Formulas that give a dry run at these sizes, apart from scratch space; they are found and confirmed if necessary.

        None if there are none, or if no step with one example (or with several) was run dry yet. The number of a chunked loss's
        events depends on the size, which no formula describes.
        """
        if self.recipe.chunked_loss:
            return None
        formulas = self._find_or_recall(b == 1)
        if b > 1 and formulas is not None and not formulas.are_exact:
            formulas = self._find_or_recall(False, s)
        if formulas is None or not formulas.are_exact:
            return None
        if formulas.holds(b, s):
            return formulas
        small = self._run_small(b, s, formulas.depth)
        if not np.array_equal(small.plain.totals, formulas.small_log(b, s).totals):
            return None
        if small.peak == small.plain.peak:
            formulas.confirmed.append((b, s))
        return formulas

    def _find_or_recall(self, is_single: bool, length: int | None = None) -> Formulas | None:
        """Formulas for this length alone, or for all lengths, from the first dry run of such sizes; None if there was none."""
        if (is_single, length) not in self.by_regime:
            trials = (t for (b, s), t in self.trials.items() if (b == 1) == is_single and length in (None, s))
            first = next(trials, None)
            if first is None:
                return None
            try:
                self.by_regime[is_single, length] = self._fit_formulas(is_single, first, length)
            except CourseError:  # the small sizes do not suit this model
                self.by_regime[is_single, length] = None
        return self.by_regime[is_single, length]

    def _run_small(self, b: int, s: int, depth: DepthRule | None) -> Log:
        source = self.source if depth is None else self.source.with_blocks(3)
        return run_few_batches(source, replace(self.recipe, batch=b, sequence=s)).log

    def _choose_sizes(self, is_single: bool, length: int | None) -> tuple[list[tuple[int, int]], Iterable[int]]:
        """Pairs of batch and length to run, and the columns of the monomials that these can distinguish."""
        if length:
            return [(b, length) for b in (2, 3, 4, 5)], _BATCH_COLUMNS
        parts = (self.source.config, getattr(self.source.config, "text_config", None))
        positions = [getattr(part, name, None) for part in parts for name in _POSITIONS]
        # A length four times which the model still takes.
        unit = max(2, min(64, min(filter(None, positions), default=256) // 4))
        if is_single:
            return [(1, unit), (1, 2 * unit), (1, 4 * unit), (1, 3 * unit)], _LENGTH_COLUMNS
        batches_and_units = ((2, 1), (2, 2), (3, 1), (4, 2), (2, 4), (3, 4), (5, 3))
        return [(b, units * unit) for b, units in batches_and_units], _COLUMNS_WITHOUT_B2

    def _fit_formulas(self, is_single: bool, first: Trial, length: int | None) -> Formulas | None:
        """Formulas for all lengths, or for `length` alone, from dry runs at small sizes; None if no polynomials give these."""
        sizes, columns = self._choose_sizes(is_single, length)
        depth = DepthRule.between(*(log.plain for log in first.smaller)) if first.smaller else None
        logs = {(b, s): self._run_small(b, s, depth) for b, s in sizes[:2]}
        # If the length does not matter, formulas depend on the batch alone.
        if not (is_single or length) and np.array_equal(*(log.plain.changes for log in logs.values())):
            sizes, columns = self._choose_sizes(is_single, sizes[0][1])
            logs = {size: log for size, log in logs.items() if size in sizes}
        logs |= {(b, s): self._run_small(b, s, depth) for b, s in sizes if (b, s) not in logs}
        coefficients = fit({size: log.plain for size, log in logs.items()}, columns)
        if coefficients is None:
            return None
        small = logs[sizes[0]].plain
        if depth is not None and len(depth.growth) != len(small.labels):
            return None  # the first sizes have other events: they are beyond a window of attention, say
        run_count = len(logs) + 2 * (depth is not None)
        logs[first.recipe.batch, first.recipe.sequence] = first.log
        confirmed = [size for size, log in logs.items() if log.peak == log.plain.peak]
        return Formulas(coefficients, small.labels, small.grain, depth, first, run_count, confirmed)

    def count_blocks(self, log: Log) -> dict[str, int]:
        """The number of blocks in each list, by the list's name with `.*`; a deepened log has labels of only some of them."""
        numbers: dict[str, set[str]] = {}
        for name, number in (block_of(label.module) for label in log.labels):
            if number:
                numbers.setdefault(name, set()).add(number)
        lengths = {} if self.source.blocks is None else self.source.blocks.lengths(3)
        return {
            name: len(seen) if "teacher" in name.split(".") else lengths.get(len(seen), len(seen))
            for name, seen in numbers.items()
        }

    def polynomials_of_events(self, log: Log, recipe: Recipe) -> list[Polynomial]:
        """The size of each event as a polynomial in letters, or as a number where none is known."""
        b, s = recipe.batch, recipe.sequence
        polynomials = [Polynomial.monomial(abs(change)) for change in log.changes.tolist()]
        formulas = self.formulas_for(b, s)
        if formulas is None or not np.array_equal(formulas.log(b, s).totals, log.plain.totals):
            return polynomials
        if formulas not in self._in_letters:
            self._in_letters[formulas] = self._spell_in_letters(formulas, b)
        spelled = self._in_letters[formulas]
        depth = formulas.depth
        order = range(len(spelled)) if depth is None else depth.order(formulas.first.block_count).tolist()
        sizes = {"b": b, "s": s, **self.sizes}
        for index, event in zip(log.plain_indices, order, strict=True):
            if spelled[event].value(sizes) == abs(log.changes[index]):
                polynomials[index] = spelled[event]
        return polynomials

    def _spell_in_letters(self, formulas: Formulas, batch: int) -> list[Polynomial]:
        """The size of each event of the formulas in the model's letters if possible, else in b and s."""
        changes, primes = self._run_in_primes(formulas, batch)
        in_primes = [None] * len(formulas.labels) if changes is None else np.abs(changes).tolist()
        rows = zip(formulas.coefficients, in_primes, strict=True)
        return [_spell_event(row, size, primes, self.sizes) for row, size in rows]

    def _run_in_primes(self, formulas: Formulas, batch: int) -> tuple[np.ndarray | None, dict[str, int]]:
        """Changes of the same events in a model whose sizes are primes, and its sizes by letter; None if there is none."""
        b, s = (1, _PRIME_LENGTH) if batch == 1 else (_PRIME_BATCH, _PRIME_LENGTH)
        for config, primes in siblings(self.source.config) if self.sizes else ():
            finder = FormulaFinder(self.source.with_config(config), self.recipe)
            try:
                log = finder._run_small(b, s, formulas.depth).plain
            except CourseError:  # sizes that do not suit this kind of model
                continue
            if len(log.labels) == len(formulas.labels):
                return log.changes, primes | {"b": b, "s": s}
        return None, {}


def _spell_event(row: np.ndarray, in_primes: int | None, primes: dict[str, int], sizes: dict[str, int]) -> Polynomial:
    """A size as a polynomial: in the model's letters if one product gives the same number, else in b and s.

    `in_primes` are the bytes of the same event in the model whose sizes are `primes`.
    """
    columns = np.flatnonzero(row)
    if in_primes is not None and len(columns) == 1:
        column = columns[0]
        i, j = MONOMIALS[column]
        rest = Fraction(in_primes, int(powers(primes["b"], primes["s"])[column]))
        letters = factor_number(rest, {x: size for x, size in primes.items() if x not in "bs"})
        if letters is not None and letters.value(sizes) == abs(Fraction(row[column]).limit_denominator(DENOMINATOR)):
            ((powers_of, factor),) = letters.terms
            return Polynomial.monomial(factor, **dict(powers_of), b=i, s=j)
    # Positive if allocated, negative if freed; not at b = s = 1, where shifted labels are empty.
    sign = 1 if row @ powers(2, 3) > 0 else -1
    factors = (sign * Fraction(value).limit_denominator(DENOMINATOR) for value in row.tolist())
    parts = (Polynomial.monomial(factor, b=i, s=j) for factor, (i, j) in zip(factors, MONOMIALS, strict=True))
    return sum(parts, Polynomial())


_finders: dict[tuple, FormulaFinder] = {}


def finder_of(source: Source, recipe: Recipe) -> FormulaFinder:
    """This process's finder of a model and a recipe; a new one for a module or a function, since these have no key."""
    finder = FormulaFinder(source, replace(recipe, batch=1, sequence=1))
    return finder if source.key is None else _finders.setdefault((*keys_of(source, recipe), finder.recipe), finder)
