"""The training loop. It never changes; a technique is a callback."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from course_utils.data import on_device
from course_utils.errors import CourseError
from course_utils.hardware import count_flops
from course_utils.memory import phase
from course_utils.settings import settings
from course_utils.training.callbacks import Callback
from course_utils.training.checkpoint import restore
from course_utils.training.evaluation import evaluate
from course_utils.training.history import History
from course_utils.training.progress import Progress


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: DataLoader,
    *,
    epochs: int = 1,
    steps: int | None = None,
    schedule: LRScheduler | None = None,
    callbacks: Sequence[Callback] = (),
    evaluate_on: Iterable[dict] | None = None,
    seed: int | None = None,
    resume_from: Path | str | None = None,
    progress: bool = True,
) -> History:
    """Train `model` for `epochs` epochs of `batches`, or until `steps` batches have been seen, and return the history.

    `batches`, as from `data.batches`, has a length, can be gone through again, and yields dicts of tensors with `input_ids`
    among them; the model takes them as keyword arguments and answers with a `.loss`. They are moved to its device.
    `schedule` steps once per update. `evaluate_on` is evaluated after each epoch. `seed` (the settings' by default) is set
    before the first step, for dropout. `resume_from` is a checkpoint of `SaveCheckpoints`; training goes on where it was
    written, with the same losses as if it had never stopped.

    Raises `CourseError` for batches or a checkpoint it cannot use, and when memory does not suffice.
    """
    if epochs < 1 or (steps is not None and steps < 1):
        raise CourseError(f"Training for {epochs} epochs and {steps} steps is no training; ask for at least 1 of each.")
    if isinstance(batches, Iterator) or not hasattr(batches, "__len__"):
        raise CourseError(
            "The batches have no length and may be gone through only once; use data.batches() or a DataLoader."
        )
    run = Run(
        model, optimizer, batches, epochs, steps, schedule, [*callbacks, Progress()] if progress else list(callbacks)
    )
    torch.manual_seed(settings().seed if seed is None else seed)
    if resume_from is not None:
        restore(run, Path(resume_from))
    with _explain_memory_errors():
        run.train(evaluate_on)
    return run.history


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict, callbacks: Sequence[Callback] = ()
) -> torch.Tensor:
    """Make one step (forward, backward, update) as `train` does, with its phases marked; returns the detached loss."""
    run = Run(model, optimizer, [batch], callbacks=list(callbacks))
    with run.callback_context():
        loss = run.forward_backward(on_device(batch, run.device))
        run.update()
    return loss.detach()


@dataclass
class Run:
    """One training run: what it trains, how far it has come, its history.

    `step` counts batches, `epoch` finished epochs, `position` batches of the epoch at work, `seconds` those of training;
    `batch` is the one at work, on the model's device.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: DataLoader | list[dict]
    epochs: int = 1
    steps: int | None = None
    schedule: LRScheduler | None = None
    callbacks: list[Callback] = field(default_factory=list)
    history: History = field(default_factory=History)
    step: int = 0
    epoch: int = 0
    position: int = 0
    seconds: float = 0.0
    batch: dict | None = None

    def __post_init__(self):
        self.device = next(self.model.parameters()).device
        self.history.optimizer = self.optimizer
        self._flops: dict[tuple, int] = {}

    def train(self, evaluate_on: Iterable[dict] | None = None) -> None:
        """Train from where the run stands to its end, and evaluate after each epoch."""
        self.model.train()
        with self.callback_context():
            while self.epoch < self.epochs and self.step < self.total_steps:
                self._train_epoch()
                if evaluate_on is not None:
                    epochs = self.step / len(self.batches)
                    result = evaluate(self.model, evaluate_on)
                    self.history.evaluations.append({"epoch": epochs, "step": self.step, **result})

    @contextmanager
    def callback_context(self) -> Iterator[None]:
        """A context in which the callbacks have started; at its end those that have started finish."""
        with ExitStack() as finishing:
            for callback in self.callbacks:
                callback.on_train_begin(self)
                finishing.callback(callback.on_train_end, self)
            yield

    @property
    def is_last_of_epoch(self) -> bool:
        """True while the batch at work is the last one of its epoch, or of the run."""
        return self.position == len(self.batches) or self.step + 1 >= self.total_steps

    @property
    def total_steps(self) -> int:
        """Batches this run will have seen at its end."""
        all_steps = self.epochs * len(self.batches)
        return all_steps if self.steps is None else min(all_steps, self.steps)

    def forward_backward(self, batch: dict) -> torch.Tensor:
        """Compute the loss and the gradients of one batch; returns the loss."""
        self.batch = batch
        with phase("forward"), ExitStack() as contexts:
            for callback in self.callbacks:
                contexts.enter_context(callback.forward(self))
            loss = self.model(**batch).loss
        with phase("backward"):
            scaled = loss
            for callback in self.callbacks:
                scaled = callback.scale_loss(self, scaled)
            scaled.backward()
        return loss

    def update(self) -> None:
        """Move the parameters, then the schedule unless a callback left the step out, then drop the gradients."""
        with phase("update"):
            for callback in self.callbacks:
                callback.before_update(self)
            step = self.optimizer.step
            for callback in self.callbacks:
                step = partial(callback.update, self, step)  # around what the callbacks before it made of the step
            result = step()
            if self.schedule is not None and result is not False:
                self.schedule.step()
            self.optimizer.zero_grad()

    def _train_epoch(self) -> None:
        if hasattr(getattr(self.batches, "sampler", None), "set_epoch"):
            self.batches.sampler.set_epoch(self.epoch)
        began = time.perf_counter() - self.seconds
        stop = self.position + self.total_steps - self.step
        for batch in islice(self.batches, self.position, stop):
            self.position += 1
            learning_rate = self.optimizer.param_groups[0]["lr"]
            loss, flops = self._compute_and_count(on_device(batch, self.device))
            wishes = [callback.should_update(self) for callback in self.callbacks]  # all are called
            if all(wishes):
                self.update()
            self.step += 1
            self.seconds = time.perf_counter() - began
            row = {"step": self.step, "epoch": self.epoch + 1, "loss": loss.detach(), "learning_rate": learning_rate}
            row |= {"tokens": batch["input_ids"].numel(), "seconds": self.seconds, "flops": flops}
            self.history.steps.append(row)
            for callback in self.callbacks:
                callback.after_batch(self)
        if self.step < self.total_steps or self.position == len(self.batches):  # else the run ends within the epoch
            self.epoch += 1
            self.position = 0
        self._wait_for_device(began)

    def _wait_for_device(self, began: float) -> None:
        """Add to the seconds of the last step those in which a GPU is still at work on it."""
        if self.device.type == "cuda" and self.history.steps:
            torch.cuda.synchronize(self.device)
            self.seconds = self.history.steps[-1]["seconds"] = time.perf_counter() - began

    def _compute_and_count(self, batch: dict) -> tuple[torch.Tensor, int]:
        """The loss, and the operations of forward and backward, counted once for each shape: counting is slow."""
        examples, *shape = batch["input_ids"].shape
        with nullcontext() if tuple(shape) in self._flops else count_flops() as counter:
            loss = self.forward_backward(batch)
        if counter is not None:  # products of matrices grow with the rows
            self._flops[tuple(shape)] = counter.get_total_flops() // examples
        return loss, examples * self._flops[tuple(shape)]


@contextmanager
def _explain_memory_errors() -> Iterator[None]:
    """A context that turns the errors of exhausted memory into one sentence."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError, too
        if not isinstance(error, (MemoryError, torch.OutOfMemoryError)) and "allocate memory" not in str(error):
            raise
        raise CourseError(
            f"Memory does not suffice for a training step at the {settings().scale.name} scale; "
            "take a smaller batch or set COURSE_SCALE to a smaller scale (checkpoints written so far are whole)."
        ) from error
