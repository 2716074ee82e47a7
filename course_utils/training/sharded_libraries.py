"""What libraries that are asked to shard do on a rank without a GPU: workers to be launched, each counted.

A worker imports its library on the rank, so that the others need not have it.
"""

import logging
import warnings
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO

import torch.distributed as dist
from torch import nn

from course_utils import models
from course_utils.distributed import Traffic, counted
from course_utils.distributed.torchrun import announce
from course_utils.memory import Recipe
from course_utils.settings import set_variable
from course_utils.training.sharding import STEPS, adamw, batch_of


@dataclass
class Found:
    """What a library made of the model: `wrapper` and `kind` by name, its `elements` on this rank; what one step sent."""

    kind: str
    wrapper: str
    elements: int
    loss: float
    sent: Traffic


def accelerate_on_rank(config, recipe: Recipe) -> Found:
    """One backward pass under Accelerate's callback for FSDP, units by block."""
    announce()
    from accelerate import Accelerator, FullyShardedDataParallelPlugin

    model = models.from_configuration(config)
    callback = FullyShardedDataParallelPlugin(
        fsdp_version=2, transformer_cls_names_to_wrap=list(model._no_split_modules)
    )
    accelerator = Accelerator(cpu=True, fsdp_plugin=callback)
    model, _ = accelerator.prepare(model, adamw(model.parameters()))
    with counted() as sent:
        loss = model(**batch_of(config, recipe, dist.get_rank())).loss
        accelerator.backward(loss)
    return _found(accelerator.distributed_type, model, loss.item(), sent)


def trainer_on_rank(config, recipe: Recipe, folder: str) -> Found:
    """One step of Trainer with `fsdp=True`; `folder` is where it would save."""
    announce()
    _be_quiet()
    from transformers import PrinterCallback, Trainer, TrainingArguments

    options = {"use_cpu": True, "max_steps": 1, "report_to": [], "disable_tqdm": True, "save_strategy": "no"}
    arguments = TrainingArguments(folder, fsdp=True, ddp_find_unused_parameters=False, **options)
    rows = [{name: row[0] for name, row in batch_of(config, recipe, rank).items()} for rank in range(2)]
    trainer = Trainer(model=models.from_configuration(config), args=arguments, train_dataset=rows)
    trainer.remove_callback(PrinterCallback)
    with counted() as sent:
        result = trainer.train()
    return _found(trainer.accelerator.distributed_type, trainer.model_wrapped, result.training_loss, sent)


def deepspeed_on_rank(config, recipe: Recipe, stage: int, **zero) -> Found:
    """As many steps as `sharding.share` makes, under DeepSpeed's ZeRO of that stage; counted is the last.

    `zero` goes into its `zero_optimization`.
    """
    announce()
    _be_quiet()
    set_variable("DS_ACCELERATOR", "cpu")  # else it looks for other devices, at length
    warnings.simplefilter("ignore")
    with redirect_stdout(StringIO()):
        import deepspeed

        model = models.from_configuration(config)
        settings = {"train_micro_batch_size_per_gpu": recipe.batch, "zero_allow_untested_optimizer": True}
        settings["zero_optimization"] = {"stage": stage, **zero}
        engine = deepspeed.initialize(model=model, optimizer=adamw(model.parameters()), config=settings)[0]
    for _ in range(STEPS):
        with counted() as sent:
            loss = engine(**batch_of(config, recipe, dist.get_rank())).loss
            engine.backward(loss)
            engine.step()
    return _found(type(engine.optimizer).__name__, engine, loss.item(), sent)


def _be_quiet() -> None:
    """DeepSpeed tells on the screen what it finds and builds, also where another library imports it."""
    logging.disable(logging.WARNING)


def _found(kind, model: nn.Module, loss: float, sent: Traffic) -> Found:
    return Found(str(kind), type(model).__name__, models.parameter_count(model), loss, sent)
