"""The file of a run that says which of its updates is at work."""

from pathlib import Path

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


def last_started_update(folder: Path) -> int:
    """The number of the update of the run in this folder that was at work last, 0 before the first."""
    try:
        return int((folder / UPDATE_FILE).read_text(encoding="ascii").split()[0])
    except (OSError, IndexError):
        return 0
