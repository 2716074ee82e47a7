"""A sign of life in a notebook while ranks work."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from course_utils.settings import LIVE_OUTPUT, settings
from course_utils.units import format_counted, format_seconds


@contextmanager
def sign_of_life(ranks: int) -> Iterator[None]:
    """A context that shows in a notebook that ranks are at work, and then for how long; in a strict run it shows nothing."""
    if settings().strict or not _in_notebook():
        yield
        return
    from IPython.display import display

    count = format_counted(ranks, "rank")
    start = time.monotonic()
    line = display(_make_output(f"{count} at work …"), metadata=LIVE_OUTPUT, raw=True, display_id=True)
    try:
        yield
    finally:
        output = _make_output(f"{count}, {format_seconds(time.monotonic() - start)}")
        line.update(output, metadata=LIVE_OUTPUT, raw=True)


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def _make_output(text: str) -> dict:
    return {"text/plain": text, "text/html": f'<div style="opacity: 0.7">{text}</div>'}
