"""The training run through Transformers' Trainer."""

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from course_utils.settings import settings
from course_utils.training.history import History, Recorder


def train_with_trainer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    batches: DataLoader,
    *,
    epochs: int = 1,
    schedule: LRScheduler | None = None,
    seed: int | None = None,
    **arguments,
) -> History:
    """As `train`, through `Trainer` with `TrainingArguments(**arguments)`; clipping and decay of the rate only if asked for.

    With `optimizer=None` Trainer builds its own, from `optim=…`, `learning_rate=…` and the like.
    """
    seed = settings().seed if seed is None else seed
    trainer = RecordingTrainer(
        model=model,
        args=_arguments(batches, epochs, seed, arguments),
        train_dataset=batches.dataset,
        optimizers=(optimizer, schedule),
        callbacks=[_SeedAtStart(seed)],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.batches = batches
    trainer.train()
    trainer.recorder.history.optimizer = trainer.optimizer.optimizer  # inside Accelerate's wrapper
    return trainer.recorder.history


class RecordingTrainer(Trainer):
    """Trainer that takes its batches as they are given and records every step's loss unrounded."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.recorder = Recorder()

    def get_train_dataloader(self):
        """The batches of the other loops, in the same order."""
        return self.accelerator.prepare(self.batches)

    def training_step(self, model, inputs, num_items_in_batch=None):
        """Trainer's own step, its loss noted."""
        learning_rate = self.optimizer.param_groups[0]["lr"]
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.recorder.add(int(self.state.epoch or 0), loss, learning_rate, inputs)
        return loss


class _SeedAtStart(TrainerCallback):
    """Trainer draws random numbers between its own seeding and the first step; start where the other loops start."""

    def __init__(self, seed: int):
        self.seed = seed

    def on_train_begin(self, args, state, control, **_):
        torch.manual_seed(self.seed)


def _arguments(batches: DataLoader, epochs: int, seed: int, changes: dict) -> TrainingArguments:
    return TrainingArguments(
        **{
            "output_dir": str(settings().home / "trainer"),
            "num_train_epochs": epochs,
            "per_device_train_batch_size": batches.batch_size,
            "use_cpu": settings().device.type == "cpu",
            "seed": seed,
            "lr_scheduler_type": "constant",
            "max_grad_norm": 0.0,
            "save_strategy": "no",
            "logging_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "dataloader_pin_memory": False,
            **changes,
        }
    )
