"""Chapter 10: what libraries do that are asked to shard on a rank without a GPU. A worker imports its library on the rank."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.distributed as dist

from course_utils import models
from course_utils.distributed import Traffic, counted
from course_utils.distributed.torchrun import announce
from course_utils.lessons.c10_fsdp_and_zero import adamw, batch_of
from course_utils.memory import Recipe

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass
class LibraryRun:
    """What a library made of the model on this rank, and what one step sent."""

    kind: str  # of distribution
    wrapper: str  # the model's class
    elements: int
    loss: float
    sent: Traffic


def accelerate_on_rank(config: "PretrainedConfig", recipe: Recipe) -> LibraryRun:
    """To be launched: one backward pass under Accelerate's plug-in for FSDP, units by block."""
    announce()
    from accelerate import Accelerator, FullyShardedDataParallelPlugin

    model = models.from_configuration(config)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, transformer_cls_names_to_wrap=list(model._no_split_modules))
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    model, _ = accelerator.prepare(model, adamw(model.parameters()))
    with counted() as sent:
        loss = model(**batch_of(config, recipe, dist.get_rank())).loss
        accelerator.backward(loss)
    kind = str(accelerator.distributed_type)
    return LibraryRun(kind, type(model).__name__, models.parameter_count(model), loss.item(), sent)


def trainer_on_rank(config: "PretrainedConfig", recipe: Recipe, folder: str) -> LibraryRun:
    """To be launched: one step of Trainer with `fsdp=True`; `folder` is where it would save."""
    announce()
    logging.disable()  # DeepSpeed, if installed, tells on the screen what it finds
    from transformers import PrinterCallback, Trainer, TrainingArguments

    arguments = TrainingArguments(
        folder,
        use_cpu=True,
        fsdp=True,
        ddp_find_unused_parameters=False,
        max_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    rows = [{name: row[0] for name, row in batch_of(config, recipe, rank).items()} for rank in range(2)]
    trainer = Trainer(model=models.from_configuration(config), args=arguments, train_dataset=rows)
    trainer.remove_callback(PrinterCallback)
    with counted() as sent:
        result = trainer.train()
    model = trainer.model_wrapped
    kind = str(trainer.accelerator.distributed_type)
    return LibraryRun(kind, type(model).__name__, models.parameter_count(model), result.training_loss, sent)
