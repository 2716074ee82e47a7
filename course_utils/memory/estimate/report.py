"""The estimate as people read it: the instants of a step, each the sum of named terms with their formulas."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from textwrap import fill

import pandas as pd

from course_utils.errors import CourseError
from course_utils.memory.estimate.log import Log
from course_utils.memory.estimate.tape import IN_16_BITS
from course_utils.memory.recipe import Recipe
from course_utils.units import format_bytes

KINDS = (
    "parameters",
    "buffers",
    "inputs",
    "optimizer state",
    "gradients",
    "activations",
    "recomputed",
    "temporaries",
)


_SHOWN = 5
"""Terms of the printed answer."""

_MEANINGS = {
    "b": "examples of a micro-batch",
    "s": "tokens of an example",
    "h": "width",
    "a": "attention heads",
    "k": "heads of keys and values",
    "d": "width of a head",
    "f": "inner width",
    "V": "vocabulary",
    "n": "positions",
    "c": "classes",
    "w": "channels after stage",
    "r": "side of a picture after stage",
    "w0": "channels of a picture",
    "r0": "side of a picture",
    "N": "ranks",
}


@dataclass(frozen=True)
class Term:
    """One summand: `kind` is one of `KINDS`, `formula` gives `bytes` when the sizes are put in for its letters."""

    kind: str
    name: str
    formula: str
    bytes: int


@dataclass(frozen=True)
class Instant:
    """A moment of the step, the fullest of its stage: `by_kind` in bytes, and the `terms` behind them."""

    name: str
    by_kind: dict[str, int]
    _alive: tuple[int, ...] = field(repr=False)
    _book: "Book" = field(repr=False)

    @property
    def bytes(self) -> int:
        """All that is in use."""
        return sum(self.by_kind.values())

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """Largest first; whatever is the same in several blocks is one term."""
        return tuple(sorted(self._book.terms(self._alive), key=lambda term: -term.bytes))


@dataclass(frozen=True)
class Estimate:
    """The predicted memory of a training step by `recipe`; `sizes` are the values of the letters in the formulas.

    Printed, it answers: how much, when, for what, and what is counted in it.
    """

    instants: tuple[Instant, ...]
    sizes: dict[str, int]
    recipe: Recipe

    def __str__(self):
        largest, smaller = self.peak_instant.terms[:_SHOWN], self.peak_instant.terms[_SHOWN:]
        rows = [(term.bytes, f"{term.name} = {term.formula}") for term in largest]
        if smaller:
            rows.append((sum(term.bytes for term in smaller), f"in {len(smaller)} smaller terms; .working() shows all"))
        lines = [f"{format_bytes(size):>10s}  {what}" for size, what in rows]
        head = f"peak: {format_bytes(self.peak)} on {_where(self.recipe)}, at this instant: {self.peak_instant.name}"
        notes = [self._letters_of(largest), *_counted(self.recipe, self.peak_instant)]
        return "\n".join([head, *lines, *(fill(note, 88, subsequent_indent="    ") for note in notes)])

    __repr__ = __str__

    def _letters_of(self, terms: tuple[Term, ...]) -> str:
        used = set().union(*(re.findall(r"[a-zA-Z]\d*", term.formula) for term in terms))
        return "with " + ", ".join(f"{x}={size} ({self.letters[x]})" for x, size in self.sizes.items() if x in used)

    @property
    def peak_instant(self) -> Instant:
        """The fullest."""
        return max(self.instants, key=lambda instant: instant.bytes)

    @property
    def peak(self) -> int:
        """Bytes at the fullest instant."""
        return self.peak_instant.bytes

    @property
    def letters(self) -> dict[str, str]:
        """What each letter of the formulas stands for; a stage's number follows its letter."""
        return {letter: _MEANINGS.get(letter) or f"{_MEANINGS[letter[0]]} {letter[1:]}" for letter in self.sizes}

    def by_instant(self) -> dict[str, dict[str, int]]:
        """Bytes by kind at each instant, as `viz.instants_figure` draws them."""
        return {instant.name: dict(instant.by_kind) for instant in self.instants}

    def working(self, instant: str | None = None) -> pd.DataFrame:
        """The sum written out, a row per term, for the instant of that name, by default the fullest.

        Raises `CourseError` for a name that is none of `by_instant()`.
        """
        by_name = {one.name: one for one in self.instants}
        if instant is not None and instant not in by_name:
            raise CourseError(f"No instant is called {instant!r}; choose one of {', '.join(by_name)}.")
        chosen = by_name[instant] if instant else self.peak_instant
        rows = [(term.kind, term.name, term.formula, term.bytes, format_bytes(term.bytes)) for term in chosen.terms]
        return pd.DataFrame(rows, columns=["kind", "what", "formula", "bytes", "size"])


