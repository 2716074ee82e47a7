"""Bets: the reader's number before the measurement, kept beside the truth.

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
FAIR = 2  # a bet is fair up to this ratio


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
        return self.guess == self.truth or (self.distance is not None and abs(self.distance) <= log10(FAIR))

    @property
    def verdict(self) -> str:
        """How far off the guess was, in words: `'too high by a factor of 1.13'`."""
        side = "too high" if self.guess > self.truth else "too low"
        if self.guess == self.truth:
            return "exactly right"
        if self.distance is None:
            return f"{with_unit(_show_number(abs(self.guess - self.truth)), self.unit)} {side}"
        ratio = min(max(self.guess, self.truth) / min(self.guess, self.truth), 1e300)
        return f"{side} by a factor of {_show_number(ratio)}" if ratio >= _NEAR else f"less than 1 % {side}"

    def in_words(self) -> tuple[str, str]:
        """Guess and truth as text, with more digits where three of them would look alike."""
        guess, truth = _show_number(self.guess), _show_number(self.truth)
        alike = guess == truth and self.guess != self.truth
        return (f"{self.guess:.7g}", f"{self.truth:.7g}") if alike else (guess, truth)

    def __str__(self):
        guess, truth = (with_unit(value, self.unit) for value in self.in_words())
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


def load_bets() -> dict[str, Bet]:
    """All bets of this reader by name, in the chapters' order; unattended, those of this process."""
    stored = BETS.load() if settings().attended else {}
    by_name = {name: entry for bets in (*stored.values(), BETS.in_memory) for name, entry in bets.items()}
    return {name: by_name[name] for name in sorted(by_name)}


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
        message.value = html.escape(f"Your bet: {with_unit(f'{typed.guess:,.15g}', typed.unit)}. {_GO_ON}")

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
    return with_unit(_show_number(entry.guess), entry.unit)


def with_unit(value: str, unit: str) -> str:
    """`'40 MiB'`, or the value alone if it has no unit."""
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
    return BETS.in_memory.get(name) or ((BETS.get(chapter) or {}).get(name) if settings().attended else None)


def _store(name: str, entry: Bet) -> None:
    """Store the bet for this process, and beside what other notebooks have stored."""
    BETS.in_memory[name] = entry
    if settings().attended:
        chapter = _chapter_of(name)
        mine = {key: entry for key, entry in BETS.in_memory.items() if key.startswith(f"{chapter}-")}
        BETS.update(chapter, lambda stored: {**mine, **(stored or {}), name: entry})
