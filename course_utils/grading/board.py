"""How far a learner is in all exercise sets: as a table in a terminal, and with bars in a notebook."""

from dataclasses import dataclass
from functools import cached_property

from course_utils.files import exercises_of
from course_utils.grading.loading import load_set, set_names
from course_utils.grading.progress import Attempts, recall
from course_utils.units import bar

NOTHING_PASSED = "No question passed yet"
"""How the table of a beginner starts, and so every table that the repository stores."""
# Of a bar in a terminal: its width, and its signs for full and empty.
_BAR = 20, "█·"
_BEGIN = "Begin where you like; the first exercises show how they work."


@dataclass(frozen=True)
class Standing:
    """One set: questions passed, the best points, and as `next` the first question that is left (`q2 · Title`).

    `seen` counts those not passed whose solution was seen; they are not left either.
    """

    name: str
    passed: int
    questions: int
    points: float
    max_points: float
    next: str
    seen: int = 0

    @property
    def share(self) -> float:
        """The share of its questions that are passed."""
        return self.passed / self.questions


@dataclass(frozen=True, repr=False)
class Board:
    """All sets in their order. Text and HTML say the same; each bar is beside its number."""

    standings: tuple[Standing, ...]

    @cached_property
    def head(self) -> str:
        """All sets together, in a sentence."""
        keys = "passed", "questions", "points", "max_points", "seen"
        passed, questions, points, max_points, seen = (sum(getattr(row, key) for row in self.standings) for key in keys)
        if not passed and not seen:
            return f"{NOTHING_PASSED}, of {questions} in {len(self.standings)} sets. {_BEGIN}"
        seen_note = f" Solutions seen instead: {seen}." if seen else ""
        return f"{passed} of {questions} questions passed, {points:g} of {max_points:g} points.{seen_note}"

    @cached_property
    def _todo(self) -> Standing | None:
        """The set to go on with: one that is begun, else the first one that is not."""
        todo = [row for row in self.standings if row.next]
        return min(todo, key=lambda row: (not (row.passed or row.seen), row.name), default=None)

    @property
    def next(self) -> str:
        """The question to go on with, or that there is none."""
        or_seen = " or its solution seen" if any(row.seen for row in self.standings) else ""
        return self._todo.next if self._todo else f"nothing is left; every question is passed{or_seen}"

    @property
    def exercises(self) -> str:
        """The notebook of that question, from the checkout's folder on; empty where none is left."""
        return exercises_of(self._todo.name) if self._todo else ""

    @property
    def bars(self) -> list[str]:
        """A line for each set."""
        width = max(len(row.name) for row in self.standings)
        lines = []
        for row in self.standings:
            count = f"{row.passed:2} of {row.questions:2} questions  {row.points:4g} of {row.max_points:2g} points"
            seen = f"  {row.seen} seen" if row.seen else ""
            lines.append(f"{row.name:{width}}  {bar(row.share, *_BAR)}  {count}{seen}")
        return lines

    def __str__(self):
        location = self.exercises and f", in {self.exercises}"
        return "\n".join([self.head, "", *self.bars, "", f"Next: {self.next}{location}."])

    __repr__ = __str__

    def _repr_html_(self):
        from course_utils.grading.rendering import render

        return render("progress.html.j2", board=self)


def my_progress() -> Board:
    """The board of the learner at the settings' home, over all released sets."""
    return Board(tuple(map(_standing, set_names())))


def _standing(name: str) -> Standing:
    entries = load_set(name)["questions"]
    records = recall(name)
    attempts = {entry["id"]: records.get(entry["id"], Attempts()) for entry in entries}
    left = [entry for entry in entries if not (attempts[entry["id"]].passed or attempts[entry["id"]].seen)]
    seen = sum(record.only_seen for record in attempts.values())
    return Standing(
        name,
        passed=len(entries) - len(left) - seen,
        questions=len(entries),
        points=sum(min(attempts[entry["id"]].points, entry["points"]) for entry in entries),
        max_points=sum(entry["points"] for entry in entries),
        next=f"{left[0]['id']} · {left[0]['title']}" if left else "",
        seen=seen,
    )
