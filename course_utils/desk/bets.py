"""Bets: the reader's number before the measurement, kept beside the truth, and all of them in one picture.

Unattended (`COURSE_READER=0`, `COURSE_STRICT=1`) each bet is the number of its cell, and nothing is kept or looked up.
"""

import html
import re
from dataclasses import dataclass, replace
from math import isfinite, log10

from course_utils.errors import CourseError
from course_utils.settings import settings
from course_utils.store import Section
from course_utils.units import three_digits

_FOLD = "<details{}><summary>Your bet and the truth</summary><p>{}</p></details>"
_GO_ON = "To continue, click the next cell."
_NEAR = 1.01  # a ratio below this is told as "within 1 %"
_FAIR = 2  # a ratio up to it lies in the picture's band
_EDGE = 6.0  # the picture's axis ends at 10 to this power


@dataclass(frozen=True)
class Bet:
    """A guess in `unit`, the number its cell gave, and the truth once there is one."""

    guess: float
    cell: float
    unit: str = ""
    truth: float | None = None

    def __post_init__(self):
        numbers = [self.guess, self.cell] + ([] if self.truth is None else [self.truth])
        if not (isinstance(self.unit, str) and all(type(x) in (int, float) and isfinite(x) for x in numbers)):
            raise ValueError("a bet holds finite numbers and a unit")

    @property
    def distance(self) -> float | None:
        """log10(guess / truth): above 0 where the guess was too high; None if one of them is not above 0."""
        return log10(self.guess) - log10(self.truth) if min(self.guess, self.truth) > 0 else None

    @property
    def fair(self) -> bool:
        """Whether guess and truth are within a factor of 2 of each other; False where that means nothing."""
        return self.guess == self.truth or (self.distance is not None and abs(self.distance) <= log10(_FAIR))

    @property
    def verdict(self) -> str:
        """How far off the guess was, in words: `'too high by a factor of 1.13'`."""
        side = "too high" if self.guess > self.truth else "too low"
        if self.guess == self.truth:
            return "exactly right"
        if self.distance is None:
            return f"{_with_unit(_show_number(abs(self.guess - self.truth)), self.unit)} {side}"
        ratio = min(max(self.guess, self.truth) / min(self.guess, self.truth), 1e300)
        return f"{side} by a factor of {_show_number(ratio)}" if ratio >= _NEAR else f"less than 1 % {side}"

    def in_words(self) -> tuple[str, str]:
        """Guess and truth as text, with more digits where three of them would look alike."""
        guess, truth = _show_number(self.guess), _show_number(self.truth)
        alike = guess == truth and self.guess != self.truth
        return (f"{self.guess:.7g}", f"{self.truth:.7g}") if alike else (guess, truth)

    def __str__(self):
        guess, truth = (_with_unit(value, self.unit) for value in self.in_words())
        return f"You bet {guess}; it is {truth}: {self.verdict}."


BETS = Section("bets", lambda bets: {name: Bet(**fields) for name, fields in bets.items()})
"""The stored bets by their chapter's number; those of this process by their names."""


def bet(name: str, default: float, unit: str = "", question: str = "") -> float:
    """Record the bet called `name` ("07-peak"), ask for it where the notebook has widgets, and return the number.

    `default` is the number in the cell. What a reader types in the box counts until its truth is known, and stays from then
    on; if the number in the cell changes, a new bet begins.

    Raises `CourseError` on a name that does not begin with a chapter's number, and on a bet that is no finite number.

    >>> bet("07-example", 40, "MiB", "What is the peak?")
    What is the peak? Your bet: 40 MiB.
    40.0
    """
    number, before = _to_finite(default, name), _look_up(name)
    same = before is not None and before.cell == number
    entry = replace(before, unit=unit) if same else Bet(number, number, unit)
    _store(name, entry)
    if settings().attended and has_kernel():
        _ask(name, entry, question)
    else:
        print(_say_bet(entry, question))
    return entry.guess


