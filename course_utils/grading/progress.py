"""A learner's progress, stored under the settings' home, outside the repository."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

from course_utils.store import Section


@dataclass(frozen=True)
class Attempts:
    """A question's failed checks of a written answer (`tries`), whether one `passed`, the best `points`, the last `hint` shown.

    Points stop counting once our solution was `seen`; earlier ones stay. `cell` is the digest of what was last
    checked in a notebook, the one at the path `notebook`, and `time` when that was, in seconds since 1970.
    """

    tries: int = 0
    passed: bool = False
    points: float = 0.0
    hint: int = 0
    seen: bool = False
    cell: str = field(default="", compare=False)
    notebook: str = field(default="", compare=False)
    time: float = field(default=0.0, compare=False)

    @property
    def tried(self) -> bool:
        """Whether a written answer was ever checked."""
        return self.tries > 0 or self.passed

    @property
    def only_seen(self) -> bool:
        """Whether our solution was seen before an answer passed."""
        return self.seen and not self.passed

    def after(self, passed: bool, points: float) -> "Attempts":
        """The attempts after one more check of a written answer."""
        counted = replace(self, tries=self.tries + (not passed))
        return counted if self.seen else replace(counted, passed=self.passed or passed, points=max(self.points, points))


def recall(name: str) -> dict[str, Attempts]:
    """The attempts at the set called `name`, by question; damaged ones are put aside, and a line says so."""
    return PROGRESS.get(name) or {}


def amend(name: str, question_id: str, change: Callable[[Attempts], Attempts]) -> dict[str, Attempts]:
    """Store `change(attempts)` for a question of the set called `name`; returns the attempts at all its questions."""

    def add(attempts: dict[str, Attempts] | None) -> dict[str, Attempts]:
        attempts = attempts or {}
        return {**attempts, question_id: change(attempts.get(question_id, Attempts()))}

    return PROGRESS.update(name, add)


def _read_attempts(values: dict) -> Attempts:
    attempts = Attempts(**values)
    for name, kind in [(f.name, f.type) for f in fields(attempts)]:
        value = getattr(attempts, name)
        is_valid = type(value) is kind or (kind is float and type(value) is int)
        if not is_valid or (kind in (int, float) and not 0 <= value < float("inf")):
            raise ValueError(f"{name} of a record is damaged")
    return attempts


PROGRESS = Section(
    "progress", lambda records: {question: _read_attempts(values) for question, values in records.items()}
)
