"""Many sets released at once, in a process per core; a question is not run again if its sources were released before.

What a question is released as follows from its notebook, the course's code and the libraries' versions. A digest of these is
kept with it in the settings' home.
"""

import hashlib
import json
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from functools import cache, lru_cache
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import course_staff
import course_utils
from course_staff.notebooks.files import notebook_text, read_notebook
from course_staff.release.release import check_facts, digest_of, exercise_notebook, file_names, json_text, set_entry
from course_staff.release.source import AuthoredQuestion, load_solutions, marker
from course_utils.files import atomic_write, read_json, write_json

_LIBRARIES = "torch", "numpy", "transformers", "nbformat"
_SETS_CACHED = 2  # whose questions a process keeps

Part = tuple[Path, str | None]
"""What is released in one go: of the solutions at a path one question by its id, or with None the exercises' notebook."""


def parts_of(path: Path) -> list[Part]:
    """The parts of the solutions at `path`."""
    marks = [marker(cell) for cell in read_notebook(path).cells]
    return [(path, None), *((path, mark[1]) for mark in marks if mark and mark[0] == "QUESTION")]


def release_parts(parts: Sequence[Part], jobs: int) -> Iterator[tuple[Part, str | dict]]:
    """Each part with its text or entry as soon as that is there, computed by this many processes at once.

    Raises `CourseError` if a question is not fit to be handed out.
    """
    if min(jobs, len(parts)) <= 1:
        for part in parts:
            yield part, _release_part(part)
        return
    with ProcessPoolExecutor(min(jobs, len(parts)), get_context("spawn"), _take_one_core) as pool:
        # The last sets take longest, and nothing that is long should begin last.
        running = {pool.submit(_release_part, part): part for part in reversed(parts)}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _take_one_core() -> None:
    """Use one thread: as many threads in each process as there are cores would wait for each other."""
    import torch

    torch.set_num_threads(1)


def _release_part(part: Part) -> str | dict:
    from nbformat import from_dict

    path, name = part
    authored = _load_once(path)
    if name is None:
        return notebook_text(from_dict(exercise_notebook(read_notebook(path), authored)))
    return set_entry(next(exercise for exercise in authored if exercise.question.id == name))


@lru_cache(maxsize=_SETS_CACHED)
def _load_once(path: Path) -> list[AuthoredQuestion]:
    return load_solutions(path)


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


def release_sets(
    paths: Sequence[Path], exercises: Path, sets: Path, store: ReleaseCache, jobs: int, on_part: Callable[[Part], None]
) -> Iterator[dict[Path, str]]:
    """The two files that each of the solutions is released as, in the folders `exercises` and `sets`, with their texts;
    writes none of them, runs every known mistake.

    `on_part(part)` is called for each part that had to be run; it is in the `store` by then, so that an interrupted run goes on
    from there. Raises `CourseError` if a question is not fit to be handed out.
    """
    parts = {path: parts_of(path) for path in paths}
    texts = {part: text for of_path in parts.values() for part in of_path if (text := store.find(part))}
    todo = [part for of_path in parts.values() for part in of_path if part not in texts]
    for path in dict.fromkeys(path for path, _ in todo):
        check_facts(_load_once(path))  # these fail at once
    with closing(release_parts(todo, jobs)) as released_parts:
        for part, released in released_parts:
            store.keep(part, released)
            on_part(part)
            texts[part] = released
    for path, (notebook, *questions) in parts.items():
        entries = [texts[question] for question in questions]
        set_text = json_text({"name": path.stem, "source": digest_of(path), "questions": entries})
        yield dict(zip(file_names(path, exercises, sets), (texts[notebook], set_text), strict=True))


class Stamps:
    """What the repository says of its own sets, in `solutions/released.json`: a digest of each set's sources and of its files.

    Where both are as they were, the set was released from these sources, and nobody has to run its mistakes again to know.
    """

    def __init__(self, path: Path):
        self._path = path
        self._stamps = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    def are_current(self, path: Path, files: Iterable[Path]) -> bool:
        """Whether the solutions at `path` and the `files` that they were released as are those of the stamp."""
        return self._stamps.get(path.stem) == _stamp(path, files)

    def reason(self, path: Path) -> str:
        """What changed since the set was stamped, as a phrase."""
        if path.stem not in self._stamps:
            return "never released before"
        if not self._stamps[path.stem].startswith(digest_of_code()):
            return "the course's code or a library changed since the last release"
        return "the solutions or their released files changed since the last release"

    def put(self, path: Path, files: Iterable[Path]) -> None:
        """Say that these files were just released from the solutions at `path`."""
        self._stamps[path.stem] = _stamp(path, files)
        with atomic_write(self._path) as draft:
            draft.write_text(json.dumps(self._stamps, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _stamp(path: Path, files: Iterable[Path]) -> str:
    """The digest of the code, then one of the set's own files."""
    digest = hashlib.sha256(path.name.encode() + path.read_bytes())
    for file in files:
        digest.update(file.read_bytes() if file.is_file() else b"")
    return f"{digest_of_code()} {digest.hexdigest()}"


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
