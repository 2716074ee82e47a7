"""Messages of `course plan` on stderr while it works."""

import sys
import time
from typing import TYPE_CHECKING

from course_utils.memory.planning.need import TIGHT
from course_utils.memory.planning.progress import Progress

if TYPE_CHECKING:
    from course_utils.memory.planning.result import Plan, Row

SECONDS_BEFORE_REMARK = 5.0
"""Seconds after which, without a terminal, a line says how long a plan takes."""
# Seconds between the next lines.
_SECONDS_BETWEEN_LINES = 30.0


class StderrProgress(Progress):
    """Shows a counter and results in a terminal; elsewhere prints a line now and then."""

    def __init__(self):
        self.start = time.monotonic()
        self.is_terminal = sys.stderr.isatty()
        self.last_line = 0.0
        self.verdict = ""

    def report(self, activity: str) -> None:
        """Print the verdict so far and `activity`, a phrase: always in a terminal, elsewhere now and then."""
        passed = time.monotonic() - self.start
        activity = f"{self.verdict}{activity}"
        if self.is_terminal and passed > 1:
            note(f"\r\033[K{passed:.0f} s: {activity}", end="")
        elif passed > SECONDS_BEFORE_REMARK and not self.last_line:
            self.last_line = passed
            note("Planning takes half a minute for most models, minutes for some. The answer is then cached.")
        elif self.last_line and passed > self.last_line + _SECONDS_BETWEEN_LINES:
            self.last_line = passed
            note(f"{passed:.0f} s: {activity}")

    def show_verdict(self, plan: "Plan") -> None:
        """Print the verdict."""
        self.verdict = f"it {plan.verdict.replace(TIGHT, f'is {TIGHT}')}; "
        self._show(plan.headline)

    def show_row(self, row: "Row") -> None:
        """Print a row that fits."""
        self._show(row.headline)

    def _show(self, headline: str) -> None:
        if self.is_terminal:
            note(f"\r\033[K{headline}")

    def close(self) -> None:
        """Erase the counter."""
        if self.is_terminal:
            note("\r\033[K", end="")


def note(text: str, end: str = "\n") -> None:
    """Write `text` to stderr, so that it does not get into a pipe."""
    print(text, end=end, file=sys.stderr, flush=True)
