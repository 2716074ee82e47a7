"""The training run through Accelerate."""

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from course_utils.settings import settings
from course_utils.training.history import History, Recorder


def train_with_accelerate(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: DataLoader,
    *,
    epochs: int = 1,
    schedule: LRScheduler | None = None,
    seed: int | None = None,
    **options,
) -> History:
    """Train as `train` does, with an `Accelerator(**options)` in charge of devices, precision, accumulation and backward."""
    AcceleratorState._reset_state(reset_partial_state=True)  # else the options of the process's first Accelerator stay
    accelerator = Accelerator(cpu=settings().device.type == "cpu", **options)
    model, optimizer, batches, schedule = accelerator.prepare(model, optimizer, batches, schedule)
    recorder = Recorder(optimizer.optimizer)
    torch.manual_seed(settings().seed if seed is None else seed)
    model.train()
    for epoch in range(epochs):
        batches.set_epoch(epoch)
        for batch in batches:
            learning_rate = optimizer.param_groups[0]["lr"]
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                if schedule is not None:
                    schedule.step()
                optimizer.zero_grad()
            recorder.add(epoch + 1, loss.detach(), learning_rate, batch)
    accelerator.unwrap_model(model, keep_fp32_wrapper=False)  # else the model would stay in this run's precision
    return recorder.history
