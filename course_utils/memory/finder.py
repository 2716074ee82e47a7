"""From dry runs to formulas: what is known of one model by one recipe, and how more is found out."""

import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from course_utils.errors import CourseError
from course_utils.memory.dry_run import run_dry
from course_utils.memory.found import MONOMIALS, Depth, Found, Log, find, powers
from course_utils.memory.letters import Polynomial, in_letters, siblings, sizes_of
from course_utils.memory.model import Source
from course_utils.memory.recipe import Recipe
from course_utils.memory.workload import Workload

_IN_PRIMES = (23, 32 * 29)
"""Batch and length for reading letters: primes that occur in no other size, and 32, since some kernels round lengths up to it."""
_DEPTHS = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"),
    *("encoder_layers", "decoder_layers", "n_blocks"),
)
_POSITIONS = ("max_position_embeddings", "max_target_positions")
_NUMBER = re.compile(r"(^|\.)(\d+)(?=\.|$)")


@dataclass
class Formulas:
    """Polynomials of one regime, found at a known depth; they hold between the sizes at which they were `confirmed`.

    They know nothing of oneDNN's scratch space, so a dry run in which that counts at the peak confirms nothing.
    """

    found: Found
    depth: Depth | None
    blocks: int
    confirmed: list[tuple[int, int]]
    runs: int
    scratch: bool = False

    def holds(self, b: int, s: int) -> bool:
        """Whether a dry run has confirmed them on both sides of these sizes."""
        bounds = [(min(sizes), max(sizes)) for sizes in zip(*self.confirmed, strict=True)]
        return bool(bounds) and all(low <= size <= high for size, (low, high) in zip((b, s), bounds, strict=True))

    def log(self, b: int, s: int) -> Log:
        """The log of the whole model."""
        if self.depth is None:
            return self.found.log(b, s)
        return self.depth.deepened(self.found.changes(b, s), self.found.labels, self.blocks, self.found.grain)

    @property
    def how(self) -> str:
        """In words."""
        b, s = max(self.confirmed)
        scratch = ", without oneDNN's scratch space" * self.scratch
        return f"formulas found from {self.runs} dry runs, confirmed by another at b={b}, s={s}{scratch}"


