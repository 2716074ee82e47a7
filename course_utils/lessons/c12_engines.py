"""Chapter 12: engines of the same training beside each other, and what they are silent about."""

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, redirect_stdout
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import pandas as pd
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from course_utils import data, models
from course_utils.distributed import Traffic, counted, launch
from course_utils.distributed.torchrun import announce
from course_utils.lessons.shared import inner_optimizer, largest_difference, local_part
from course_utils.memory import distinct_bytes
from course_utils.script import Job
from course_utils.script.examples import Order
from course_utils.script.loop import JobRun, prepare
from course_utils.script.optimizers import make_optimizer
from course_utils.script.rank import find_rank
from course_utils.settings import set_variable, settings

_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 260,
    "max_position_embeddings": 64,
}


def write_small_model(folder: Path, **sizes) -> dict:
    """A small Llama and a text of functions, written to `folder`, as fields of a `Job`."""
    config = folder / "config.json"
    config.write_text(models.configuration("llama", **sizes).to_json_string(), encoding="utf-8")
    text = folder / "text.txt"
    text.write_text("\n\n".join(data.load_functions()["validation"]["text"][:60]), encoding="utf-8")
    return {"model": str(config), "data": text, "sequence": 24, "batch": 12}


def small_job(folder: Path, **fields) -> Job:
    """A run of `course train` on a small model; `fields` are more of its flags."""
    defaults = {"micro_batch": 3, "quick": True, "log_every": 1000, "out": folder / "run"}
    return Job(**write_small_model(folder, **_SIZES) | defaults | fields)


# The same updates by every engine.

COUNTED_UPDATE = 2
"""The update, counted from 0, whose bytes are counted: the state is there, and no checkpoint is written."""


@dataclass
class EngineMeasurement:
    """What one rank saw of an engine."""

    wrapper: str  # the model's class
    sent: int  # bytes, in an update
    parameters: int  # bytes, kept
    state: int  # bytes, kept
    full: dict[str, torch.Tensor] = field(repr=False)  # parameters at the end


def by_flags_on_rank(job: Job) -> EngineMeasurement:
    """To be launched: what `course train` does with these flags, its update `COUNTED_UPDATE` with what it sends counted."""
    set_variable("COURSE_DEVICE", "cpu")  # also where a GPU is, which two ranks would have to share
    settings.cache_clear()
    _silence()
    this_rank = find_rank()
    run = JobRun(*prepare(job, this_rank.world_size), this_rank)
    sent = _count_sent(run.make_update, range(1, job.steps + 1))
    engine = run.engine
    return _record_rank(engine.model, engine.plain, inner_optimizer(engine.optimizer), sent)


def _record_rank(
    wrapper: nn.Module, plain: nn.Module, optimizer: torch.optim.Optimizer, sent: Traffic
) -> EngineMeasurement:
    """Bytes by memory, each once: an engine may keep a copy of its share in the optimizer."""
    shards = [getattr(p, "ds_tensor", p) for p in plain.parameters()]
    copies = [p for group in optimizer.param_groups for p in group["params"]]
    state = [v for values in optimizer.state.values() for v in values.values() if torch.is_tensor(v) and v.dim()]
    parameters, state_bytes = (distinct_bytes(map(local_part, tensors)) for tensors in ([*shards, *copies], state))
    return EngineMeasurement(type(wrapper).__name__, sent.sent, parameters, state_bytes, _gather_full(plain))


def _gather_full(plain: nn.Module) -> dict[str, torch.Tensor]:
    """Whole parameters by name, wherever their parts are."""
    gathered = nullcontext()
    if any(hasattr(p, "ds_tensor") for p in plain.parameters()):
        import deepspeed

        gathered = deepspeed.zero.GatheredParameters(list(plain.parameters()))
    with gathered:
        parts = {name: p.detach() for name, p in plain.named_parameters()}
        return {name: (p.full_tensor() if hasattr(p, "full_tensor") else p).clone() for name, p in parts.items()}


def by_accelerate_on_rank(job: Job) -> EngineMeasurement:
    """To be launched: the same updates with Accelerate, which wraps, accumulates and divides by the number of micro-batches."""
    announce()
    from accelerate import Accelerator

    plain, plain_optimizer, updates = _prepare_loop(job)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=len(updates[0]))
    model, optimizer = accelerator.prepare(plain, plain_optimizer)

    def perform(update: list) -> None:
        for batch, weight in update:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss * weight * len(update))
                optimizer.step()
                optimizer.zero_grad()

    return _record_rank(model, plain, plain_optimizer, _count_sent(perform, updates))


