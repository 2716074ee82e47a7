"""What a run notes about its updates: their losses and rates, and in a file which of them is at work."""

import time
from pathlib import Path

import torch

UPDATE_FILE = "update.txt"


class UpdateLog:
    """The run's file that tells a process that takes it up which update was at work last, and how often it was taken up."""

    def __init__(self, folder: Path):
        path = folder / UPDATE_FILE
        path.touch()
        self.file = path.open("r+", encoding="ascii")
        self.last, self.attempts = map(int, self.file.read().split() or (0, 0))
        self.attempts += 1

    def note(self, number: int) -> None:
        """Write down that update `number` is at work, before it is computed."""
        self.file.seek(0)
        self.file.write(f"{number:>12} {self.attempts:>8}")
        self.file.flush()


def last_update_begun(folder: Path) -> int:
    """The number of the update of the run in this folder that was at work last, 0 before the first."""
    try:
        return int((folder / UPDATE_FILE).read_text(encoding="ascii").split()[0])
    except (OSError, IndexError):
        return 0


class RunMeter:
    """Losses of the updates so far, and tokens and seconds of the rows about them."""

    def __init__(self):
        self.begun = self.row_begun = time.perf_counter()
        self.pending: dict[int, torch.Tensor] = {}  # losses of updates about which there is no row yet
        self.losses: dict[int, float] = {}
        self.rows: list[tuple[int, float]] = []  # tokens and seconds

    @property
    def rate(self) -> float:
        """Tokens a second, without the first row, which warms up, where there are others; nan before any."""
        rows = self.rows[1:] or self.rows or [(0, float("nan"))]
        return sum(tokens for tokens, _ in rows) / sum(seconds for _, seconds in rows)
