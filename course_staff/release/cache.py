"""What was released before, so that only what changed is run again.

What a question is released as follows from its notebook, the course's code and the libraries' versions. A digest of these is
kept with it in the settings' home.
"""

import hashlib
import platform
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path

import course_staff
import course_utils
from course_staff.notebooks.files import read_notebook
from course_staff.release.source import marker
from course_utils.files import read_json, write_json

_LIBRARIES = "torch", "numpy", "transformers", "nbformat"

Part = tuple[Path, str | None]
"""What is released in one go: of the solutions at a path one question by its id, or with None the exercises' notebook."""


def parts_of(path: Path) -> list[Part]:
    """The parts of the solutions at `path`."""
    marks = [marker(cell) for cell in read_notebook(path).cells]
    return [(path, None), *((path, mark[1]) for mark in marks if mark and mark[0] == "QUESTION")]


class ReleaseCache:
    """Parts that were released before, each in a file of `folder` with the digest of what it follows from."""

    def __init__(self, folder: Path):
        self._folder = folder

    def find(self, part: Part) -> str | dict | None:
        """What the part is released as; None if that is not known."""
        entry = read_json(self._file(part), lambda value: (value["digest"], value["released"]))
        return entry[1] if entry and entry[0] == _digest(part[0]) else None

    def find_unreleased(self, paths: Iterable[Path]) -> list[Part]:
        """The questions of the solutions at `paths` that are to be run."""
        return [part for path in paths for part in parts_of(path) if part[1] and self.find(part) is None]

    def keep(self, part: Part, released: str | dict) -> None:
        """Store what the part was released as, for the next run."""
        write_json(self._file(part), {"digest": _digest(part[0]), "released": released})

    def _file(self, part: Part) -> Path:
        path, name = part
        return self._folder / f"{path.stem}.{name or 'notebook'}.json"


def _digest(path: Path) -> str:
    return hashlib.sha256(f"{digest_of_code()} {path.name}".encode() + path.read_bytes()).hexdigest()


@cache
def digest_of_code() -> str:
    """A digest of all files of the two packages but the generated sets, and of Python's and the libraries' versions."""
    versions = [version(library).partition("+")[0] for library in _LIBRARIES]  # for whatever device they were built
    digest = hashlib.sha256(repr((platform.python_version_tuple()[:2], platform.machine(), *versions)).encode())
    for package in (course_utils, course_staff):
        root = Path(package.__file__).parent
        for file in sorted(path for path in root.rglob("*") if path.is_file()):
            name = file.relative_to(root)
            if "__pycache__" not in name.parts and not name.is_relative_to("grading/sets") and name.parts[0] != "site":
                digest.update(f"{root.name}/{name.as_posix()}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
