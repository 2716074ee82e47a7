"""What a learner has reached, kept under the settings' home, outside the repository."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

from course_utils.store import Section


@dataclass(frozen=True)
class Attempts:
    """One question: how many checks of a written answer failed, whether one ever passed, the best points, the last hint shown.

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
        """The record after one more check of a written answer."""
        tried = replace(self, tries=self.tries + (not passed))
        return tried if self.seen else replace(tried, passed=self.passed or passed, points=max(self.points, points))


def recall(name: str) -> dict[str, Attempts]:
    """The records of the set called `name`, by question; what is damaged is put aside, and a line says so."""
    return PROGRESS.get(name) or {}


def amend(name: str, question: str, change: Callable[[Attempts], Attempts]) -> dict[str, Attempts]:
    """Keep `change(record)` for a question of the set called `name`; all its records."""

    def amended(stored: dict[str, Attempts] | None) -> dict[str, Attempts]:
        records = stored or {}
        return {**records, question: change(records.get(question, Attempts()))}

    return PROGRESS.update(name, amended)


def _read_attempts(values: dict) -> Attempts:
    attempts = Attempts(**values)
    for declared in fields(attempts):
        value = getattr(attempts, declared.name)
        is_number = declared.type in (int, float) and type(value) in (int, declared.type) and 0 <= value < float("inf")
        if not is_number and (declared.type in (int, float) or type(value) is not declared.type):
            raise ValueError(f"{declared.name} of a record is damaged")
    return attempts


PROGRESS = Section("progress", lambda stored: {question: _read_attempts(values) for question, values in stored.items()})
