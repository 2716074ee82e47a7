"""JSON values kept beneath `settings().home / "data"`, so that what takes seconds to derive is derived once.

A kept value is one file: its SHA-256, a line break, the JSON. It is written beside its place and moved there in one
step, so a reader, and any number of writers at once, see a whole file or none.
"""

import hashlib
import json
import logging
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from course_utils.files import replacing
from course_utils.settings import settings

Json = TypeVar("Json", bound=dict | list | str | int | float)

_log = logging.getLogger("course_utils")


def folder() -> Path:
    """Where this room keeps what it derives or downloads; not made before something is written."""
    return settings().home / "data"


def cached(kind: str, parameters: dict, build: Callable[[], Json]) -> Json:
    """`build()`, or what an earlier call with the same `kind`, `parameters` and Python returned.

    `parameters` is anything JSON can hold; two that differ are kept apart. A damaged copy is built anew, and where
    nothing can be written the value is returned all the same; either is said in one line on the `course_utils` logger.
    """
    path = folder() / f"{kind}-{_key(parameters)}.json"
    value = _read(path)
    if value is None:
        value = build()
        _write(path, value)
    return value


def _key(parameters: dict) -> str:
    run = {"python": sys.version, "implementation": platform.python_implementation(), "prefix": sys.base_prefix}
    return _digest(json.dumps([parameters, run], sort_keys=True))[:16]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _read(path: Path):
    try:
        digest, _, body = path.read_text(encoding="utf-8").partition("\n")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        if path.is_file():
            _log.warning("The cached copy %s cannot be read (%s); it is built anew.", path, type(error).__name__)
        return None
    if digest != _digest(body):
        _log.warning("The cached copy %s is damaged; it is built anew.", path)
        return None
    return json.loads(body)


def _write(path: Path, value: Json) -> None:
    body = json.dumps(value)
    try:
        with replacing(path) as partial:
            # newline="" keeps the text, and so its SHA-256, the same on every platform.
            partial.write_text(f"{_digest(body)}\n{body}", encoding="utf-8", newline="")
    except OSError as error:
        _log.warning(
            "Nothing can be kept in %s (%s); the work goes on in memory.", path.parent, error.strerror or error
        )
