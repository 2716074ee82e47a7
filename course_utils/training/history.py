"""What a run recorded: a row per step, a row per evaluation."""

import time
from dataclasses import dataclass, field

import pandas as pd
import torch


@dataclass
class History:
    """Rows as they come in, and the optimizer that made the updates, so that a reader can check which it was.

    A loss may still be a tensor, so that recording it never waits for the device.
    """

    steps: list[dict] = field(default_factory=list)
    evaluations: list[dict] = field(default_factory=list)
    optimizer: torch.optim.Optimizer | None = None

    def frame(self) -> pd.DataFrame:
        """A row per step, indexed from 1.

        `loss` is the batch's mean; `learning_rate` the one used; `tokens` positions in the batch, padding included;
        `seconds` of training so far, evaluations not counted; `tokens_per_second` of this step (on a GPU, which works
        ahead of the clock, trust the mean over many: `History.tokens_per_second`); `flops` floating-point operations of
        forward and backward (a multiply-add is two), counted by `torch.utils.flop_counter`.
        """
        if not self.steps:
            return pd.DataFrame()
        rows = pd.DataFrame([{**row, "loss": _to_number(row["loss"])} for row in self.steps]).set_index("step")
        rows.insert(rows.columns.get_loc("seconds") + 1, "tokens_per_second", rows["tokens"] / rows["seconds"].diff())
        return rows

    def evaluation_frame(self) -> pd.DataFrame:
        """A row per evaluation: epochs so far (`epoch`), step, and what `evaluate` gave."""
        return pd.DataFrame(self.evaluations)

    @property
    def losses(self) -> list[float]:
        """The loss of each step."""
        return [_to_number(row["loss"]) for row in self.steps]

    def tokens_per_second(self, skip: int = 1) -> float:
        """Mean throughput over the run without its first `skip` steps, which also warm up; nan when nothing is left."""
        rows = self.steps[skip:]
        if not rows:
            return float("nan")
        began = self.steps[skip - 1]["seconds"] if skip else 0.0
        return sum(row["tokens"] for row in rows) / (rows[-1]["seconds"] - began)

    def state_dict(self) -> dict:
        """Plain numbers only."""
        steps = [{**row, "loss": _to_number(row["loss"])} for row in self.steps]
        return {"steps": steps, "evaluations": list(self.evaluations)}

    def load_state_dict(self, state: dict) -> None:
        self.steps, self.evaluations = list(state["steps"]), list(state["evaluations"])


class Recorder:
    """Fills a history from a loop that is not ours: no operations are counted there."""

    def __init__(self, optimizer: torch.optim.Optimizer | None = None):
        self.history, self.began = History(optimizer=optimizer), time.perf_counter()

    def add(self, epoch: int, loss: torch.Tensor, learning_rate: float, batch: dict) -> None:
        """Add a step of epoch `epoch`, counted from 1; its `seconds` are those since the recorder was made."""
        self.history.steps.append(
            {
                "step": len(self.history.steps) + 1,
                "epoch": epoch,
                "loss": loss,
                "learning_rate": learning_rate,
                "tokens": batch["input_ids"].numel(),
                "seconds": time.perf_counter() - self.began,
            }
        )


def _to_number(value: float | torch.Tensor) -> float:
    return value.item() if isinstance(value, torch.Tensor) else value