def settle(name: str, truth: float) -> None:
    """Show the bet called `name` beside the truth, and keep both; raises `CourseError` if nothing was bet so.

    >>> guess = bet("07-example", 40, "MiB")
    Your bet: 40 MiB.
    >>> settle("07-example", 50)
    You bet 40 MiB; it is 50 MiB: too low by a factor of 1.25.
    """
    from IPython.display import display

    before = _look_up(name)
    if before is None:
        raise CourseError(f"There is no bet {name!r} yet; first run the cell with bet({name!r}, …).")
    entry = replace(before, truth=_to_finite(truth, name))
    _store(name, entry)
    if has_kernel():
        fold = _FOLD.format(" open" if settings().attended else "", html.escape(str(entry)))
        display({"text/html": fold, "text/plain": str(entry)}, raw=True)
    else:
        print(entry)


def picture() -> None:
    """Show all settled bets of this reader in one figure; unattended, those that this notebook settled."""
    from course_utils import viz

    settled = {name: entry for name, entry in load_bets().items() if entry.truth is not None}
    if settled:
        viz.show(*figure_of(settled))
    else:
        print("No bet is settled yet; run the chapter from its first cell.")


def load_bets() -> dict[str, Bet]:
    """All bets of this reader by name, in the chapters' order; unattended, those of this process."""
    stored = BETS.load() if settings().attended else {}
    by_name = {name: entry for bets in (*stored.values(), BETS.here) for name, entry in bets.items()}
    return {name: by_name[name] for name in sorted(by_name)}


def figure_of(settled: dict[str, Bet]) -> tuple:
    """A row for each bet with its distance from the truth on a logarithmic axis, and what is seen, in words."""
    from course_utils.viz.parts import subplots
    from course_utils.viz.style import COLORS, MARKS, SERIES, text_color

    chapters = sorted({name.partition("-")[0] for name in settled})
    labels = [
        f"{name}: bet {_with_unit(', is '.join(entry.in_words()), entry.unit)}" for name, entry in settled.items()
    ]
    figure, axes = subplots(figsize=(7.6, 1.3 + 0.36 * len(settled)), layout="constrained")
    axes.axvspan(-log10(_FAIR), log10(_FAIR), color=COLORS["grid"], alpha=0.5, linewidth=0)
    axes.axvline(0, color=COLORS["ink"], linewidth=1)
    drawn = [log10(_FAIR)]
    for row, (name, entry) in enumerate(settled.items()):
        style = chapters.index(name.partition("-")[0]) % len(SERIES)
        if entry.distance is None:
            axes.text(
                0.02, row, entry.verdict, va="center", fontsize=9, color=text_color("not attributed"), parse_math=False
            )
            continue
        place = max(-_EDGE, min(_EDGE, entry.distance))
        axes.plot([0, place], [row, row], color=COLORS[SERIES[style]])
        axes.plot(place, row, MARKS[style], color=COLORS[SERIES[style]], markersize=7)
        drawn.append(abs(place))
    ticks = (2, 5, 10, 20) if max(drawn) < 1.5 else (10, 1_000, 100_000)
    ticks = [tick for tick in ticks if log10(tick) <= max(drawn)]
    axes.set_xticks([*(-log10(tick) for tick in ticks), 0, *map(log10, ticks)])
    axes.set_xticklabels([*(f"÷ {tick:,}" for tick in ticks), "exact", *(f"× {tick:,}" for tick in ticks)])
    axes.set_yticks(range(len(settled)), labels, fontsize=9, parse_math=False)
    axes.set(xlim=(-1.12 * max(drawn), 1.12 * max(drawn)), ylim=(len(settled) - 0.5, -0.5))
    axes.set_xlabel("your bet, as a multiple of the truth")
    axes.grid(visible=False, axis="y")
    fair = sum(entry.fair for entry in settled.values())
    title = f"{fair} of your {len(settled)} bets came within a factor of {_FAIR} of the truth"
    if len(settled) == 1:
        title = f"Your bet was {entry.verdict}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, parse_math=False)
    description = "; ".join(f"{label}, {entry.verdict}" for label, entry in zip(labels, settled.values(), strict=True))
    return figure, f"Each bet as a multiple of the truth, on a logarithmic axis: {description}."


