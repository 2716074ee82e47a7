"""Which of the repository's sets were released from the present sources."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from course_staff.release.cache import digest_of_code
from course_utils.files import write_text


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
        write_text(self._path, json.dumps(self._stamps, indent=1, sort_keys=True) + "\n")


def _stamp(path: Path, files: Iterable[Path]) -> str:
    """The digest of the code, then one of the set's own files."""
    digest = hashlib.sha256(path.name.encode() + path.read_bytes())
    for file in files:
        digest.update(file.read_bytes() if file.is_file() else b"")
    return f"{digest_of_code()} {digest.hexdigest()}"