@dataclass
class Finder:
    """One model by one recipe, whatever the batch and the length: its dry runs, and the formulas found from them."""

    source: Source
    recipe: Recipe
    logs: dict[tuple[int, int], Log] = field(default_factory=dict)
    by_regime: dict[int, Formulas | None] = field(default_factory=dict)
    _letters: dict = field(default_factory=dict)

    def with_recipe(self, recipe: Recipe) -> "Finder":
        """Of the same model by another recipe; itself where only batch or length differ."""
        return self if replace(recipe, batch=1, sequence=1) == self.recipe else finder_of(self.source, recipe)

    @property
    def sizes(self) -> dict[str, int]:
        """Letters of the model's own sizes."""
        return sizes_of(self.source.config) if hasattr(self.source.config, "to_dict") else {}

    def log(self, b: int, s: int) -> tuple[Log, str]:
        """The log at these sizes, and how it is known."""
        if (b, s) in self.logs:
            return self.logs[b, s], "a dry run of just this step"
        formulas = self.formulas_for(b, s)
        if formulas is not None and formulas.holds(b, s):
            return formulas.log(b, s), formulas.how
        self.logs[b, s] = self.dry(b, s)
        return self.logs[b, s], "a dry run of just this step"

    def guess(self, b: int, s: int) -> Log:
        """As `log`, by formulas wherever some are known, confirmed at these sizes or not."""
        known = self.by_regime.get(min(b, 2))
        return known.log(b, s) if known else self.log(b, s)[0]

    def formulas_for(self, b: int, s: int) -> Formulas | None:
        """Formulas that give a dry run at these sizes, but for scratch space; found and confirmed where need be.

        None where there are none, and where no whole step of this regime was run dry yet.
        """
        regime = min(b, 2)  # with one example PyTorch leaves some copies out
        if regime not in self.by_regime:
            whole = next((at for at in self.logs if min(at[0], 2) == regime), None)
            if whole is None:
                return None
            try:
                self.by_regime[regime] = self._find(regime, whole)
            except CourseError:  # the small sizes do not suit this model
                self.by_regime[regime] = None
        formulas = self.by_regime[regime]
        if formulas is None or formulas.holds(b, s):
            return formulas
        small = self._small(b, s, formulas.depth)
        if not np.array_equal(small.plain.totals, formulas.found.log(b, s).totals):
            return None
        formulas.confirmed += [(b, s)] * (small.peak == small.plain.peak)
        return formulas

    def dry(self, b: int, s: int, blocks: int | None = None) -> Log:
        """A dry run at these sizes, of a model of fewer blocks where they are given."""
        source = self.source if blocks is None else self.source.with_config(cut(self.source.config, blocks)[0])
        recipe = replace(self.recipe, batch=b, sequence=s)
        return dry_log(source, recipe)

    def _small(self, b: int, s: int, depth: Depth | None) -> Log:
        return self.dry(b, s, depth and depth.blocks)

    def _find(self, regime: int, whole: tuple[int, int]) -> Formulas | None:
        """Formulas that give the dry run of the `whole` model too."""
        unit = self._unit()
        if regime == 1:
            sizes, used = [(1, unit), (1, 2 * unit), (1, 4 * unit), (1, 3 * unit)], (0, 2, 4)
        else:
            sizes, used = _sizes(unit), range(6)
        depth, blocks = self._depth(*whole)
        logs = {at: self._small(*at, depth) for at in sizes[:2]}
        if regime == 2 and np.array_equal(*(log.plain.changes for log in logs.values())):  # the length does not matter
            sizes, used = [(b, unit) for b in (2, 3, 4, 5)], (0, 1, 6)
            logs = {sizes[0]: logs[2, unit]}
        logs |= {at: self._small(*at, depth) for at in sizes if at not in logs}
        found = find({at: log.plain for at, log in logs.items()}, used)
        if found is None:
            return None
        logs, runs = {**logs, whole: self.logs[whole]}, len(logs) + 2 * (depth is not None)
        confirmed, known = [at for at, log in logs.items() if log.peak == log.plain.peak], self.logs[whole].plain
        formulas = Formulas(found, depth, blocks, confirmed, runs, known is not self.logs[whole])
        return formulas if np.array_equal(formulas.log(*whole).totals, known.totals) else None

    def _unit(self) -> int:
        """A length that suits the model even four times over."""
        parts = (self.source.config, getattr(self.source.config, "text_config", None))
        positions = [getattr(part, name, None) for part in parts for name in _POSITIONS]
        return max(2, min(64, min(filter(None, positions), default=256) // 4))

    def _depth(self, b: int, s: int) -> tuple[Depth | None, int]:
        """How blocks repeat, and how many there are; None where the dry run of all of them, at these sizes, says otherwise."""
        found = cut(self.source.config, 3)
        if found is None:
            return None, 0
        fewer, more = (self.dry(b, s, count).plain for count in (2, 3))
        depth, whole = Depth.between(fewer, more, 3), self.logs[b, s].plain
        if depth is None:
            return None, 0
        deep = depth.deepened(more.changes, more.labels, found[1], more.grain)
        return (depth, found[1]) if np.array_equal(deep.totals, whole.totals) else (None, 0)

    def blocks(self, log: Log) -> dict[str, int]:
        """How many blocks each list of them has, by the list's name with `.*`; a log that was deepened names only some."""
        seen: dict[str, set[str]] = {}
        for _, _, module, _ in log.labels:
            if found := _NUMBER.search(module):
                seen.setdefault(module[: found.start()] + ".*", set()).add(found[2])
        smaller = cut(self.source.config, 3)
        named, all_of_them = (_depth_of(smaller[0]), _depth_of(self.source.config)) if smaller else (0, 0)
        return {name: all_of_them if len(numbers) == named else len(numbers) for name, numbers in seen.items()}

    def formulas(self, log: Log, recipe: Recipe) -> Callable[[int], Polynomial]:
        """For each event's place its size as a polynomial, in letters as far as they are known, else a number."""
        key = (recipe.batch, recipe.sequence)
        if key not in self._letters:
            self._letters[key] = self._polynomials(log, *key)
        return self._letters[key].__getitem__

    def _polynomials(self, log: Log, b: int, s: int) -> list[Polynomial]:
        sizes = {"b": b, "s": s, **self.sizes}
        numbers = [Polynomial.of(abs(change)) for change in log.changes.tolist()]
        formulas = self.formulas_for(b, s)
        if formulas is None or not np.array_equal(formulas.log(b, s).totals, log.plain.totals):
            return numbers
        read = self.read(formulas, min(b, 2))
        order = np.arange(len(read)) if formulas.depth is None else formulas.depth.order(formulas.blocks)
        plain = (place for place, label in enumerate(log.labels) if not label[3].startswith("inside aten."))
        for place, known in zip(plain, order.tolist(), strict=True):
            if read[known].value(sizes) == abs(log.changes[place]):
                numbers[place] = read[known]
        return numbers

    def read(self, formulas: Formulas, regime: int) -> list[Polynomial]:
        """For each event of the log that was fitted, its size in letters as far as that can be, else in b and s."""
        in_primes, chosen = self.in_primes(formulas, regime)
        rows = formulas.found.coefficients
        sizes = [None] * len(rows) if in_primes is None else np.abs(in_primes).tolist()
        return [_read(row, size, chosen, self.sizes) for row, size in zip(rows, sizes, strict=True)]

    def in_primes(self, formulas: Formulas, regime: int) -> tuple[np.ndarray | None, dict[str, int]]:
        """Bytes of the same events in a model whose sizes are primes, where there is one, and its sizes."""
        b, s = (1 if regime == 1 else _IN_PRIMES[0]), _IN_PRIMES[1]
        for config, chosen in siblings(self.source.config) if self.sizes else ():
            finder = Finder(self.source.with_config(config), self.recipe)
            try:
                log = finder._small(b, s, formulas.depth).plain
            except CourseError:  # sizes that do not suit this kind of model
                continue
            if len(log.labels) == len(formulas.found.labels):
                return log.changes, chosen | {"b": b, "s": s}
        return None, {}


def _read(row: np.ndarray, in_primes: int | None, chosen: dict[str, int], sizes: dict[str, int]) -> Polynomial:
    """A size as a polynomial: in the model's letters where it is one product that gives the same number, else in b and s.

    `in_primes` are the bytes of the same event in the model whose sizes are primes, which are `chosen`.
    """
    terms = np.flatnonzero(row)
    if in_primes is not None and len(terms) == 1:
        i, j = MONOMIALS[terms[0]]
        rest = Fraction(in_primes, int(powers(chosen["b"], chosen["s"])[terms[0]]))
        letters = in_letters(rest, {x: size for x, size in chosen.items() if x not in "bs"})
        if letters is not None and letters.value(sizes) == abs(Fraction(row[terms[0]]).limit_denominator(24)):
            ((powers_of, factor),) = letters.terms
            return Polynomial.of(factor, **dict(powers_of), b=i, s=j)
    parts = [
        Polynomial.of(abs(Fraction(value).limit_denominator(24)) * (1 if value * row.sum() > 0 else -1), b=i, s=j)
        for value, (i, j) in zip(row.tolist(), MONOMIALS, strict=True)
    ]
    return sum(parts, Polynomial())


def cut(config, blocks: int) -> tuple[object, int] | None:
    """A Transformers configuration with so many blocks, or repetitions of a pattern of blocks, and how many it has itself.

    None where it has fewer than five, or lists of several lengths.
    """
    if not hasattr(config, "to_dict"):
        return None
    names = [name for name in _DEPTHS if type(getattr(config, name, None)) is int]
    depths = {getattr(config, name) for name in names}
    if len(depths) != 1:
        return None
    depth = depths.pop()
    lists = {n: v for n, v in vars(config).items() if isinstance(v, list | tuple) and len(v) == depth > 1}
    period = next(p for p in range(1, depth + 1) if all(_repeats(v, p) for v in lists.values()))
    count, rest = divmod(depth, period)
    if count < 5:
        return None
    smaller, kept = deepcopy(config), blocks * period + rest
    for name in names:
        setattr(smaller, name, kept)
    for name, value in lists.items():
        setattr(smaller, name, value[:kept])
    return smaller, count


def _depth_of(config) -> int:
    return next(getattr(config, name) for name in _DEPTHS if type(getattr(config, name, None)) is int)


def _repeats(values, period: int) -> bool:
    return all(value == values[place % period] for place, value in enumerate(values))


def _sizes(unit: int) -> list[tuple[int, int]]:
    return [(2, unit), (2, 2 * unit), (3, unit), (4, 2 * unit), (2, 4 * unit), (3, 4 * unit), (5, 3 * unit)]


def dry_log(source: Source, recipe: Recipe) -> Log:
    """The log of one dry run."""
    work = Workload(source, recipe)
    return Log.of(run_dry(work.build, work.step, recipe.device, recipe.ranks, warm=work.prime))


_known: dict[tuple[str, Recipe], Finder] = {}


def finder_of(source: Source, recipe: Recipe) -> Finder:
    """What is known of this model by this recipe so far in this process; of a module or a function nothing is kept."""
    whatever = replace(recipe, batch=1, sequence=1)
    if source.key is None:
        return Finder(source, whatever)
    return _known.setdefault((source.key, whatever), Finder(source, whatever))
