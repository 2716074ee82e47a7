"""Destinations of the figures of a run. A `Logger` of your own needs two methods."""

import csv
from pathlib import Path
from typing import Protocol


class Logger(Protocol):
    """The interface that `train` calls, on rank 0 alone."""

    def log(self, step: int, values: dict[str, float | None]) -> None:
        """The figures of the updates since the last call, up to update `step`; None for what this run does not measure."""

    def close(self) -> None:
        """Called once, after the last `log`."""


class CsvLogger:
    """A row a call at the end of `log.csv`; each is in the file when `log` returns."""

    def __init__(self, folder: Path):
        self.file = (folder / "log.csv").open("a", newline="", encoding="utf-8")

    def log(self, step: int, values: dict[str, float | None]) -> None:
        rows = csv.DictWriter(self.file, ["step", *values], lineterminator="\n")
        if not self.file.tell():
            rows.writeheader()
        rows.writerow({"step": step, **values})
        self.file.flush()

    def close(self) -> None:
        self.file.close()


class TensorBoardLogger:
    """Event files for TensorBoard in `tensorboard/`; raises `ModuleNotFoundError` without the package `tensorboard`."""

    def __init__(self, folder: Path):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def log(self, step: int, values: dict[str, float | None]) -> None:
        for name, value in values.items():
            if value is not None:
                self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


LOGGERS = {"csv": CsvLogger, "tensorboard": TensorBoardLogger}
