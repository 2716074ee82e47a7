"""What a question is: how its answer is run, what is expected of it, and which mistakes are known."""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from course_utils.errors import CourseError

Values = dict[str, object]
"""Names to numbers, strings, truth values, None, tensors, and lists and dicts of these: what may cross to the judge."""

EXERCISE_LINE = re.compile(r"^\s*# EXERCISE (\w+)\s*$", re.MULTILINE)
"""The line that says which question a cell answers; `course_staff/grading/submission.py` also takes it in other spellings."""
PUBLIC_SEED = 0
LEVELS = {1: "easy", 2: "medium", 3: "hard"}
"""The author's word for each difficulty."""
CASE_SECONDS = 20.0
"""The time limit of one case, where a question has none of its own."""
HIGHER_IS_BETTER = ("accuracy",)
"""Figures of which more is better; all others are costs."""
UNTOUCHED = "write your answer here"
"""What a stub raises as `NotImplementedError`, and how an answer that was never written is known."""


@dataclass(frozen=True)
class Case:
    """One set of inputs to an answer: plain values and tensors, by name."""

    name: str
    inputs: dict


@dataclass(frozen=True)
class Tolerance:
    """Two numbers a (expected) and b agree when |a − b| ≤ `absolute` + `relative`·|a|."""

    relative: float = 1e-9
    absolute: float = 1e-12


@dataclass(frozen=True)
class Mistake:
    """A known wrong answer: the solution with `patches`, pairs of a text that occurs once and its replacement.

    `sentence` tells the learner what is wrong; `hint` is the index of the hint that follows it.
    """

    name: str
    sentence: str
    patches: tuple[tuple[str, str], ...]
    hint: int = 0


@dataclass(frozen=True)
class Variant:
    """A right answer in another style: the whole source of the answer's cell."""

    name: str
    source: str


@dataclass(frozen=True)
class Question:
    """One question. Raises `CourseError` for one that could not be asked.

    An answer runs in the learner's process, `expected` in the judge's, which knows what is right.
    """

    id: str
    title: str
    points: int
    difficulty: int  # 1 to 3
    minutes: int
    hints: tuple[str, str, str]  # a nudge, an outline and near-code
    answer: str  # the name that the learner's cell defines
    run: Callable[[object, dict], Values]  # `run(answer, inputs)`, in the learner's process
    expected: Callable[[dict], Values]  # `expected(inputs)`, the values that are right
    public: Callable[[random.Random], list[Case]]  # draws the cases
    hidden: Callable[[random.Random], list[Case]] | None = None
    tolerance: Tolerance = Tolerance()
    counted: tuple[str, ...] = ()  # names of values that only the learner's process can know
    mistakes: tuple[Mistake, ...] = ()
    variants: tuple[Variant, ...] = ()
    parts: bool = False  # whether each case earns its share of the points; else one failed case costs them all
    reveal: bool = True  # whether a failed check may show the right value
    recognize: Callable[[Values, Values], str | None] | None = None  # names a mistake by expected and got values
    # Dotted names that cannot be used while the answer runs (see `foreign`), nor by `run`; a learner is not told of those with a
    # part that begins with `_`.
    replaces: tuple[str, ...] = ()
    ranks: bool = False  # whether `run` launches some
    # The share of the points, by the expected values of all cases and which of them passed, where cases do not count alike.
    share: Callable[[Sequence[Values], Sequence[bool]], float] | None = None
    seconds: float | None = None  # the time limit of a case, where `CASE_SECONDS` does not do
    figures: Callable[[Values, Values], dict[str, float]] | None = None  # numbers by name, for a leaderboard

    def __post_init__(self):
        if not self.answer.isidentifier():
            raise CourseError(f"{self.id}: {self.answer!r} is no name that a cell can define.")
        if self.points < 1 or self.minutes < 1 or self.difficulty not in tuple(LEVELS):
            raise CourseError(f"{self.id}: give points and minutes from 1 on, and a difficulty of 1, 2 or 3.")
        if len(self.hints) != 3 or not all(self.hints):
            raise CourseError(f"{self.id}: give three hints, a nudge, an outline and near-code.")

    def cases(self, seed: int | None = None) -> list[Case]:
        """The public cases, the same for everybody; with `seed` the hidden ones drawn from it."""
        if seed is None:
            return self.public(random.Random(PUBLIC_SEED))
        return self.hidden(random.Random(seed)) if self.hidden else []

    def case_seconds(self, seconds: float = CASE_SECONDS) -> float:
        """The time limit of a case in seconds: `seconds`, or the question's own, scaled by as much as `seconds` is."""
        return seconds if self.seconds is None else self.seconds * seconds / CASE_SECONDS

    def with_expected_for(self, cases: Sequence[Case]) -> "Question":
        """The question with the expected values of `cases` computed now; it has none of any other case."""
        expected = {id(case.inputs): self.expected(case.inputs) for case in cases}
        return replace(self, expected=lambda inputs: expected[id(inputs)])

    def for_learners(self) -> "Question":
        """The question without expected values, hints and mistakes, for the process that runs the answer."""
        names = ("id", "points", "difficulty", "minutes", "answer", "run", "replaces", "ranks")
        values = {name: getattr(self, name) for name in names}
        return Question(**values, title="", hints=("-", "-", "-"), expected=_refuse, public=_refuse)


def _refuse(*_):
    raise CourseError("Only the judge knows this.")
