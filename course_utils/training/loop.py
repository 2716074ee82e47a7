"""The training loop. It never changes; a technique is a plug-in."""

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from course_utils.errors import CourseError
from course_utils.memory import phase
from course_utils.settings import settings
from course_utils.training.checkpoint import restore
from course_utils.training.evaluation import evaluate
from course_utils.training.history import History
from course_utils.training.plugins import Plugin
from course_utils.training.progress import Progress


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[dict],
    *,
    epochs: int = 1,
    steps: int | None = None,
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
    plugins: Sequence[Plugin] = (),
    evaluate_on: Iterable[dict] | None = None,
    seed: int | None = None,
    resume_from: Path | str | None = None,
    progress: bool = True,
) -> History:
    """Train `model` for `epochs` passes over `batches`, or until `steps` batches have been seen, and return the history.

    `batches` yields dicts of tensors that the model takes as keyword arguments and answers with a `.loss`; they are moved
    to the model's device. `schedule` steps once per update. `evaluate_on` is evaluated after each epoch. `seed` (the
    settings' by default) is set before the first step, for dropout. `resume_from` is a checkpoint of
    `SaveCheckpoints`; training goes on where it was written, with the same losses as if it had never stopped.
    """
    if epochs < 1 or (steps is not None and steps < 1):
        raise CourseError(f"Training for {epochs} epochs and {steps} steps is no training; ask for at least 1 of each.")
    plugins = [*plugins, Progress()] if progress else list(plugins)
    run = Run(model, optimizer, batches, epochs, steps, schedule, plugins)
    torch.manual_seed(settings().seed if seed is None else seed)
    if resume_from is not None:
        run.resume(resume_from)
    run.go(evaluate_on)
    return run.history


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict) -> torch.Tensor:
    """One plain step (forward, backward, update) as `train` does it, phases marked; returns the loss, detached."""
    run = Run(model, optimizer, [batch])
    run.train_on(batch)
    return run.history.steps[-1]["loss"]


@dataclass
class Run:
    """One training run: what it trains, where it stands (`step`, `epoch`, `position` in the epoch, in batches), what it saw."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: Iterable[dict]
    epochs: int = 1
    steps: int | None = None
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None
    plugins: list[Plugin] = field(default_factory=list)
    history: History = field(default_factory=History)
    step: int = 0
    epoch: int = 0
    position: int = 0
    flops: dict[tuple, int] = field(default_factory=dict)
    seconds_before: float = 0.0

    def __post_init__(self):
        self.device = next(self.model.parameters()).device
        self.history.optimizer = self.optimizer
        self.began = time.perf_counter()

    def go(self, evaluate_on: Iterable[dict] | None = None) -> None:
        """Train from where the run stands to its end."""
        self.model.train()
        self.began = time.perf_counter() - self.seconds_before
        self._call("start")
        try:
            while self.epoch < self.epochs and not self.is_done:
                self._train_epoch()
                if evaluate_on is not None:
                    where = {"epoch": self.epoch, "step": self.step}
                    self.history.evaluations.append({**where, **evaluate(self.model, evaluate_on)})
        finally:
            self._call("finish")

    @property
    def is_done(self) -> bool:
        """True when the wanted number of steps is reached."""
        return self.steps is not None and self.step >= self.steps

    @property
    def total_steps(self) -> int:
        """Batches this run will have seen at its end."""
        planned = self.epochs * len(self.batches)
        return planned if self.steps is None else min(planned, self.steps)

    def train_on(self, batch: dict) -> None:
        """Forward, backward and, unless a plug-in holds it back, the update, on one batch."""
        batch = {name: value.to(self.device) for name, value in batch.items()}
        learning_rate = self.optimizer.param_groups[0]["lr"]
        loss = self._counted(batch)
        if all(plugin.wants_update(self) for plugin in self.plugins):
            with phase("update"):
                self._update()
        self._record(batch, loss, learning_rate)

    def resume(self, path: Path | str) -> None:
        """Stand where the checkpoint at `path` was written."""
        restore(self, path)

    def _train_epoch(self) -> None:
        set_epoch = getattr(getattr(self.batches, "sampler", None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self.epoch)
        for batch in islice(self.batches, self.position, None):
            if self.is_done:
                return
            self.position += 1
            self.train_on(batch)
            self._call("after_step")
        self.epoch, self.position = self.epoch + 1, 0

    def _counted(self, batch: dict) -> torch.Tensor:
        """Forward and backward; operations are counted on the first batch of each shape and remembered."""
        shape = tuple(batch["input_ids"].shape)
        if shape in self.flops:
            return self._forward_backward(batch)
        with FlopCounterMode(display=False) as counter:
            loss = self._forward_backward(batch)
        self.flops[shape] = counter.get_total_flops()
        return loss

    def _forward_backward(self, batch: dict) -> torch.Tensor:
        with phase("forward"), ExitStack() as contexts:
            for plugin in self.plugins:
                contexts.enter_context(plugin.forward(self))
            loss = self.model(**batch).loss
        with phase("backward"):
            objective = loss
            for plugin in self.plugins:
                objective = plugin.objective(self, objective)
            objective.backward()
        return loss.detach()

    def _update(self) -> None:
        self._call("before_update")
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        self.optimizer.zero_grad()

    def _record(self, batch: dict, loss: torch.Tensor, learning_rate: float) -> None:
        self.step += 1
        ids = batch["input_ids"]
        self.history.steps.append(
            {
                "step": self.step,
                "epoch": self.epoch,
                "loss": loss,
                "learning_rate": learning_rate,
                "tokens": ids.numel(),
                "seconds": time.perf_counter() - self.began,
                "flops": self.flops[tuple(ids.shape)],
            }
        )

    def _call(self, moment: str) -> None:
        for plugin in self.plugins:
            getattr(plugin, moment)(self)
