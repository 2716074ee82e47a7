"""The training run through Transformers' Trainer."""

from tempfile import TemporaryDirectory

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

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
    """Train as `train` does, through `Trainer` with `TrainingArguments(**arguments)`.

    With `optimizer=None` Trainer builds its own, from `optim=…`, `learning_rate=…` and the like.
    Two of Trainer's defaults are off unless asked for, since the other loops do neither:
    clipping gradients to norm 1, and a learning rate that falls linearly.
    """
    seed = settings().seed if seed is None else seed
    with TemporaryDirectory() as folder:
        trainer = RecordingTrainer(
            model=model,
            args=_make_arguments(batches, epochs, seed, {"output_dir": folder, **arguments}),
            train_dataset=batches.dataset,
            optimizers=(optimizer, schedule),
            callbacks=[_SeedAtStart(seed)],
        )
        trainer.train_on(batches)
    return trainer.recorder.history


class RecordingTrainer(Trainer):
    """Trainer that takes its batches as they are given and records every step's loss unrounded."""

    def train_on(self, batches: DataLoader) -> None:
        """Train; afterwards the model is unwrapped again, and `recorder` holds the history."""
        self.batches, self.recorder = batches, Recorder()
        self.remove_callback(PrinterCallback)
        self.train()
        self.recorder.history.optimizer = self.optimizer.optimizer  # inside Accelerate's wrapper
        # Else the model would stay in this run's precision.
        self.accelerator.unwrap_model(self.model_wrapped, keep_fp32_wrapper=False)

    def get_train_dataloader(self):
        return self.accelerator.prepare(self.batches)

    def training_step(
        self, model: nn.Module, inputs: dict, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        learning_rate = self.optimizer.param_groups[0]["lr"]
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.recorder.add(int(self.state.epoch or 0) + 1, loss, learning_rate, inputs)
        return loss


class _SeedAtStart(TrainerCallback):
    """Trainer draws random numbers between its own seeding and the first step; start where the other loops start."""

    def __init__(self, seed: int):
        self.seed = seed

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_) -> None:
        torch.manual_seed(self.seed)


def _make_arguments(batches: DataLoader, epochs: int, seed: int, changes: dict) -> TrainingArguments:
    defaults = {
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
    }
    arguments = TrainingArguments(**(defaults | changes))
    arguments._n_gpu = min(1, arguments.n_gpu)  # one process, one device: Trainer would spread a batch over all GPUs
    return arguments
