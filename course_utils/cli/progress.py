"""Progress of `course plan` on stderr."""

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from course_utils.memory.planning.verdict import Plan, Row

LONG = 5.0
"""Seconds after which somebody who sees no counter is told how long it takes."""
_OFTEN = 30.0
"""Seconds between the lines after that."""


class Progress:
    """A counter in a terminal, and results as soon as they are known; elsewhere a line now and then."""

    def __init__(self):
        self.begun, self.is_terminal, self.last_line = time.monotonic(), sys.stderr.isatty(), 0.0

    def say(self, what_now: str) -> None:
        """Print what is being done: every time in a terminal, elsewhere now and then."""
        passed = time.monotonic() - self.begun
        if self.is_terminal and passed > 1:
            note(f"\r\033[K{passed:.0f} s: {what_now}", end="")
        elif passed > LONG and not self.last_line:
            self.last_line = passed
            note("Planning takes half a minute for most models, minutes for some. The answer is then cached.")
        elif self.last_line and passed > self.last_line + _OFTEN:
            self.last_line = passed
            note(f"{passed:.0f} s: {what_now}")

    def show(self, part: "Plan | Row") -> None:
        """Print the verdict, or a row that fits."""
        if self.is_terminal:
            note(f"\r\033[K{part.headline}")

    def close(self) -> None:
        """Take the counter away."""
        if self.is_terminal:
            note("\r\033[K", end="")


def note(text: str, end: str = "\n") -> None:
    """Write to stderr, which a pipe does not take."""
    print(text, end=end, file=sys.stderr, flush=True)
