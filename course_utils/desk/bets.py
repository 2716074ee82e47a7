"""Bets: the reader's number before the measurement, stored with the truth after it.

Unattended (`COURSE_READER=0`, `COURSE_STRICT=1`) each bet is the number of its cell, and nothing is stored or looked up.
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
# A smaller factor is told as "less than 1 %".
_SMALLEST_FACTOR = 1.01
FAIR = 2
"""A bet is fair up to this factor."""


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
        return f"{side} by a factor of {_show_number(ratio)}" if ratio >= _SMALLEST_FACTOR else f"less than 1 % {side}"

    def in_words(self) -> tuple[str, str]:
        """Guess and truth as text, with more digits if three would look alike."""
        guess, truth = _show_number(self.guess), _show_number(self.truth)
        look_alike = guess == truth and self.guess != self.truth
        return (f"{self.guess:.7g}", f"{self.truth:.7g}") if look_alike else (guess, truth)

    def __str__(self):
        guess, truth = (with_unit(value, self.unit) for value in self.in_words())
        return f"You bet {guess}; it is {truth}: {self.verdict}."


BETS = Section("bets", lambda bets: {name: Bet(**fields) for name, fields in bets.items()})
"""The bets: stored by the chapter's number; those of this process, in `in_memory`, by their names."""


def bet(name: str, default: float, unit: str = "", question: str = "") -> float:
    """Record the bet called `name` ("07-peak"), ask for it where the notebook has widgets, and return the number.

    `default` is the number in the cell. What a reader types in the box counts until its truth is known, and stays from then
    on; if the number in the cell changes, a new bet begins.

    Raises `CourseError` on a name that does not begin with a chapter's number, and on a bet that is no finite number.

    >>> bet("07-example", 40, "MiB", "What is the peak?")
    What is the peak? Your bet: 40 MiB.
    40.0
    """
    number = _to_finite(default, name)
    previous = _look_up(name)
    is_unchanged = previous is not None and previous.cell == number
    wager = replace(previous, unit=unit) if is_unchanged else Bet(number, number, unit)
    _store(name, wager)
    if settings().attended and has_kernel():
        _ask(name, wager, question)
    else:
        print(_say_bet(wager, question))
    return wager.guess


def settle(name: str, truth: float) -> None:
    """Show the bet called `name` with the truth, and store both; raises `CourseError` if there is no such bet.

    >>> guess = bet("07-example", 40, "MiB")
    Your bet: 40 MiB.
    >>> settle("07-example", 50)
    You bet 40 MiB; it is 50 MiB: too low by a factor of 1.25.
    """
    from IPython.display import display

    previous = _look_up(name)
    if previous is None:
        raise CourseError(f"There is no bet {name!r} yet; first run the cell with bet({name!r}, …).")
    wager = replace(previous, truth=_to_finite(truth, name))
    _store(name, wager)
    if has_kernel():
        fold = _FOLD.format(" open" if settings().attended else "", html.escape(str(wager)))
        display({"text/html": fold, "text/plain": str(wager)}, raw=True)
    else:
        print(wager)


def load_bets() -> dict[str, Bet]:
    """All bets of this reader by name, in the chapters' order; unattended, those of this process."""
    by_chapter = BETS.load() if settings().attended else {}
    by_name = {name: wager for bets in (*by_chapter.values(), BETS.in_memory) for name, wager in bets.items()}
    return {name: by_name[name] for name in sorted(by_name)}


def _ask(name: str, wager: Bet, question: str) -> None:
    """Show the question, a box with the bet, and a message; what is typed is stored at once.

    The box is one of text, because a browser's number box drops a comma, and makes 405 of 40,5.
    """
    from ipywidgets import HTML, Text

    from course_utils.viz.display import show_controls

    start = f"{wager.guess:.4g}" if wager.guess == wager.cell and wager.guess % 1 else f"{wager.guess:.15g}"
    description = f"your bet ({wager.unit})" if wager.unit else "your bet"
    box = Text(start, description=description, disabled=wager.truth is not None)
    message = HTML(html.escape(_say_what_counts(name, wager)))

    def take(change: dict) -> None:
        current = _look_up(name) or wager
        typed, text = _read_box(name, current, change["new"])
        if current.truth is not None:
            box.value = f"{current.guess:.15g}"
        message.value = html.escape(text)
        if typed != current:
            _store(name, typed)

    box.observe(take, names="value")
    show_controls({"question": HTML(html.escape(question)), "box": box, "message": message}, _say_bet(wager, question))
    box.continuous_update = True  # a number counts as soon as it is typed, with Enter or without


def _read_box(name: str, wager: Bet, text: str) -> tuple[Bet, str]:
    """The bet after `text` is typed into its box, and the message on it."""
    if wager.truth is not None:
        return wager, _say_what_counts(name, wager)
    try:
        typed = replace(wager, guess=_to_finite(text.strip().removesuffix(wager.unit), name))
    except CourseError:
        reason = f"{text!r} is not a number; write it like 40.5, without commas."
        return wager, f"{reason} Until then, {_say_guess(wager)} is used."
    # With all digits, so that a reader who typed into the number that was there sees it.
    return typed, f"Your bet: {with_unit(f'{typed.guess:,.15g}', typed.unit)}. {_GO_ON}"


def _say_what_counts(name: str, wager: Bet) -> str:
    """The message under the box: which number counts, and how to go on, because Shift+Enter in a box does not."""
    if wager.truth is not None:
        change = f"change the number after {name!r} in the cell's code and run it"
        return f"{wager} This bet is final. To bet again, {change}."
    standing = f"Until you enter a bet, {_say_guess(wager)} is used."
    return f"{standing if wager.guess == wager.cell else _say_bet(wager)} {_GO_ON}"


def _say_bet(wager: Bet, question: str = "") -> str:
    return f"{question} Your bet: {_say_guess(wager)}.".strip()


def _say_guess(wager: Bet) -> str:
    return with_unit(_show_number(wager.guess), wager.unit)


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


def chapter_number(name: str) -> str:
    """The number in the name of a bet or a notebook: `05b` of `05b-best` and of `05b_choosing`."""
    return re.split("[-_]", name)[0]


def has_kernel() -> bool:
    """Whether this process is a notebook's kernel, so that it can show more than text."""
    from IPython import get_ipython

    return hasattr(get_ipython(), "kernel")


def _look_up(name: str) -> Bet | None:
    if not (isinstance(name, str) and re.fullmatch(r"\d\d[a-z]?-[\w-]+", name)):
        raise CourseError(
            f"{name!r} is not a valid name for a bet; begin with the chapter's number, such as '07-peak'."
        )
    if name in BETS.in_memory or not settings().attended:
        return BETS.in_memory.get(name)
    return (BETS.get(chapter_number(name)) or {}).get(name)


def _store(name: str, wager: Bet) -> None:
    """Store the bet in this process and, if attended, in the reader's home, beside those of other notebooks."""
    BETS.in_memory[name] = wager
    if settings().attended:
        chapter = chapter_number(name)
        own_bets = {key: bet for key, bet in BETS.in_memory.items() if chapter_number(key) == chapter}
        BETS.update(chapter, lambda bets: {**own_bets, **(bets or {}), name: wager})
