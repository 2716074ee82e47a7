"""What a learner has reached, kept under the settings' home: one file a set, outside the repository."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from course_utils.errors import CourseError
from course_utils.files import free_folder, read_json, write_json
from course_utils.settings import settings


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
    record, plain = Record(**values), Record()
    for name, value in asdict(record).items():
        kind = type(getattr(plain, name))
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise ValueError(f"{name} of a record is no {kind.__name__}")
        if kind in (int, float) and not 0 <= value < float("inf"):
            raise ValueError(f"{name} of a record is no count")
    return record