def by_fabric_on_rank(job: Job) -> EngineMeasurement:
    """To be launched: the same updates with Lightning Fabric, which wraps; the loop says when gradients travel, and divides."""
    announce()
    _silence()
    from lightning import Fabric

    fabric = Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy="ddp")
    fabric.launch()
    plain, plain_optimizer, updates = _prepare_loop(job)
    model, optimizer = fabric.setup(plain, plain_optimizer)

    def perform(update: list) -> None:
        for batch, weight in update:
            with fabric.no_backward_sync(model, enabled=batch is not update[-1][0]):
                fabric.backward(model(**batch).loss * weight)
        optimizer.step()
        optimizer.zero_grad()

    return _record_rank(model, plain, plain_optimizer, _count_sent(perform, updates))


def by_lightning_trainer_on_rank(job: Job) -> EngineMeasurement:
    """To be launched: the same updates with Lightning's Trainer, which has the loop too."""
    announce()
    _silence()
    from lightning import LightningModule, Trainer

    plain, plain_optimizer, updates = _prepare_loop(job)
    micro_batches = len(updates[0])
    counting = ExitStack()
    traffic = []

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.plain = plain

        def training_step(self, rows: tuple[dict, float], index: int):
            batch, weight = rows
            return self.plain(**batch).loss * weight * micro_batches

        def configure_optimizers(self):
            return plain_optimizer

        def on_train_batch_start(self, rows: tuple[dict, float], index: int):
            if index == COUNTED_UPDATE * micro_batches:
                traffic.append(counting.enter_context(counted()))

        def on_train_batch_end(self, outputs: object, rows: tuple[dict, float], index: int):
            if index == (COUNTED_UPDATE + 1) * micro_batches - 1:
                counting.close()

    options = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    options |= {"accumulate_grad_batches": micro_batches, "use_distributed_sampler": False}
    trainer = Trainer(accelerator="cpu", devices=dist.get_world_size(), max_epochs=1, **options)
    trainer.fit(Module(), DataLoader([rows for update in updates for rows in update], batch_size=None))
    return _record_rank(trainer.strategy.model, plain, plain_optimizer, *traffic)


def _prepare_loop(job: Job) -> tuple[nn.Module, torch.optim.Optimizer, list[list[tuple[dict, float]]]]:
    """Model and optimizer as `course train` makes them; for each update this rank's micro-batches with their weights.

    A weight is that of a micro-batch's loss in a sum over the micro-batches, of which the mean over ranks is taken.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    split, source, examples = prepare(job, ranks)
    order = Order(len(examples), job.batch, job.seed)
    updates = []
    for step in range(job.steps):
        parts = split.micro_batches(order[step], rank)
        total = examples.weights[order[step]].sum().item() / ranks
        updates.append([(examples[rows], examples.weights[rows].sum().item() / total) for rows in parts])
    model = source.make().train()
    return model, make_optimizer(job.optimizer, model, job.lr, job.options), updates


def _count_sent(perform: Callable[..., object], updates: Sequence) -> Traffic:
    """Make all updates; what this rank sent in update `COUNTED_UPDATE`."""
    for index, update in enumerate(updates):
        if index == COUNTED_UPDATE:
            with counted() as traffic:
                perform(update)
        else:
            perform(update)
    return traffic


def _silence() -> None:
    logging.disable()
    warnings.simplefilter("ignore")


ENGINES: dict[str, tuple[str, Callable, str]] = {
    "DDP": ("torch", by_flags_on_rank, "ddp"),
    "ZeroRedundancyOptimizer": ("torch", by_flags_on_rank, "zero1"),
    "FSDP2": ("torch", by_flags_on_rank, "fsdp2"),
    **{f"DeepSpeed {stage}": ("deepspeed", by_flags_on_rank, f"deepspeed-{stage}") for stage in (1, 2, 3)},
    "Accelerate": ("accelerate", by_accelerate_on_rank, "ddp"),
    "Lightning Fabric": ("lightning", by_fabric_on_rank, "ddp"),
    "Lightning Trainer": ("lightning", by_lightning_trainer_on_rank, "ddp"),
}
"""The package of each engine, what a rank does, and the strategy."""
ROLES = {
    "DDP": ("you", "nobody", "you: no_sync", "you"),
    "ZeroRedundancyOptimizer": ("you", "the optimizer: state", "you: no_sync", "you, consolidated first"),
    "FSDP2": ("you, each block", "FSDP2: all", "you", "you, by DCP"),
    "DeepSpeed 1": ("initialize()", "the engine: state", "the engine", "the engine"),
    "DeepSpeed 2": ("initialize()", "the engine: gradients too", "the engine", "the engine"),
    "DeepSpeed 3": ("initialize()", "the engine: all", "the engine", "the engine"),
    "Accelerate": ("prepare()", "its plug-ins", "accumulate()", "save_state()"),
    "Lightning Fabric": ("setup()", "its strategy", "you: no_backward_sync", "you: save()"),
    "Lightning Trainer": ("Trainer", "its strategy", "Trainer", "Trainer"),
}
"""Who wraps the model with each engine, who shards it, who accumulates gradients, who saves."""


def train_all(job: Job) -> dict[str, list[EngineMeasurement]]:
    """What the two ranks of each installed engine saw of the updates of `job`; a library's engines share a launch."""
    seen = {}
    for package in dict.fromkeys(package for package, *_ in ENGINES.values()):
        names = [name for name, (engine_package, *_) in ENGINES.items() if engine_package == package]
        if find_spec(package):
            by_rank = launch(_train_on_rank, 2, names, job, seconds=400)
            seen |= {name: [rank[name] for rank in by_rank] for name in names}
    return seen


