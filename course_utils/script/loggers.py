"""Where the figures of a run go. A `Logger` of your own needs two methods."""

import csv
from pathlib import Path
from typing import Protocol

COLUMNS = (
    "step",
    "attempt",
    "loss",
    "lr",
    "gradient_norm",
    "tokens",
    "tokens_per_second",
    "flops_per_second",
    "utilization",
    "seconds",
)


class Logger(Protocol):
    """What `train` calls, on rank 0 alone."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """The figures of the updates since the last call, up to update `step`."""

    def close(self) -> None:
        """After the last."""


class CsvLogger:
    """A row a call at the end of `log.csv`; each is in the file when `log` returns."""

    def __init__(self, folder: Path):
        path = folder / "log.csv"
        is_new = not path.is_file() or not path.stat().st_size
        self.file = path.open("a", newline="", encoding="utf-8")
        self.rows = csv.DictWriter(self.file, COLUMNS, restval="", extrasaction="ignore", lineterminator="\n")
        if is_new:
            self.rows.writeheader()

    def log(self, step, values):
        self.rows.writerow({"step": step, **values})
        self.file.flush()

    def close(self):
        self.file.close()


class TensorBoardLogger:
    """Event files for TensorBoard in `tensorboard/`; raises `ModuleNotFoundError` without the package `tensorboard`."""

    def __init__(self, folder: Path):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def log(self, step, values):
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self):
        self.writer.close()


LOGGERS = {"csv": CsvLogger, "tensorboard": TensorBoardLogger}
