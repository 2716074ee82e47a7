"""The memory of a training step, predicted for any model: the first answer by a dry run, the next by formulas fitted to it."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from textwrap import fill
from typing import TYPE_CHECKING

from course_utils.errors import CourseError
from course_utils.memory.formulas.letters import MEANINGS, Polynomial
from course_utils.memory.step.recipe import Recipe
from course_utils.memory.trace.log import KINDS, Log, block_of
from course_utils.units import format_bytes

if TYPE_CHECKING:
    import pandas as pd

    from course_utils.memory.formulas.finder import FormulaFinder
    from course_utils.memory.formulas.named import NamedModel
    from course_utils.memory.step.model import ModelLike
    from course_utils.memory.step.workload import Workload

_MAX_PRINTED_TERMS = 5


@dataclass(frozen=True)
class Term:
    """One summand of the bytes in use at an instant."""

    kind: str  # of `KINDS`
    name: str
    formula: str
    bytes: int  # the formula's value
    letters: frozenset[str] = frozenset()
    times: int = 1  # the number of equal blocks that it stands for


@dataclass(frozen=True)
class Instant:
    """The fullest moment of a phase: bytes `by_kind`, the operator and module that ran, and the `terms` that add up to it."""

    name: str
    by_kind: dict[str, int]
    operator: str
    module: str
    _estimate: "Estimate" = field(repr=False)
    _index: int = field(repr=False)  # that of the last event before this moment

    @property
    def bytes(self) -> int:
        """Bytes of all kinds together."""
        return sum(self.by_kind.values())

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """The terms with their formulas, the largest first; equal ones of several blocks are one term."""
        return self._sort(self._estimate.polynomials)

    @cached_property
    def terms_in_bytes(self) -> tuple[Term, ...]:
        """The terms with numbers of bytes in place of formulas, which would take dry runs to find."""
        changes = self._estimate.log.changes[: self._index + 1].tolist()
        return self._sort([Polynomial.monomial(abs(change)) for change in changes])

    def _sort(self, sizes: list[Polynomial]) -> tuple[Term, ...]:
        return tuple(sorted(self._estimate.terms_at(self._index, sizes), key=lambda term: -term.bytes))


@dataclass(frozen=True)
class Estimate:
    """The predicted memory of a training step by `recipe`, in bytes on the device of one rank.

    Printed, it says how much, when and for what, on what basis, and what is not counted.
    """

    model: str
    recipe: Recipe
    log: Log = field(repr=False)
    basis: str  # what the figures come from: a dry run, or formulas, and how those were confirmed
    finder: "FormulaFinder | NamedModel" = field(repr=False)

    @property
    def peak(self) -> int:
        """Bytes at the fullest instant."""
        return self.log.peak

    @property
    def workload(self) -> "Workload":
        """The predicted step, in a form that runs."""
        from course_utils.memory.step.workload import Workload

        return Workload(self.finder.with_recipe(self.recipe).source, self.recipe)

    def beside_training(self) -> dict[str, int]:
        """Bytes at the fullest moment of evaluation, of saving and of loading, each by a dry run."""
        from course_utils.memory.trace.dry_run import dry_run

        workload = self.workload
        actions = {"evaluation": workload.evaluate, "saving": workload.save, "loading": workload.load}
        options = {"device": self.recipe.device, "ranks": self.recipe.ranks, "prime": workload.prime}
        return {name: dry_run(workload.build, action, **options).peak for name, action in actions.items()}

    @cached_property
    def instants(self) -> tuple[Instant, ...]:
        """The fullest moment of each phase, in the order of the step."""
        instants = []
        for phase, index in self.log.fullest_index_by_phase().items():
            label = self.log.labels[index]
            in_use = self.log.by_kind(index)
            by_kind = {kind: in_use[kind] for kind in KINDS if kind in in_use}
            instants.append(Instant(phase, by_kind, label.operator, label.module, self, index))
        return tuple(instants)

    @cached_property
    def polynomials(self) -> list[Polynomial]:
        """The size of each event of the log, in letters as far as they are known."""
        return self.finder.polynomials_of_events(self.log, self.recipe)

    @property
    def peak_instant(self) -> Instant:
        """The instant of the peak."""
        return max(self.instants, key=lambda instant: instant.bytes)

    @property
    def sizes(self) -> dict[str, int]:
        """The values of the letters in the formulas."""
        return {"b": self.recipe.batch, "s": self.recipe.sequence, **self.finder.sizes}

    def by_instant(self) -> dict[str, dict[str, int]]:
        """Bytes by kind at each instant, as `viz.instants_figure` draws them."""
        return {instant.name: dict(instant.by_kind) for instant in self.instants}

    def working(self, instant: str | None = None) -> "pd.DataFrame":
        """The terms at the instant of that name, by default the fullest, as a table with a row per term.

        Raises `CourseError` for a name that is none of `by_instant()`.
        """
        import pandas as pd

        by_name = {None: self.peak_instant} | {moment.name: moment for moment in self.instants}
        if instant not in by_name:
            raise CourseError(f"No instant is called {instant!r}; choose one of {', '.join(self.by_instant())}.")
        terms = by_name[instant].terms
        rows = [(term.kind, term.name, term.formula, term.bytes, format_bytes(term.bytes)) for term in terms]
        return pd.DataFrame(rows, columns=["kind", "what", "formula", "bytes", "size"])

    def with_fields(self, **changes) -> "Estimate":
        """The estimate of this model with another `batch`, `sequence` or any other field of the recipe."""
        recipe = replace(self.recipe, **changes)
        return estimate_from(self.finder.with_recipe(recipe), recipe)

    def __str__(self):
        peak = self.peak_instant
        largest, smaller = peak.terms[:_MAX_PRINTED_TERMS], peak.terms[_MAX_PRINTED_TERMS:]
        rows = [(term.bytes, f"{term.name} = {term.formula}" if term.letters else term.name) for term in largest]
        if smaller:
            rows.append((sum(term.bytes for term in smaller), f"in {len(smaller)} smaller terms; .working() shows all"))
        lines = [f"{format_bytes(size):>10s}  {text}" for size, text in rows]
        device = {"cpu": "the CPU", "cuda": "a GPU"}[self.recipe.device]
        ranks = f", on each of {self.recipe.ranks} ranks" if self.recipe.ranks > 1 else ""
        head = f"peak: {format_bytes(self.peak)} on {device}{ranks}, in this phase: {peak.name}"
        letters = set().union(*(term.letters for term in largest))
        with_letters = ", ".join(f"{x}={self.sizes[x]} ({MEANINGS[x]})" for x in MEANINGS if x in letters)
        notes = [*([f"with {with_letters}"] if letters else []), *self.notes]
        return "\n".join([head, *lines, *(fill(note, 88, subsequent_indent="    ") for note in notes)])

    __repr__ = __str__

    @property
    def notes(self) -> list[str]:
        """Sentences on the basis of the figures, and on what is counted or not where a reader may expect otherwise."""
        recipe = self.recipe
        lines = [f"known from {self.basis}", *self.finder.source.remarks]
        if recipe.keeps_outputs:
            lines.append("counted: what the model returns lives until the step is done (outputs = model(…))")
        if recipe.galore:
            lines.append("counted: a step that recomputes GaLore's directions, as every 200th does")
        if recipe.context_parallel > 1:
            part = recipe.sequence // recipe.context_parallel
            lines.append(f"each rank has {part} of each row's {recipe.sequence} tokens")
        if recipe.ranks > 1 and not recipe.zero_stage:
            lines.append("ranks: each keeps everything (DDP); zero_stage=1, 2 or 3 would share it out")
        away = ", CUDA's context, what its allocator reserves beyond this" if recipe.device == "cuda" else ""
        return [*lines, f"not counted: the libraries' own workspaces{away}"]

    def terms_at(self, index: int, sizes: list[Polynomial]) -> Iterator[Term]:
        """The terms in use after the event at `index`; `sizes` are those of all events."""
        blocks = self.finder.count_blocks(self.log)
        groups: dict[tuple[str, str], Counter] = {}
        for label, change, formula in zip(self.log.labels[: index + 1], self.log.changes.tolist(), sizes, strict=False):
            counts = groups.setdefault((label.kind, block_of(label.module)[0]), Counter())
            counts[abs(change), formula] += 1 if change > 0 else -1
        for (kind, owner), counts in groups.items():
            yield from _terms_of(kind, owner, counts, blocks.get(owner, 1))
        rounding = int(self.log.rounded[: index + 1].sum() - self.log.changes[: index + 1].sum())
        if rounding:
            yield Term(KINDS[-1], "the allocator's rounding", str(rounding), rounding)


def _terms_of(kind: str, owner: str, counts: Counter, blocks: int) -> Iterator[Term]:
    """A term for what each of the `owner`'s blocks has, and one for the rest; `counts` are by bytes and formula."""
    of_each_block = {piece: count // blocks if blocks > 1 else 0 for piece, count in counts.items()}
    of_rest = {piece: count - of_each_block[piece] * blocks for piece, count in counts.items()}
    for times, pieces in ((blocks, of_each_block), (1, of_rest)):
        size = times * sum(count * size for (size, _), count in pieces.items())
        if size:
            total = sum((formula.times(count) for (_, formula), count in pieces.items() if count), Polynomial())
            text = f"{times} × ({total})" if times > 1 else str(total)
            name = owner[:-2] if owner.endswith(".*") else owner.rpartition(".")[2] or "the model itself"
            name = f"{times} {name}" if times > 1 else name
            name = f"{kind} of {name}" if owner or kind == "activations" else kind
            yield Term(kind, name, text, size, total.letters, times)


def estimate(model: "ModelLike", recipe: Recipe = Recipe(), *, batch: Callable | None = None) -> Estimate:  # noqa: B008 frozen
    """The memory of one training step in its steady state, for any model: nothing is computed, no weights are made.

    `model` is a Transformers configuration or the path of a `config.json`, the name of a model (`models.PUBLISHED`,
    `models.PUBLIC`), a `ConvNetConfig`, a module, or a function without arguments that makes one. `batch(b, s)` gives what it
    is called with, a tensor, a tuple or a dict, for models that take something else than token ids, pictures or sound by
    Transformers' names. The model must return its loss, or an object with `.loss`.

    What is predicted is the step of `Workload(model, recipe)`, an ordinary loop. The first sizes are answered by dry runs, of
    three blocks if a model has many equal ones. For further sizes, polynomials in batch and length are found from a few small
    dry runs. They answer alone only between sizes at which they equal dry runs to the byte; else there is another dry run, and
    `.basis` says which it was. Raises `CourseError` for a model that cannot be made, or run without its values, and for a recipe
    that does not suit it.
    """
    if not isinstance(recipe, Recipe):
        raise CourseError(f"recipe must be a memory.Recipe, not {recipe!r}; write Recipe(batch=…).")
    from course_utils.memory.formulas.finder import finder_of
    from course_utils.memory.step.model import source_of

    source = source_of(model, batch)
    source.require(recipe)
    return estimate_from(finder_of(source, recipe), recipe)


def estimate_from(finder: "FormulaFinder", recipe: Recipe) -> Estimate:
    """The estimate of `recipe` by the formulas or dry runs of `finder`."""
    log, basis = finder.log(recipe.batch, recipe.sequence)
    return Estimate(finder.source.name, recipe, log, basis, finder)
