"""What a learner has reached, kept under the settings' home: one file a set, outside the repository."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from course_utils.errors import CourseError
from course_utils.files import free_folder, read_json, write_json
from course_utils.settings import settings


@dataclass(frozen=True)
class Record:
    """One question: how many checks of a written answer failed, whether one ever passed, the best points."""

    tries: int = 0
    passed: bool = False
    points: float = 0.0

    def after(self, passed: bool, points: float) -> "Record":
        """The record after one more check of a written answer."""
        return Record(self.tries + (not passed), self.passed or passed, max(self.points, points))


def recall(name: str) -> dict[str, Record]:
    """The records of the set called `name`, by question; a damaged file is put aside, and a line says so."""
    return read_json(_path(name), lambda found: {question: _record(values) for question, values in found.items()}) or {}


def remember(name: str, records: Mapping[str, Record]) -> None:
    """Write the records whole or not at all; where that is impossible a line says so."""
    write_json(_path(name), {question: asdict(record) for question, record in records.items()})


def forget(names: Sequence[str]) -> Path | None:
    """Move the records of these sets to a folder of copies, which is returned, or None where there was nothing.

    Raises `CourseError` where a file cannot be moved; what is not moved stays as it is.
    """
    kept = [path for path in map(_path, names) if path.is_file()]
    if not kept:
        return None
    try:
        folder = free_folder(kept[0].parent / "copies")
        for path in kept:
            path.replace(folder / path.name)
    except OSError as error:
        raise CourseError(f"Your progress cannot be put aside ({error.strerror}); nothing more is forgotten.") from None
    return folder


def _path(name: str) -> Path:
    return settings().home / "progress" / f"{name}.json"


def _record(values: dict) -> Record:
    record = Record(**values)
    kinds = type(record.tries), type(record.passed), type(record.points) in (int, float)
    if kinds != (int, bool, True) or not 0 <= record.points < float("inf") or record.tries < 0:
        raise ValueError("a record holds a count, a truth value and points")
    return record
