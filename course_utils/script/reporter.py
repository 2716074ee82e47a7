"""What a run tells about its updates: rows for loggers, and a progress bar."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from course_utils.script import rank
from course_utils.script.expectation import Expectation
from course_utils.script.loggers import Logger

if TYPE_CHECKING:
    from course_utils.script.loop import JobRun, Update


class Reporter:
    """Tells loggers and a progress bar about the updates of `run`, one row for every `log_every` of them and for the last.

    `losses` are those of the updates that are in a row, by number. Every rank makes one of these objects, since the loss of a
    row is a sum over all ranks.
    """

    def __init__(self, run: "JobRun", expected: Expectation, loggers: Sequence[Logger] = (), progress: bool = False):
        from tqdm.auto import tqdm

        self.run, self.expected, self.loggers = run, expected, loggers
        self.losses: dict[int, float] = {}
        self.bar = tqdm(total=run.job.steps, initial=run.resumed_from, unit="update", leave=False, disable=not progress)
        self._updates: list[Update] = []  # those that are in no row yet
        self._rows: list[tuple[int, float]] = []  # tokens and seconds
        self._began = self._row_began = time.perf_counter()

    def add(self, update: "Update") -> None:
        """Show an update, and write a row where it is due."""
        job = self.run.job
        self._updates.append(update)
        self.bar.update()
        if update.number % job.log_every == 0 or update.number >= job.steps:
            self._write_row()

    @property
    def tokens_per_second(self) -> float:
        """The rate without the first row, which warms up, where there are others; nan before any."""
        rows = self._rows[1:] or self._rows or [(0, float("nan"))]
        return sum(tokens for tokens, _ in rows) / sum(seconds for _, seconds in rows)

    def _write_row(self) -> None:
        losses = {update.number: float(update.loss) for update in self._updates}  # waits for the device
        end = time.perf_counter()
        seconds = end - self._row_began
        mean = rank.sum_over_ranks(sum(losses.values()) / len(losses), self.run.device)
        tokens = sum(update.tokens for update in self._updates)
        rate = sum(update.operations for update in self._updates) / seconds  # of this rank
        machine_rate = self.expected.flops_per_second
        last = self._updates[-1]
        values = {
            "attempt": self.run.update_log.attempts if self.run.update_log else 0,
            "loss": mean,
            "lr": last.learning_rate,
            "gradient_norm": float(last.norm) if self.run.job.clipping else None,
            "tokens": tokens,
            "tokens_per_second": tokens / seconds,
            "flops_per_second": rate or None,
            "utilization": rate / machine_rate if rate and machine_rate else None,
            "seconds": end - self._began,
        }
        for logger in self.loggers:
            logger.log(last.number, values)
        self.bar.set_postfix_str(f"loss {mean:.3f}, {tokens / seconds:,.0f} tokens/s")
        self.losses |= losses
        self._rows.append((tokens, seconds))
        self._updates = []
        self._row_began = time.perf_counter()
