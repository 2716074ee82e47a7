"""The optimizers that are compared, each as it is commonly used, with a learning rate chosen for the course's task.

The rates are the best of a grid (`python -m benchmarks.learning_rates`), found with a seed that no comparison uses.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.utils.data import DataLoader

from course_utils import optim
from course_utils.optim import schedules
from course_utils.training.history import History
from course_utils.training.loop import train

_DECAY = 0.01


@dataclass(frozen=True)
class Contender:
    """`make(model, lr)` gives the optimizer. With `cosine` the rate warms up over a tenth of the steps and then falls to 0."""

    make: Callable[[nn.Module, float], torch.optim.Optimizer]
    lr: float
    cosine: bool = True

    def at(self, lr: float) -> "Contender":
        """The same at another learning rate."""
        return replace(self, lr=lr)

    def factor(self, step: int, steps: int) -> float:
        """What the learning rate is multiplied by at `step`, counted from 1."""
        return schedules.cosine(step, steps + 1, warmup=steps // 10) if self.cosine else 1.0

    def train(self, model: nn.Module, batches: DataLoader, seed: int) -> History:
        """One pass over `batches`."""
        optimizer, steps = self.make(model, self.lr), len(batches)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: self.factor(done + 1, steps))
        return train(model, optimizer, batches, schedule=schedule, seed=seed, progress=False)


def muon(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """Muon for the hidden matrices (Jordan et al. 2024), its rate matched to AdamW's (Liu et al. 2025); AdamW for the rest.

    Raises `AttributeError` before torch 2.9, which has no Muon.
    """
    hidden, others = optim.hidden_matrices(model)
    matrices = torch.optim.Muon(hidden, lr=lr, weight_decay=_DECAY, adjust_lr_fn="match_rms_adamw")
    return optim.Together(matrices, optim.AdamW(others, lr=lr, weight_decay=0.0))


def contenders() -> dict[str, Contender]:
    """By name, those that this torch has; the years are when each was the usual choice."""
    decayed = optim.decay_groups
    found = {
        "2014: SGD, Nesterov": Contender(
            lambda model, lr: optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True), 0.1, cosine=False
        ),
        "2018: Adam": Contender(lambda model, lr: optim.Adam(model.parameters(), lr=lr), 1e-3, cosine=False),
        "2022: AdamW, cosine": Contender(lambda model, lr: optim.AdamW(decayed(model, _DECAY), lr=lr), 3e-3),
        "2026: Muon": Contender(muon, 1e-2),
        "Adafactor": Contender(lambda model, lr: optim.Adafactor(decayed(model, 0.0), lr=lr), 0.1),
        "AdamW, 8 bits": Contender(lambda model, lr: optim.AdamW8bit(decayed(model, _DECAY), lr=lr), 3e-3),
    }
    return found if hasattr(torch.optim, "Muon") else {name: c for name, c in found.items() if c.make is not muon}
