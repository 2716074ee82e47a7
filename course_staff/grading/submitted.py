"""The files that a class handed in: which they are, whose they are, and what a record must say to be a file's own."""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from course_staff.grading.prepare import PreparedSet
from course_staff.grading.sandbox import SAFE
from course_staff.grading.submission import UnreadableError, content_of
from course_utils.errors import CourseError

_NOTEBOOK = re.compile(r"\.ipynb(\.txt|\.json)?$", re.IGNORECASE)


@dataclass(frozen=True)
class Submitted:
    """A submission: its file, a digest of what the file holds, and the `key` that a record must have to be its own."""

    path: Path
    digest: str
    key: str


def find_submissions(folder: Path, out: Path | None = None) -> dict[str, Path]:
    """Student to notebook, for every notebook in `folder` and below it, `out` left aside; a file stands for itself.

    A student is called as the file is, with its folders. What systems lay beside files is nobody's: Jupyter's checkpoints, and
    a Mac's `__MACOSX` and `._name.ipynb`. Raises `CourseError` where there is none.
    """
    if folder.is_file():
        return {folder.stem: folder}
    if not folder.is_dir():
        raise CourseError(f"There is no folder {folder}; give the one with the submissions.")
    notebooks = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        is_own = not is_of_the_system(relative) and not (out and path.is_relative_to(out))
        if _NOTEBOOK.search(path.name) and is_own:
            name = os.fsencode(relative.as_posix().removesuffix(".ipynb")).decode("utf-8", "backslashreplace")
            while name in notebooks:  # nobody takes another's place, whatever a file is called
                name += " (another)"
            notebooks[name] = path
    if not notebooks:
        raise CourseError(f"There is no notebook in {folder}; give the folder with the submissions.")
    return notebooks


def is_of_the_system(relative: Path) -> bool:
    """Whether a file at this path within a class's folder is none of a student's."""
    *folders, name = relative.parts
    return name.startswith("._") or any(part.startswith(".") or part == "__MACOSX" for part in folders)


def identify(path: Path, exercise_set: PreparedSet, sandbox_kind: str) -> Submitted:
    """The file at `path` with what its record is valid for: the same content, graded by the same questions, seed and limits, and
    as safely as `sandbox_kind` is."""
    try:
        content = content_of(path)
    except UnreadableError as error:
        content = str(error).encode()
    digest = hashlib.sha256(content).hexdigest()
    key = hashlib.sha256(f"{exercise_set.digest} {sandbox_kind in SAFE} {digest}".encode()).hexdigest()
    return Submitted(path, digest, key)