def _train_on_rank(names: Sequence[str], job: Job) -> dict[str, EngineMeasurement]:
    """To be launched: the updates by each of these engines, in a folder of its own."""
    results = {}
    for name in names:
        _, work, strategy = ENGINES[name]
        results[name] = work(replace(job, strategy=strategy, out=job.out.with_name(strategy)))
    return results


def truth_on_rank(job: Job) -> dict[str, torch.Tensor]:
    """To be launched on one rank: the parameters where one process has all examples."""
    return by_flags_on_rank(replace(job, strategy="none", out=job.out.with_name("none"))).full


def compare(seen: Mapping[str, Sequence[EngineMeasurement]], expected: dict[str, torch.Tensor]) -> pd.DataFrame:
    """A row for each engine: who does what; and where it was `seen` by its ranks, how far it is from the `expected` parameters.

    The last three columns are means over the ranks, in sizes of the model: bytes sent in an update, and kept.
    """
    size = sum(tensor.nbytes for tensor in expected.values())
    table = pd.DataFrame.from_dict(ROLES, orient="index", columns=["wraps", "shards", "accumulates", "saves"])
    rows = {}
    for name, ranks in seen.items():
        rows[name] = {"off by": max(largest_difference(expected, rank.full) for rank in ranks)}
        for quantity in ("sent", "parameters", "state"):
            rows[name][quantity] = sum(getattr(rank, quantity) for rank in ranks) / len(ranks) / size
    return table.join(pd.DataFrame.from_dict(rows, orient="index"))


# What they are silent about. Each is launched on two ranks, and trains a few weights on the rows 0 to 6.


def accelerate_alone_on_rank() -> tuple[list[float], list[float]]:
    """To be launched: this rank's rows, and the learning rate after each update of a schedule that falls to 0 in 8."""
    announce()
    from accelerate import Accelerator

    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=8)
    loader = DataLoader(TensorDataset(torch.arange(7.0).view(-1, 1)))
    accelerator = Accelerator(cpu=True)
    model, optimizer, schedule, loader = accelerator.prepare(model, optimizer, schedule, loader)
    seen, rates = [], []
    for (row,) in loader:
        seen.append(row.item())
        accelerator.backward(model(row).sum())
        optimizer.step()
        schedule.step()
        rates.append(schedule.get_last_lr()[0])
    return seen, rates


def deepspeed_alone_on_rank(stage: int, clips: bool = False, **config) -> tuple[float, float]:
    """To be launched: the norm of an update of SGD with rate 1 to 16 weights whose gradients are 1 each; 4 if nobody clips.

    With `clips` the loop calls torch's `clip_grad_norm_` before the step; the norm that it saw comes second, nan without.
    """
    announce()
    _silence()
    set_variable("DS_ACCELERATOR", "cpu")
    with redirect_stdout(StringIO()):
        import deepspeed

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled
        model = nn.Linear(4, 4, bias=False)
        nn.init.zeros_(model.weight)
        config |= {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}}
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        config["zero_allow_untested_optimizer"] = True
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.backward(engine(torch.ones(1, 4)).sum())
    seen = float(nn.utils.clip_grad_norm_(engine.parameters(), 1e-3)) if clips else float("nan")
    engine.step()
    return float(_gather_full(engine.module)["weight"].norm()), seen
