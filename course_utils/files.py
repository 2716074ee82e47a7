"""Files that are read and written whole: a reader sees the old one or the new one, and never half of it."""

import errno
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from course_utils.errors import CourseError

_log = logging.getLogger(__name__)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
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


def free_folder(folder: Path) -> Path:
    """A new folder in `folder`, called by the time, for copies; raises `OSError` where it cannot be made."""
    now = datetime.now().strftime("%Y-%m-%d %H.%M.%S")
    for name in (now, *(f"{now} ({count})" for count in range(2, 1000))):
        with suppress(FileExistsError):
            (folder / name).mkdir(parents=True)
            return folder / name
    raise OSError(errno.EEXIST, "there are a thousand copies")


def keep_copies(paths: Sequence[Path], folder: Path) -> Path | None:
    """Copy those of `paths` that exist into a new folder in `folder`, which is returned; None where none exists.

    Raises `CourseError` where that cannot be done.
    """
    found = [path for path in paths if path.is_file()]
    try:
        copies = free_folder(folder) if found else None
        for path in found:
            shutil.copy2(path, copies)
    except OSError as error:
        raise CourseError(f"No copy can be kept in {folder} ({error.strerror}); make room for it there.") from None
    return copies


def read_json(path: Path, build: Callable = lambda value: value):
    """`build(value)` of the JSON value in `path`, or None where there is no such file.

    Where the text is no JSON, or `build` raises for it, the file is put aside as `….damaged`, and a line says so.
    """
    try:
        return build(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.warning("%s cannot be read (%s); it stays where it is.", path, error.strerror)
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        aside = path.with_suffix(".damaged")
        try:
            path.replace(aside)
            _log.warning("%s could not be read; it is kept as %s, and a new one is begun.", path, aside.name)
        except OSError as error:
            _log.warning("%s could not be read and cannot be moved (%s); remove it.", path, error.strerror)
    return None


def write_json(path: Path, value) -> None:
    """Write `value` whole or not at all; where nothing can be written, a line says that it will be forgotten."""
    text = json.dumps(value, indent=1)
    try:
        with replacing(path) as partial:
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
