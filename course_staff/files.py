"""What the staff's commands keep from run to run: values that can be made again, and copies of files that they replace."""

import json
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from course_utils.errors import CourseError
from course_utils.files import free_folder, replacing

_log = logging.getLogger(__name__)


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
    """`build(value)` of the JSON value in `path`; None where there is no such file, and where it is damaged."""
    try:
        return build(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return None


def write_json(path: Path, value) -> None:
    """Write `value` whole or not at all; where nothing can be written, a line says so."""
    text = json.dumps(value, indent=1)
    try:
        with replacing(path) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        _log.warning("%s cannot be written (%s); it will be made again.", path, error.strerror)
