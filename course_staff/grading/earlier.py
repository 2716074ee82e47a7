"""What an earlier run of `course grade` left, and what is therefore still to be graded. Nothing that was graded is lost."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from course_staff.grading.record import Record
from course_staff.grading.submitted import Submitted
from course_utils.errors import CourseError


@dataclass(frozen=True)
class Worklist:
    """The submissions to grade now, by student, and the records to leave."""

    todo: Mapping[str, Submitted]
    saved: tuple[Record, ...]  # they stay as they are
    waiting: tuple[str, ...]  # new or changed, but another student was requested
    outdated: tuple[str, ...] = ()  # in `todo`: the same file was graded by other questions or limits


def list_work(
    submitted: Mapping[str, Submitted], earlier: Mapping[str, Record], seed: int | None, only: str | None, again: bool
) -> Worklist:
    """The work on the submissions `submitted`, where `earlier` are the records of the results' folder.

    `only` grades this student alone, `again` everybody. Raises `CourseError` for a student that is not there, and where grades
    of another seed would come to stand in the class's table.
    """
    if only and only not in submitted:
        raise CourseError(f"There is no submission {only!r}; there are: {', '.join(submitted)}.")
    anew = {only} if only else set(submitted if again else ())
    for other in {record.get("seed") for student, record in earlier.items() if student not in anew} - {seed}:
        was = "without a seed" if other is None else f"with --seed {other}"
        raise CourseError(
            f"This class was graded {was}: do so again, or grade the whole folder with --again, "
            "or name another folder with --out."
        )
    states = {student: _state_of(file, earlier.get(student)) for student, file in submitted.items()}
    missing = [student for student, state in states.items() if student in anew or state != "done"]
    todo = {student: submitted[student] for student in missing if not only or student == only}
    saved = tuple(record for student, record in earlier.items() if student not in todo)
    outdated = tuple(student for student in todo if student not in anew and states[student] == "outdated")
    return Worklist(todo, saved, tuple(student for student in missing if student not in todo), outdated)


def check_place(student: str, file: Submitted, earlier: Mapping[str, Record]) -> None:
    """For a single file: raises `CourseError` where the results hold another file of the same name, which it would replace."""
    if student in earlier and earlier[student].get("file") != file.digest:
        raise CourseError(
            f"The results hold another submission called {student!r}; "
            "give the file another name, or put it in that one's place with --again."
        )


def check_set(earlier: Mapping[str, Record], name: str, folder: Path) -> None:
    """Raises `CourseError` where the results in `folder` are of another set than `name`."""
    for other in {record["set"] for record in earlier.values()} - {name}:
        raise CourseError(f"{folder} contains results of the set {other}; name another folder with --out.")


def _state_of(file: Submitted, record: Record | None) -> Literal["done", "outdated", "new"]:
    """Whether a file was graded by the same questions, seed and limits, by others, or not at all."""
    if record is None or record.get("failed"):
        return "new"
    if record["key"] == file.key:
        return "done"
    return "outdated" if record["file"] == file.digest else "new"