def _ask(name: str, entry: Bet, question: str) -> None:
    """The question, a box that holds the bet, and what stands; what is typed is kept at once.

    A box of text, since a browser's box of a number drops a comma, and makes 405 of 40,5.
    """
    from ipywidgets import HTML, Text

    from course_utils.viz.display import show_controls

    start = f"{entry.guess:.4g}" if entry.guess == entry.cell and entry.guess % 1 else f"{entry.guess:.15g}"
    what = f"your bet ({entry.unit})" if entry.unit else "your bet"
    box = Text(start, description=what, disabled=entry.truth is not None)
    message = HTML(html.escape(_say_what_counts(name, entry)))

    def take(change: dict) -> None:
        stored = _look_up(name) or entry
        if stored.truth is not None:
            box.value, message.value = f"{stored.guess:.15g}", html.escape(_say_what_counts(name, stored))
            return
        try:
            typed = replace(stored, guess=_to_finite(change["new"].strip().removesuffix(entry.unit), name))
        except CourseError:
            why = f"{change['new']!r} is not a number; write it like 40.5, without commas."
            message.value = html.escape(f"{why} Until then, {_say_guess(stored)} is used.")
            return
        _store(name, typed)
        # In all its digits: what was typed into the number that stood there is seen to be another.
        message.value = html.escape(f"Your bet: {_with_unit(f'{typed.guess:,.15g}', typed.unit)}. {_GO_ON}")

    box.observe(take, names="value")
    show_controls({"question": HTML(html.escape(question)), "box": box, "said": message}, _say_bet(entry, question))
    box.continuous_update = True  # a number counts as soon as it is typed, with Enter or without


def _say_what_counts(name: str, entry: Bet) -> str:
    """What stands under the box: which number counts, and how to go on, because Shift+Enter in a box does not."""
    if entry.truth is not None:
        change = f"change the number after {name!r} in the cell's code and run it"
        return f"{entry} This bet is final. To bet again, {change}."
    standing = f"Until you enter a bet, {_say_guess(entry)} is used."
    return f"{standing if entry.guess == entry.cell else _say_bet(entry)} {_GO_ON}"


def _say_bet(entry: Bet, question: str = "") -> str:
    return f"{question} Your bet: {_say_guess(entry)}.".strip()


def _say_guess(entry: Bet) -> str:
    return _with_unit(_show_number(entry.guess), entry.unit)


def _with_unit(value: str, unit: str) -> str:
    return f"{value} {unit}".strip()


def _show_number(value: float) -> str:
    if value == int(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return three_digits(value) if 1e-4 <= abs(value) < 1e15 else f"{value:.3g}"


def _to_finite(value: object, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not isfinite(number):
        raise CourseError(f"The bet {name!r} must be a number, not {value!r}; give one, such as 50.")
    return number


def _chapter_of(name: str) -> str:
    if not (isinstance(name, str) and re.fullmatch(r"\d\d[a-z]?-[\w-]+", name)):
        raise CourseError(
            f"{name!r} is not a valid name for a bet; begin with the chapter's number, such as '07-peak'."
        )
    return name.partition("-")[0]


def has_kernel() -> bool:
    """Whether this is a notebook, which shows more than text."""
    from IPython import get_ipython

    return hasattr(get_ipython(), "kernel")


def _look_up(name: str) -> Bet | None:
    chapter = _chapter_of(name)
    return BETS.here.get(name) or ((BETS.get(chapter) or {}).get(name) if settings().attended else None)


def _store(name: str, entry: Bet) -> None:
    """Store the bet for this process, and beside what other notebooks have stored."""
    BETS.here[name] = entry
    if settings().attended:
        chapter = _chapter_of(name)
        mine = {key: entry for key, entry in BETS.here.items() if key.startswith(f"{chapter}-")}
        BETS.update(chapter, lambda stored: {**mine, **(stored or {}), name: entry})