def _where(recipe: Recipe) -> str:
    device = {"cpu": "the CPU", "cuda": "a GPU"}[recipe.device]
    return device if recipe.ranks == 1 else f"{device}, on each of {recipe.ranks} ranks"


def _counted(recipe: Recipe, peak: Instant) -> list[str]:
    """What a reader might take for counted otherwise than it is."""
    lines = []
    if recipe.optimizer == "adamw" and recipe.device == "cuda":
        lines.append(
            "optimizer: adamw is one tensor at a time; torch.optim.AdamW(parameters) takes all at once there: 'adamw-foreach'"
        )
    if any(IN_16_BITS in term.name for term in peak.terms):
        kept = "until forward ends" if recipe.checkpointing else "until backward has used them"
        whole = ", whole on every rank (with FSDP's MixedPrecisionPolicy instead of autocast there are none)"
        lines.append(f"{IN_16_BITS}: autocast's copies, kept {kept}{whole * (recipe.zero_stage == 3)}")
    if recipe.ranks > 1 and not recipe.zero_stage:
        lines.append("ranks: each keeps everything (data parallelism); zero_stage=1, 2 or 3 would share it out")
    left_out = "the libraries' workspaces" + ", CUDA's own, fragmentation" * (recipe.device == "cuda")
    return [*lines, f"not counted: {left_out}" + ", buffers of communication" * (recipe.ranks > 1)]


@dataclass
class Book:
    """A finished log in numbers, and on demand the same log in symbols, entry for entry."""

    log: Log
    in_symbols: Callable[[], Log]

    @cached_property
    def _expressions(self) -> list:
        return [entry.exact for entry in self.in_symbols().entries]

    def instants(self) -> tuple[Instant, ...]:
        """The fullest moment of each stage that is reported, in the order of the step."""
        fullest: dict[str, tuple[int, int]] = {}
        for place, (stage, total) in enumerate(self._totals()):
            if stage != "end" and total > fullest.get(stage, (-1, 0))[0]:
                fullest[stage] = total, place
        chosen = {stage: place for stage, (_, place) in fullest.items() if stage in _reported(fullest)}
        return tuple(self._instant(stage, place) for stage, place in chosen.items())

    def terms(self, alive: tuple[int, ...]) -> list[Term]:
        """The pieces `alive`, summed by kind, and parts of the model that hold the same put together."""
        by_part: dict[tuple[str, str], list[int]] = {}
        for index in alive:
            entry = self.log.entries[index]
            by_part.setdefault((entry.kind, entry.part), []).append(index)
        alike: dict[tuple, list[str]] = {}
        for (kind, part), indices in by_part.items():
            expression = sum(self._expressions[index] for index in indices)
            size = sum(self.log.entries[index].exact for index in indices)
            alike.setdefault((kind, expression, size, _family(part)), []).append(part)
        terms = [_term(kind, expression, size, parts) for (kind, expression, size, _), parts in alike.items() if size]
        rounding = sum(self.log.entries[index].bytes for index in alive) - sum(term.bytes for term in terms)
        return [*terms, Term("temporaries", "the allocator's rounding", str(rounding), rounding)] if rounding else terms

    def _totals(self):
        total = 0
        for index, change, stage in self.log.events:
            total += change and change * self.log.entries[index].bytes
            yield stage, total

    def _instant(self, stage: str, place: int) -> Instant:
        alive: dict[int, None] = {}
        for index, change, _ in self.log.events[: place + 1]:
            if change > 0:
                alive[index] = None
            elif change:
                del alive[index]
        return Instant(stage, _by_kind(self.log.entries[index] for index in alive), tuple(alive), self)


def _by_kind(entries) -> dict[str, int]:
    sums = dict.fromkeys(KINDS, 0)
    for entry in entries:
        sums[entry.kind] += entry.bytes
    return {kind: size for kind, size in sums.items() if size}


def _reported(fullest: dict[str, tuple[int, int]]) -> set[str]:
    """Of the blocks' backward passes only the last, the first and the fullest; of everything else all."""
    blocks = [stage for stage in fullest if stage.startswith(("backward of block", "backward of stage"))]
    kept = {*blocks[:1], *blocks[-1:], *sorted(blocks, key=lambda stage: fullest[stage][0])[-1:]}
    return {stage for stage in fullest if stage not in blocks or stage in kept}


def _family(part: str) -> str:
    return part.rstrip("0123456789 ")


def _term(kind: str, expression, size: int, parts: list[str]) -> Term:
    if len(parts) == 1:
        return Term(kind, f"{kind}, {parts[0]}" if parts[0] not in ("", kind) else kind, str(expression), size)
    name, each = f"{kind}, {len(parts)} {_family(parts[0])}s", str(expression)
    return Term(kind, name, f"{len(parts)}*({each})" if " " in each else f"{len(parts)}*{each}", len(parts) * size)
