"""What a learner has reached, kept under the settings' home, outside the repository."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from course_utils.store import Section


@dataclass(frozen=True)
class Record:
    """One question: how many checks of a written answer failed, whether one ever passed, the best points, the last hint shown.

    What is earned before our solution is `seen` stands, and nothing is earned after it. `cell` is the digest of what was last
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

    def after(self, passed: bool, points: float) -> "Record":
        """The record after one more check of a written answer."""
        tried = replace(self, tries=self.tries + (not passed))
        return tried if self.seen else replace(tried, passed=self.passed or passed, points=max(self.points, points))


def recall(name: str) -> dict[str, Record]:
    """The records of the set called `name`, by question; what is damaged is put aside, and a line says so."""
    return _KEPT.get(name) or {}


def remember(name: str, records: Mapping[str, Record]) -> None:
    """Keep these records beside those of the set's other questions; where that is impossible a line says so."""
    _KEPT.update(name, lambda kept: {**(kept or {}), **records})


def amend(name: str, question: str, change: Callable[[Record], Record]) -> dict[str, Record]:
    """Keep `change(record)` for a question of the set called `name`; all its records."""

    def amended(kept: dict[str, Record] | None) -> dict[str, Record]:
        records = kept or {}
        return {**records, question: change(records.get(question, Record()))}

    return _KEPT.update(name, amended)


def forget(names: Sequence[str]) -> Path | None:
    """Forget the records of these sets; a copy is made before, in the folder that is returned. None where there was nothing.

    Raises `CourseError` where nothing can be copied; then nothing is forgotten.
    """
    return _KEPT.forget(names)


def _record(values: dict) -> Record:
    record, plain = Record(**values), Record()
    for name, value in asdict(record).items():
        kind = type(getattr(plain, name))
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise ValueError(f"{name} of a record is no {kind.__name__}")
        if kind in (int, float) and not 0 <= value < float("inf"):
            raise ValueError(f"{name} of a record is no count")
    return record


_KEPT = Section("progress", lambda found: {question: _record(values) for question, values in found.items()})
