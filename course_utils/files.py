"""Files that are read and written whole, so that nobody sees half of one; and where those of the course lie."""

import errno
import json
import logging
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from course_utils.errors import CourseError, suggest

_EXERCISES = "_exercises_"
_log = logging.getLogger(__name__)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A free path beside `path` to write to; it takes `path`'s place when the block ends well and is removed when not.

    Any number of processes may replace the same file at once; the last one wins. Raises `OSError` as the system does.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str, errors: str = "strict") -> None:
    """Write `text` in UTF-8, whole or not at all, with the same line ends on every system; raises as `atomic_write` does."""
    with atomic_write(path) as draft:
        draft.write_text(text, encoding="utf-8", errors=errors, newline="\n")


@contextmanager
def require_writable(path: Path, remedy: str) -> Iterator[None]:
    """Turn an `OSError` of writing to `path` inside into a `CourseError` that ends with the `remedy`."""
    try:
        yield
    except OSError as error:
        raise CourseError(f"{path} cannot be written ({error.strerror or error}); {remedy}.") from None


def free_folder(folder: Path) -> Path:
    """A new folder in `folder`, called by the time, for copies; raises `OSError` where it cannot be made."""
    timestamp = datetime.now().strftime("%Y-%m-%d %H.%M.%S")
    for name in (timestamp, *(f"{timestamp} ({count})" for count in range(2, 1000))):
        with suppress(FileExistsError):
            (folder / name).mkdir(parents=True)
            return folder / name
    raise OSError(errno.EEXIST, "there are a thousand copies")


def keep_copies(paths: Sequence[Path], folder: Path) -> Path | None:
    """Copy those of `paths` that exist into a new folder in `folder`, which is returned; None where none exists.

    Raises `CourseError` where that cannot be done.
    """
    existing = [path for path in paths if path.is_file()]
    try:
        copies = free_folder(folder) if existing else None
        for path in existing:
            shutil.copy2(path, copies)
    except OSError as error:
        raise CourseError(f"No copy can be kept in {folder} ({error.strerror}); make room for it there.") from None
    return copies


def read_json(path: Path, build: Callable = lambda value: value):
    """`build(value)` of the JSON value in `path`, which can be made again; None where there is none, or it is damaged."""
    try:
        return build(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return None


def write_json(path: Path, value: object) -> None:
    """Write `value` whole or not at all; where nothing can be written, a line says that it will be forgotten."""
    text = json.dumps(value, indent=1)
    try:
        with atomic_write(path) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        _log.warning("%s cannot be written (%s); this will be forgotten.", path, error.strerror)


def free_name(path: Path) -> Path:
    """A name beside `path` that nothing has: `03_adamw (old).ipynb`, `03_adamw (old 2).ipynb`."""
    count, free = 1, path.with_stem(f"{path.stem} (old)")
    while free.exists():
        count += 1
        free = path.with_stem(f"{path.stem} (old {count})")
    return free


@dataclass(frozen=True)
class Place:
    """A checkout of the course."""

    root: Path

    @property
    def notebooks(self) -> Path:
        """The folder of the chapters."""
        return self.root / "notebooks"

    @property
    def start(self) -> Path:
        """The chapter to begin with."""
        return self.notebooks / "00_start_here.ipynb"


def exercises_of(name: str) -> str:
    """The notebook of the exercise set called `name`, from the checkout's folder on: `exercises/03_exercises_adamw.ipynb`.

    Its chapter is called `name` itself; the names differ early on, where a tab that is cut off still shows it.
    """
    return f"exercises/{name.replace('_', _EXERCISES, 1)}.ipynb"


def set_of(path: Path | str) -> str:
    """The exercise set that a notebook is called by, an exercise or the solutions."""
    return Path(path).stem.replace(_EXERCISES, "_", 1)


def find_place(start: Path | None = None) -> Place:
    """The checkout that `start` (by default the working directory) lies in, or else the one this package was imported from.

    Raises `CourseError` where there is neither, as when only the package was installed.
    """
    directory = (start or Path.cwd()).absolute()
    for folder in (directory, *directory.parents, Path(__file__).parents[1]):
        if (folder / "notebooks").is_dir() and (folder / "course_utils").is_dir():
            return Place(folder)
    raise CourseError(f"There are no chapters in or above {directory}; change to a clone of the course's repository.")


def chapters_in(folder: Path, names: list[str] | None = None) -> list[Path]:
    """The notebooks of `folder` in order, or those that `matching_names` has for each of `names`, in that order.

    A name may also be a path to a notebook. Raises `CourseError`, listing the chapters, on a name that fits none.
    """
    chapters = sorted(folder.glob("*.ipynb"))
    if not names:
        return chapters
    notebooks = []
    for name in names:
        if name.endswith(".ipynb") and Path(name).is_file():
            notebooks.append(Path(name).absolute())
        else:
            stems = require_names(name.removesuffix(".ipynb"), [path.stem for path in chapters], "chapter")
            notebooks += [path for path in chapters if path.stem in stems]
    return notebooks


def matching_names(name: str, names: Sequence[str]) -> list[str]:
    """The names in `names`, such as `03_adamw`, that `name` means: all of the name, its number (`3`, `03`), or its beginning.

    A chapter's own number means that chapter alone: `05` is not `05b`.
    """
    return names_with_number(name, names) or [full for full in names if full.startswith(_two_digits(name))]


def names_with_number(name: str, names: Sequence[str]) -> list[str]:
    """As `matching_names`, by the whole name or its number only."""
    return [full for full in names if _two_digits(name) in (full, full.partition("_")[0])]


def require_one_name(name: str, names: Sequence[str], kind: str) -> str:
    """The only one of `matching_names`; raises `CourseError`, listing `names`, where there is none or more."""
    matches = matching_names(name, names)
    if len(matches) > 1:
        raise CourseError(f"{name!r} is the beginning of {' and '.join(matches)}; write more of the name.")
    return matches[0] if matches else _refuse(name, names, kind)


def require_names(name: str, names: Sequence[str], kind: str) -> list[str]:
    """All of `matching_names`; raises `CourseError`, listing `names`, where there is none."""
    return matching_names(name, names) or _refuse(name, names, kind)


def _two_digits(name: str) -> str:
    return re.sub(r"^\d(?!\d)", r"0\g<0>", name)


def _refuse(name: str, names: Sequence[str], kind: str):
    fallback = f"the {kind}s are: {', '.join(names) or 'none yet'}."
    raise CourseError(f"No {kind} is called {name!r}; {suggest(name, names, fallback)}")
