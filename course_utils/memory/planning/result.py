"""The answer to *does it fit?*, and its text. This file imports no torch."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from math import isnan
from textwrap import wrap
from typing import TYPE_CHECKING

from course_utils.hardware import OFFERED_SHARE
from course_utils.memory.planning.changes import level_of
from course_utils.memory.planning.emit import form_for
from course_utils.memory.planning.need import DOES_NOT_FIT, FITS, TIGHT, Need, name_cards
from course_utils.memory.step.recipe import Recipe, plain_recipe
from course_utils.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from course_utils.memory.formulas.estimate import Estimate
    from course_utils.memory.formulas.prediction import Trial
    from course_utils.memory.planning.changes import Change

# The width in characters of the text beside a row's numbers.
_TEXT_WIDTH = 68
_NOTE_ON_OWN_LOOP = " 'own loop': you write the training loop yourself; neither has a setting for it."
LARGEST_BATCH, LONGEST_SEQUENCE, FEWEST_CARDS = "largest batch", "longest sequence", "fewest cards by ZeRO-3"
"""The keys of `Plan.largest`."""


@dataclass(frozen=True)
class Row:
    """One change of the recipe, or several together, and what the step takes with them."""

    names: tuple[str, ...]
    level: int
    costs: str
    peak: int
    need: Need
    verdict: str
    saves: int  # bytes by which the peak falls
    seconds: float  # the difference from the step without the changes; NaN without a machine
    sent: int  # the difference in bytes that a rank sends
    basis: str  # what the figures come from: a dry run, or formulas
    recipe: Recipe = field(repr=False)

    @property
    def headline(self) -> str:
        """A sentence that the step fits with these changes."""
        return f"Fits: {' + '.join(self.names)}."

    @classmethod
    def from_trial(
        cls, plan: "Plan", changes: "Sequence[Change]", trial: "Trial", remarks: Iterable[str] = ()
    ) -> "Row":
        """The row of `changes` in `plan`. `trial` is the step with them; `remarks` are appended to their costs."""
        need = Need.from_log(trial.log, trial.recipe.device)
        return cls(
            names=tuple(change.name for change in changes),
            level=level_of(changes),
            costs="; ".join(dict.fromkeys([*(change.costs for change in changes), *remarks])),
            peak=trial.log.peak,
            need=need,
            verdict=need.verdict(plan.memory),
            saves=plan.trial.log.peak - trial.log.peak,
            seconds=trial.seconds - plan.trial.seconds,
            sent=trial.sent - plan.trial.sent,
            basis=trial.basis,
            recipe=trial.recipe,
        )

    def json(self) -> dict:
        """The fields as plain values, the recipe by what differs from its defaults; seconds are None without a machine."""
        values = {**vars(self), "seconds": _spell_for_json(self.seconds), "recipe": plain_recipe(self.recipe)}
        return {"how" if name == "basis" else name: value for name, value in values.items()}


@dataclass(frozen=True)
class Plan:
    """The answer to *does it fit?*: the bytes needed on a card of `memory` bytes, the verdict, and what would help."""

    model: str
    recipe: Recipe
    memory: int
    estimate: "Estimate" = field(repr=False)
    trial: "Trial" = field(repr=False)
    need: Need
    verdict: str
    rows: tuple[Row, ...] = ()  # changes that make it fit, the least disturbing first; if none, those that help most
    useless: tuple[str, ...] = ()  # changes that alone would not lower the peak
    # The largest batch and longest sequence that fit (0 if none does, None if it does not matter), and the fewest cards (None if
    # more are needed than were tried).
    largest: dict[str, int | None] = field(default_factory=dict)
    unrated: tuple[str, ...] = ()  # changes for whose matrix products the machine has no rate
    why_no_seconds: str = ""  # if a machine was named that has no rate for the step
    most_cards: int = 0  # the largest number of cards that was tried
    nearest: Row | None = None  # a tight row that disturbs less than all that fit
    open_ended: tuple[str, ...] = ()  # keys of `largest` whose values may be larger

    @property
    def headline(self) -> str:
        """A sentence with the verdict and the bytes that are needed."""
        return f"{self.model}: {self.verdict} in {format_bytes(self.memory)}. It needs {self.need}."

    def __str__(self):
        peak = self.estimate.peak_instant
        lines = [
            self.headline,
            f"Settings: {', '.join(_list_fields(self.recipe))}.",
            *([f"The loss is that of TRL {version('trl')}."] if self.recipe.trl_loss else []),
            *(f"{remark[0].upper()}{remark[1:]}." for remark in self.estimate.finder.source.remarks),
            f"The peak is in {peak.name}{f', in {peak.module}' if peak.module else ''}: {format_bytes(peak.bytes)}.",
            *(f"  {format_bytes(term.bytes):>9s}  {term.name}" for term in peak.terms_in_bytes[:5]),
        ]
        return "\n".join([*lines, *self._lines_on_card(), *self._lines_on_rows(), *self._lines_on_sizes()])

    __repr__ = __str__

    def _lines_on_card(self) -> Iterator[str]:
        if self.recipe.device == "cuda":
            reserved = format_bytes(self.trial.log.reserved)
            width = f"The upper estimate is {self.need.high / self.need.low - 1:.0%} above the lower"
            yield f"The allocator reserves {reserved}. {width}. Known from {self.estimate.basis}."
            cards = {
                verdict: name_cards(self.need.card_names(verdict), self.recipe) or "none" for verdict in (FITS, TIGHT)
            }
            yield f"Cards on which it fits: {cards[FITS]}; tight: {cards[TIGHT]}."
            yield self._remark_on_label()
        else:
            yield f"Known from {self.estimate.basis}."
        if self.why_no_seconds:
            yield self.why_no_seconds
        if not isnan(self.trial.seconds):
            yield f"A step takes at least {format_seconds(self.trial.seconds)} by the card's data sheet."

    def _lines_on_rows(self) -> Iterator[str]:
        any_fits = any(row.verdict == FITS for row in self.rows)
        if self.verdict != FITS and not any_fits:
            yield "\nNothing was found that is sure to fit."
        if self.rows:
            title = "Alone these lower the peak most:"
            if any_fits:
                title = "What would make it fit, the least intrusive first:"
            yield "\n".join(["", title, *table(self.rows), ""])
            note = _NOTE_ON_OWN_LOOP if any(form_for(row.recipe) == "own loop" for row in self.rows) else ""
            if any(row.verdict != DOES_NOT_FIT for row in self.rows):
                yield f"To train by row N: --row N --emit train, or trl.{note}"
            yield "Not every combination was tried: others may fit too."
        if self.nearest:
            gentler = "Of what disturbs less, nothing was found that is sure to fit. " if any_fits else ""
            yield f"\n{gentler}Nearest: {' + '.join(self.nearest.names)}. It needs {self.nearest.need}."
        if self.useless:
            yield f"\nAlone these would not lower the peak: {', '.join(self.useless)}."
        if self.unrated:
            yield f"\nLeft out, since the card has no rate for their matrix products: {', '.join(self.unrated)}."

    def _lines_on_sizes(self) -> Iterator[str]:
        none = "none is sure to fit" if self.verdict == TIGHT else "none fits"
        sizes = {name: f"{value:,}" if value else none for name, value in self.largest.items() if value is not None}
        sizes |= {name: f"{sizes[name]} or more" for name in self.open_ended}
        if sizes:
            yield "\n" + "; ".join(f"{name}: {value}" for name, value in sizes.items())
        if self.largest.get(FEWEST_CARDS, 1) is None:
            yield f"\nZeRO-3 alone would not make it fit, on up to {self.most_cards} cards."

    def _remark_on_label(self) -> str:
        """A remark that CUDA offers less memory than the label says, and on which cards the verdict is then worse."""
        verdicts = []
        for verdict in (TIGHT, DOES_NOT_FIT):
            worse = [
                card
                for card in self.need.card_names(verdict, OFFERED_SHARE)
                if card not in self.need.card_names(verdict)
            ]
            if worse:
                verdicts.append(f"{verdict} on {name_cards(worse, self.recipe)}")
        advice = "CUDA offers 1 to 8 % less than a label says; torch.cuda.mem_get_info() gives the exact figure for --memory."
        return f"{advice} With 8 % less: {'; '.join(verdicts)}." if verdicts else advice

    def json(self) -> dict:
        """Figures and rows as plain values, for JSON; seconds are None without a machine."""
        instants = {}
        for instant in self.estimate.instants:
            terms = [{"name": term.name, "bytes": term.bytes} for term in instant.terms_in_bytes]
            instants[instant.name] = {"bytes": instant.bytes, "by_kind": instant.by_kind, "terms": terms}
        return {
            "model": self.model,
            "memory": self.memory,
            "verdict": self.verdict,
            "need": list(self.need),
            "cards": {verdict: list(self.need.card_names(verdict)) for verdict in (FITS, TIGHT)},
            "reserved": self.trial.log.reserved,
            "host": self.trial.host.peak,
            "seconds": _spell_for_json(self.trial.seconds),
            "sent": self.trial.sent,
            "how": self.estimate.basis,
            "recipe": plain_recipe(self.recipe),
            "instants": instants,
            "rows": [row.json() for row in self.rows],
            "nearest": self.nearest and self.nearest.json(),
            "no help": list(self.useless),
            "no rate": list(self.unrated),
            "largest": self.largest,
            "or more": list(self.open_ended),
        }


def _spell_for_json(seconds: float) -> float | None:
    return None if isnan(seconds) else seconds  # JSON has no NaN


def _list_fields(recipe: Recipe) -> Iterator[str]:
    """Texts of the most important fields and of all that differ from their defaults; the device is said elsewhere."""
    for name in dict.fromkeys(("batch", "sequence", "precision", "optimizer", *plain_recipe(recipe))):
        value = getattr(recipe, name)
        if name != "device" and (recipe.quantized or name not in ("double_quantization", "upcast")):
            yield name if value is True else f"{name}={getattr(value, '__name__', value)}"


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Rows as lines of text: the columns with any numbers, and beside them the changes and their costs."""

    def signed(size: int) -> str:
        return f"{'-' if size < 0 else '+'}{format_bytes(abs(size))}"

    def longer(seconds: float) -> str:
        if isnan(seconds):
            return ""
        return f"{'+' if seconds > 0 else ''}{format_seconds(seconds)}" if seconds else "none"

    columns = {
        "row": [str(number) for number in range(1, len(rows) + 1)],
        "peak": [format_bytes(row.peak) for row in rows],
        "change": [signed(-row.saves) for row in rows],
        "seconds": [longer(row.seconds) for row in rows],
        "sent": [signed(row.sent) if row.sent else "" for row in rows],
        "train by": [form_for(row.recipe) for row in rows],
    }
    widths = {name: max(map(len, (name, *cells))) for name, cells in columns.items() if any(cells)}

    def line(cells: Iterable[str]) -> str:
        formats = (f"{'<' if name == 'train by' else '>'}{width}s" for name, width in widths.items())
        return f"  {'  '.join(map(format, cells, formats))}  "

    head = line(widths)
    yield f"{head}what to change, and its costs"
    for index, row in enumerate(rows):
        costs = wrap(row.costs, _TEXT_WIDTH, initial_indent="  ", subsequent_indent="  ")
        first, *rest = [*wrap(" + ".join(row.names), _TEXT_WIDTH), *costs]
        yield line(columns[name][index] for name in widths) + first
        yield from (" " * len(head) + text for text in rest)
