"""What a learner leaves behind, in one file under the settings' home: bets, ledger, progress, the capstone's choices, plans.

The file is an SQLite database: any number of notebooks and commands write to it at once, each change whole or not at all.
"""

import json
import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from course_utils.errors import CourseError
from course_utils.files import free_folder, free_name
from course_utils.settings import settings

NAME = "course.db"
_PATIENCE = 20.0  # seconds to wait for other processes that write
_JSON_FOLDERS = ("bets", "ledger", "progress", "capstone")  # where the same was kept before, a file for each key

_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Section:
    """A part of the store: values of JSON by key; a dataclass is written as its fields.

    `build` makes of such a value what is read, and raises where it is damaged. The value is then put aside, and a line says so.
    Where the file cannot be used nothing is read or kept, and a line says that, too.
    `in_memory` holds what this process has made, by keys of its room's own; a room looks there first, or where nothing is stored.
    """

    name: str
    build: Callable[[Any], Any] = lambda value: value
    in_memory: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def load(self, key: str | None = None) -> dict[str, Any]:
        """The values by key, in order; with `key` that value alone."""
        return _use(lambda store: self._read(store, key), {}) if settings().home.is_dir() else {}

    def get(self, key: str) -> Any:
        """The value of `key`, or None."""
        return self.load(key).get(key)

    def put(self, key: str, value: Any) -> None:
        """Write `value` in place of an earlier one."""
        self.update(key, lambda _: value)

    def update(self, key: str, change: Callable[[Any], T]) -> T:
        """Write `change(value)`, which is returned; no other process writes in between. `value` is None where there is none."""

        def write(store: sqlite3.Connection) -> T:
            value = change(self._read(store, key).get(key))
            text = json.dumps(value, default=asdict)
            store.execute("REPLACE INTO kept VALUES (?, ?, ?)", (self.name, key, text))
            return value

        unavailable = object()
        result = _use(write, unavailable)
        return change(None) if result is unavailable else result

    def forget(self, keys: Sequence[str]) -> Path | None:
        """Remove `keys`. A copy of the whole store is made before, in a new folder that is returned; None where no key is there.

        Raises `CourseError` where it cannot be copied; then nothing is removed.
        """
        path = settings().home / NAME
        if not set(keys) & set(self.load()):
            return None
        try:
            folder = free_folder(path.parent / "copies")
            with closing(sqlite3.connect(path)) as store, closing(sqlite3.connect(folder / NAME)) as copy:
                store.backup(copy)
        except (OSError, sqlite3.Error) as error:
            raise CourseError(f"No copy can be made beside {path} ({error}), so nothing is forgotten.") from None

        def remove(store: sqlite3.Connection) -> None:
            store.executemany("DELETE FROM kept WHERE section = ? AND key = ?", [(self.name, key) for key in keys])

        _use(remove, None)
        return folder

    def _read(self, store: sqlite3.Connection, key: str | None = None) -> dict[str, Any]:
        values = {}
        query = "SELECT key, value FROM kept WHERE section = ?"
        if key is None:
            rows = store.execute(f"{query} ORDER BY key", (self.name,))
        else:
            rows = store.execute(f"{query} AND key = ?", (self.name, key))
        for name, text in rows.fetchall():
            try:
                values[name] = self.build(json.loads(text))
            except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
                aside = f"{self.name}.damaged"
                move = "UPDATE OR REPLACE kept SET section = ? WHERE section = ? AND key = ?"
                store.execute(move, (aside, self.name, name))
                _log.warning("%s/%s in %s could not be read; it is kept as %s.", self.name, name, NAME, aside)
        return values


def _use(action: Callable[[sqlite3.Connection], T], fallback: T) -> T:
    """`action(store)`; a damaged file is put aside, and a new one is begun. `fallback` where none can be used."""
    path = settings().home / NAME
    try:
        try:
            with _open(path) as store:
                return action(store)
        except sqlite3.DatabaseError as error:
            # Its kinds say what is wrong with a statement, and not with the file.
            if type(error) is not sqlite3.DatabaseError:
                raise
            aside = path.with_suffix(".damaged")
            if aside.exists():
                aside = free_name(aside)
            path.replace(aside)
            with suppress(FileNotFoundError):  # an unfinished change of the damaged file must not reach the new one
                path.with_name(f"{NAME}-journal").replace(f"{aside}-journal")
            _log.warning("%s could not be read; it is kept as %s, and a new one is begun.", path, aside.name)
            with _open(path) as store:
                return action(store)
    except (OSError, sqlite3.Error) as error:
        _log.warning("%s cannot be used (%s); what is new will be forgotten.", path, error)
        return fallback


@contextmanager
def _open(path: Path) -> Iterator[sqlite3.Connection]:
    """The store, in which nobody else writes until the block ends; a new one begins with what older files hold."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)) as store, store:
        store.execute("BEGIN IMMEDIATE")
        if not store.execute("SELECT name FROM sqlite_master WHERE name = 'kept'").fetchone():
            store.execute("CREATE TABLE kept (section TEXT, key TEXT, value TEXT, PRIMARY KEY (section, key))")
            for name in _JSON_FOLDERS:
                for file in (path.parent / name).glob("*.json"):
                    key = file.stem.encode("utf-8", "replace").decode()
                    text = file.read_text(encoding="utf-8", errors="replace")
                    store.execute("INSERT INTO kept VALUES (?, ?, ?)", (name, key, text))
        yield store
