"""Writing a file so that a reader sees the old one or the new one, whole, and never half of it."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
