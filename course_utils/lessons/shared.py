"""What the experiments of several chapters share."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader

from course_utils.memory.trace.allocator import Account, allocator_of
from course_utils.optim import schedules
from course_utils.training import History, train


@dataclass(frozen=True)
class Contender:
    """An optimizer to compare, made by `make(model, lr)`."""

    make: Callable[[nn.Module, float], torch.optim.Optimizer]
    lr: float
    cosine: bool = True  # the rate warms up over a tenth of the steps and then falls to 0

    def with_lr(self, lr: float) -> "Contender":
        """A copy with another learning rate."""
        return replace(self, lr=lr)

    def factor(self, step: int, steps: int) -> float:
        """What the learning rate is multiplied by at `step`, counted from 1."""
        return schedules.cosine(step, steps + 1, warmup=steps // 10) if self.cosine else 1.0

    def train(self, model: nn.Module, batches: DataLoader, seed: int) -> History:
        """One epoch over `batches`."""
        optimizer = self.make(model, self.lr)
        steps = len(batches)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda updates: self.factor(updates + 1, steps))
        return train(model, optimizer, batches, schedule=schedule, seed=seed, progress=False)


def largest_difference(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """The largest absolute difference of an element, over all parameters by name."""
    return max((ours[name] - theirs[name]).abs().max().item() for name in ours)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a tensor that FSDP2 sharded; any other tensor as it is."""
    return getattr(tensor, "_local_tensor", tensor)


def inner_optimizer(optimizer: object) -> torch.optim.Optimizer:
    """The optimizer that has the state: the one inside, where a wrapper shards it."""
    return getattr(optimizer, "optim", getattr(optimizer, "optimizer", optimizer))


@cache
def read_runs(path: Path) -> pd.DataFrame:
    """A table of stored runs, a row each, from the JSON that a benchmark wrote."""
    return pd.DataFrame(json.loads(path.read_text(encoding="utf-8")))


def account_of(work: Callable[[], object], device: str | torch.device = "cpu") -> Account:
    """What the device's allocator did during `work`."""
    allocator = allocator_of(torch.device(device))
    with allocator.recording(), allocator.measured():
        work()
    return allocator.account()
