"""The files that a class handed in, which student each belongs to, and which are to be graded. No earlier grade is lost."""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from course_staff.grading.prepare import PreparedSet
from course_staff.grading.record import Record
from course_staff.grading.sandbox import SAFE
from course_staff.grading.submission import UnreadableError, content_of
from course_utils.errors import CourseError
from course_utils.units import format_counted

_NOTEBOOK = re.compile(r"\.ipynb(\.txt|\.json)?$", re.IGNORECASE)


@dataclass(frozen=True)
class SubmittedFile:
    """A submission: its file, a digest of what the file holds, and the `key` that a record must have to be its own."""

    path: Path
    digest: str
    key: str


@dataclass(frozen=True)
class Worklist:
    """The submissions to grade now, by student, and the records to leave."""

    todo: Mapping[str, SubmittedFile]
    saved: tuple[Record, ...]  # they stay as they are
    postponed: tuple[str, ...]  # new or changed, but another student was requested
    outdated: tuple[str, ...] = ()  # in `todo`: the same file was graded by other questions or limits

    def in_words(self, submitted: Mapping[str, SubmittedFile], set_name: str, folder: Path) -> list[str]:
        """A line for each group of submissions, or of results in `folder`, that is left as it is or graded again unasked."""
        students = [record["student"] for record in self.saved]
        graded = [student for student in students if student in submitted and student not in self.postponed]
        absent = [student for student in students if student not in submitted]
        lines = []
        if graded:
            lines.append(f"{len(graded)} of {len(submitted)} were graded before; --again regrades them.")
        if self.outdated:
            count = f"{len(self.outdated)} of {len(submitted)}"
            lines.append(f"Grading again {count}, because {set_name} or its grading changed.")
        if self.postponed:
            lines.append(f"New or changed, but left for a run without --only: {', '.join(self.postponed)}.")
        if absent:
            count = format_counted(len(absent), "earlier grade")
            advice = f"to remove one, delete its file in {folder / 'records'}"
            lines.append(f"The table includes {count} without a submission here; {advice}.")
        return lines


def find_submissions(folder: Path, out: Path | None = None) -> dict[str, Path]:
    """Student to notebook, for every notebook in `folder` and below it, but not in `out`; or the one notebook that `folder` is.

    A student has the name of the file, with its folders. Files of the system belong to nobody: Jupyter's checkpoints, and a Mac's
    `__MACOSX` and `._name.ipynb`. Raises `CourseError` if there is none.
    """
    if folder.is_file():
        return {folder.stem: folder}
    if not folder.is_dir():
        raise CourseError(f"There is no folder {folder}; give the one with the submissions.")
    notebooks = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        is_own = not _is_of_the_system(relative) and not (out and path.is_relative_to(out))
        if _NOTEBOOK.search(path.name) and is_own:
            name = os.fsencode(relative.as_posix().removesuffix(".ipynb")).decode("utf-8", "backslashreplace")
            while name in notebooks:  # nobody takes another's place, whatever a file is called
                name += " (another)"
            notebooks[name] = path
    if not notebooks:
        raise CourseError(f"There is no notebook in {folder}; give the folder with the submissions.")
    return notebooks


def list_other_files(folder: Path, notebooks: set[Path], out: Path) -> list[str]:
    """Files beside the notebooks, such as a script submitted by mistake."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path not in notebooks]
    names = [path.relative_to(folder) for path in paths if not path.is_relative_to(out)]
    return [name.as_posix() for name in names if not (name.name.startswith(".") or _is_of_the_system(name))]


def _is_of_the_system(relative: Path) -> bool:
    """Whether the operating system or Jupyter made the file at this path within a class's folder."""
    *folders, name = relative.parts
    return name.startswith("._") or any(part.startswith(".") or part == "__MACOSX" for part in folders)


def identify(path: Path, exercise_set: PreparedSet, sandbox_kind: str) -> SubmittedFile:
    """The file at `path` with what its record is valid for: the same content, graded by the same questions, seed and limits, and
    as safely as `sandbox_kind` is."""
    try:
        content = content_of(path)
    except UnreadableError as error:
        content = str(error).encode()
    digest = hashlib.sha256(content).hexdigest()
    key = hashlib.sha256(f"{exercise_set.digest} {sandbox_kind in SAFE} {digest}".encode()).hexdigest()
    return SubmittedFile(path, digest, key)


def list_work(
    submitted: Mapping[str, SubmittedFile],
    earlier: Mapping[str, Record],
    seed: int | None,
    only: str | None,
    regrade: bool,
) -> Worklist:
    """The work on the submissions `submitted`, where `earlier` are the records of the results' folder.

    `only` grades this student alone, `regrade` everybody. Raises `CourseError` for an unknown student, and if grades of two seeds
    would be in the class's table.
    """
    if only and only not in submitted:
        raise CourseError(f"There is no submission {only!r}; there are: {', '.join(submitted)}.")
    requested = {only} if only else set(submitted if regrade else ())
    for other in {record.get("seed") for student, record in earlier.items() if student not in requested} - {seed}:
        option = "without a seed" if other is None else f"with --seed {other}"
        raise CourseError(
            f"This class was graded {option}: do so again, or grade the whole folder with --again, "
            "or name another folder with --out."
        )
    states = {student: _state_of(file, earlier.get(student)) for student, file in submitted.items()}
    missing = [student for student, state in states.items() if student in requested or state != "done"]
    todo = {student: submitted[student] for student in missing if not only or student == only}
    saved = tuple(record for student, record in earlier.items() if student not in todo)
    outdated = tuple(student for student in todo if student not in requested and states[student] == "outdated")
    return Worklist(todo, saved, tuple(student for student in missing if student not in todo), outdated)


def check_place(student: str, file: SubmittedFile, earlier: Mapping[str, Record]) -> None:
    """For a single file: raises `CourseError` if the results hold another file of the same name, which it would replace."""
    if student in earlier and earlier[student].get("file") != file.digest:
        raise CourseError(
            f"The results hold another submission called {student!r}; "
            "give the file another name, or put it in that one's place with --again."
        )


def _state_of(file: SubmittedFile, record: Record | None) -> Literal["done", "outdated", "new"]:
    """Whether a file was graded by the same questions, seed and limits, by others, or not at all."""
    if record is None or record.get("failed"):
        return "new"
    if record["key"] == file.key:
        return "done"
    return "outdated" if record["file"] == file.digest else "new"
