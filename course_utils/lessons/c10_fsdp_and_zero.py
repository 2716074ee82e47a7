"""Chapter 10: the same training shared out in several ways on real ranks, and its figures.

Each way is measured: bytes at the peak, bytes on the wire, the parameters afterwards, a timeline.
"""

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from course_utils import models
from course_utils.distributed import DDP, FSDP, ShardedOptimizer, Traffic, counted
from course_utils.distributed.torchrun import announce
from course_utils.memory import Recipe, distinct_bytes, estimate
from course_utils.memory.step.sharded import units_of
from course_utils.memory.trace.allocator import Account, allocator_of, quiet
from course_utils.settings import set_variable
from course_utils.training.profile import PHASES
from course_utils.units import MiB, format_bytes, format_counted, format_seconds
from course_utils.viz.parts import byte_unit, cell, drawing, subplots
from course_utils.viz.plots import Span, layers, legend, lines, panels, timeline, together
from course_utils.viz.style import COLORS, writing

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# The ways to share a model out. Each gives a model, its optimizer, and a function for all parameters by name.


@dataclass
class Setup:
    """A model as one way wraps it, its optimizer, and how to get the full parameters by name."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | ShardedOptimizer
    full: Callable[[], dict[str, torch.Tensor]]

    def step(self, batch: dict) -> torch.Tensor:
        """Forward, backward, update, each with a mark for the profiler."""
        with record_function("forward"):
            loss = self.model(**batch).loss
        with record_function("backward"):
            loss.backward()
        with record_function("update"):
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.detach()


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.AdamW:
    """torch's, one tensor after another, so that its temporaries are small."""
    return torch.optim.AdamW(parameters, lr=1e-3, foreach=False)


def ddp(model: nn.Module) -> Setup:
    """Everything on every rank."""
    wrapped = DDP(model)
    return Setup(wrapped, adamw(wrapped.parameters()), model.state_dict)


def zero1(model: nn.Module) -> Setup:
    """The optimizer's state is sharded; each gradient goes to the owner of its state only."""
    optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3, foreach=False)
    return Setup(model, optimizer, model.state_dict)


def torch_zero1(model: nn.Module) -> Setup:
    """PyTorch's own: `ZeroRedundancyOptimizer` beside its DDP."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.AdamW, lr=1e-3, foreach=False)
    return Setup(wrapped, optimizer, model.state_dict)


def zero2(model: nn.Module) -> Setup:
    """Gradients too; the parameters stay gathered from a unit's forward pass to its backward pass."""
    return zero3(model, reshard_after_forward=False)


def zero3(model: nn.Module, least: int | None = None, **options) -> Setup:
    """Parameters too. A unit is a block, or a module with at least `least` parameters."""
    units = units_of(model) if least is None else modules_of_at_least(model, least)[0]
    wrapped = FSDP(model, units, **options)
    return Setup(wrapped, adamw(wrapped.parameters()), wrapped.full_state_dict)


def fsdp2(model: nn.Module, mesh: Sequence[int] | None = None, prefetch: bool = False, **options) -> Setup:
    """PyTorch's own. `mesh` of two numbers shards within groups and replicates between them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    shape = tuple(mesh or (dist.get_world_size(),))
    options["mesh"] = init_device_mesh("cpu", shape, mesh_dim_names=("between", "within")[-len(shape) :])
    units = units_of(model)
    for unit in [*units, model]:
        fully_shard(unit, **options)
    if prefetch:
        model._set_unshard_async_op(True)  # on a GPU a stream of its own does this
        for unit, following in zip(units, units[1:], strict=False):
            unit.set_modules_to_forward_prefetch([following])
    full = lambda: {name: tensor.full_tensor() for name, tensor in model.state_dict().items()}  # noqa: E731
    return Setup(model, adamw(model.parameters()), full)


WAYS = {"DDP": ddp, "ZeRO-1": zero1, "ZeRO-2": zero2, "ZeRO-3": zero3, "FSDP2": fsdp2, "torch's ZeRO-1": torch_zero1}


def modules_of_at_least(module: nn.Module, least: int) -> tuple[list[nn.Module], int]:
    """The smallest modules with `least` parameters outside of smaller ones, inner ones first; how many are left over."""
    modules, left = [], sum(p.numel() for p in module.parameters(recurse=False))
    for child in module.children():
        inside, outside = modules_of_at_least(child, least)
        modules += inside
        left += outside
    if left >= least and not isinstance(module, nn.ModuleList):  # which has no forward pass
        return [*modules, module], 0
    return modules, left


# What one rank sees of a way.


@dataclass
class Seen:
    """What one rank saw: `peak` bytes of the highest of `RECORDED` steps, all that it keeps included; `traffic` of a step.

    Steps count whose books balance: where a thread of gloo's releases a tensor last, the profiler does not see it.

    `carried` bytes went over the loopback device in the quietest of these steps, shared out over the ranks; None where the
    system does not count them. `kept` are elements of parameters and of optimizer state between steps; `full` the parameters
    at the end.
    """

    peak: int
    carried: float | None
    kept: dict[str, int]
    kinds: tuple[str, ...]
    traffic: Traffic
    losses: list[float]
    full: dict[str, torch.Tensor] = field(repr=False)


STEPS = 5
"""Of training, the same for every way; after them one is counted."""
RECORDED = 8
"""Steps whose allocations are recorded."""


def measure_way(way: str, config: "PretrainedConfig", recipe: Recipe, **options) -> Seen:
    """To be launched: `STEPS` steps of the model of `config` in one of `WAYS`, with other batches on each rank.

    The bytes of a step are those of steps after them. A peak is what the tensors take that a rank keeps (parameters, buffers,
    optimizer state, batch), and what the allocator saw on top of what was there when the step began.
    """
    setup = WAYS[way](models.from_configuration(config), **options)
    batch = batch_of(config, recipe, dist.get_rank())
    losses = [setup.step(batch).item() for _ in range(STEPS)]
    trained = {name: tensor.detach().clone() for name, tensor in setup.full().items()}
    with counted() as traffic:
        setup.step(batch)
    above, carried = record(lambda: setup.step(batch))
    inner = {"ZeRO-1": "optimizer", "torch's ZeRO-1": "optim"}.get(way)
    optimizer = getattr(setup.optimizer, inner) if inner else setup.optimizer
    state = [v for values in optimizer.state.values() for v in values.values() if torch.is_tensor(v)]
    tensors = [*setup.model.parameters(), *setup.model.buffers(), *state, *batch.values()]
    return Seen(
        distinct_bytes(map(local_part, tensors)) + above,
        carried,
        {"parameters": _elements(setup.model.parameters()), "optimizer state": _elements(s for s in state if s.dim())},
        tuple(sorted({type(p).__name__ for p in setup.model.parameters()})),
        traffic,
        losses,
        trained,
    )


def bytes_carried(work: Callable[[], object]) -> int | None:
    """What the loopback device sends while all ranks do `work`, headers and other programs' bytes included."""
    dist.barrier()
    before = loopback_sent()
    dist.barrier()
    work()
    dist.barrier()
    after = loopback_sent()
    return None if before is None else after - before


def loopback_sent() -> int | None:
    """Bytes that Linux's loopback device has sent so far, the tenth column of the kernel's table; None elsewhere."""
    try:
        lines = Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split(":")[1].split()[8]) for line in lines if line.strip().startswith("lo:")), None)


def accumulate(
    config: "PretrainedConfig", recipe: Recipe, micro_batches: int, sync: bool = True, reshard: bool = True
) -> tuple:
    """To be launched: an update of FSDP2 from so many micro-batches. Returns calls, MiB sent on a ring, and MiB at the peak.

    Without `sync` gradients are only sent with the last micro-batch, without `reshard` parameters stay gathered until then.
    """
    setup, batch = fsdp2(models.from_configuration(config)), batch_of(config, recipe, dist.get_rank())
    setup.step(batch)

    def update() -> None:
        for number in range(1, micro_batches + 1):
            setup.model.set_requires_gradient_sync(sync or number == micro_batches)
            setup.model.set_reshard_after_backward(reshard or number == micro_batches)
            setup.model(**batch).loss.backward()
        setup.optimizer.step()
        setup.optimizer.zero_grad()

    with counted() as traffic:
        update()
    calls, (above, _) = traffic.frame()["calls"], record(update)
    return calls["all-gather"], calls["reduce-scatter"], round(traffic.sent / MiB, 2), round(above / MiB, 2)


def record(step: Callable[[], object]) -> tuple[int, float | None]:
    """`step` on all ranks at once, `RECORDED` times and on until each has a step whose books balance, or five times as often.

    Returns the bytes at the highest peak, above the start, and `bytes_carried` in the quietest step, for each rank.
    """
    accounts, carried, done = [], [], torch.zeros(())
    while len(accounts) < RECORDED or (not done and len(accounts) < 5 * RECORDED):
        allocator = allocator_of(torch.device("cpu"))
        with allocator.recording(), allocator.measured():
            carried.append(bytes_carried(step))
        accounts.append(allocator.account())
        done = torch.tensor(float(any(account.left == 0 for account in accounts)))
        dist.all_reduce(done, dist.ReduceOp.MIN)
    return highest(accounts), None if None in carried else min(carried) / dist.get_world_size()


def highest(accounts: Sequence[Account]) -> int:
    """The highest peak of steps whose books balance: the profiler does not see what a thread of gloo's releases last."""
    balanced = min(account.left for account in accounts)
    return max(account.above_start for account in accounts if account.left == balanced)


def built(config: "PretrainedConfig", device: str) -> tuple[Setup, int]:
    """To be launched: FSDP2 of a model that was built on `device`; on "meta", its shards get memory and are not filled yet.

    Also returns the bytes at the peak of building it.
    """
    allocator = allocator_of(torch.device("cpu"))
    with allocator.recording(), allocator.measured():
        with torch.device(device):
            model = models.from_configuration(config)
        setup = fsdp2(model)
        if device == "meta":
            model.to_empty(device="cpu")  # each rank's shards only
            model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its buffers are in no checkpoint
    return setup, allocator.account().above_start


def measure_each(ways: Sequence[str], config: "PretrainedConfig", recipe: Recipe) -> dict[str, Seen]:
    """To be launched: `measure_way` for one way after the other."""
    return {way: measure_way(way, config, recipe) for way in ways}


@dataclass(frozen=True)
class Sizes:
    """`P` parameters: `u` in each of `B` blocks, `h` in the output layer. A block saves `a` bytes, the loss takes `loss`."""

    P: int
    B: int
    u: int
    h: int
    a: int
    loss: int

    @classmethod
    def of(cls, config: "PretrainedConfig", recipe: Recipe) -> "Sizes":
        """Of a model of Transformers and a step of `recipe`, in 32 bits."""
        network = models.from_configuration(config)
        blocks, head = units_of(network), network.lm_head.weight.numel()
        # The logits' log-probabilities, the gradient of these, and that of the logits.
        loss = 12 * recipe.batch * recipe.sequence * config.vocab_size
        sizes = models.parameter_count(network), len(blocks), models.parameter_count(blocks[0]), head
        return cls(*sizes, block_activations(config, recipe), loss)


def two_moments(way: str, s: Sizes, N: int) -> dict[str, float]:  # noqa: N803
    """Bytes of a rank of N at its two fullest moments, with AdamW in 32 bits and gloo, which copies what it sums.

    "loss": backward begins, and all activations wait. "gradients": the gradients of all, or of one unit, are summed.
    """
    parameters = gradients = 4 * s.P  # 4 bytes each
    averages = 8 * s.P  # Adam's two
    if way in ("DDP", "ZeRO-1"):
        kept = parameters + (averages if way == "DDP" else averages / N)
        copies = gradients if way == "DDP" else 0  # DDP's buckets
        return {"loss": kept + s.B * s.a + s.loss, "gradients": kept + gradients + copies}
    kept = (parameters + averages) / N  # shards
    root, unit, head = 4 * (s.P - s.B * s.u), 4 * s.u, 4 * s.h  # a tensor of each, gathered or a gradient
    waits = s.a + (unit if way == "ZeRO-2" else 0)  # of a block until its backward: activations, gathered parameters
    first, last = unit / N + (s.B - 1) * waits, s.B * unit / N  # gradient shards, and what the other blocks still hold
    # The root's parameters are gathered and the head's gradient waits. The block's gradient is there three times:
    # as it arises, in the flat row that is sent, and in the sum that arrives.
    in_block = root + head + 3 * unit + max(first, last)
    in_root = gradients / N + 3 * root  # gradient shards of all, and the root's gradient three times
    return {"loss": kept + root + s.B * waits + s.loss, "gradients": kept + max(in_block, in_root)}


def train_alone(config: "PretrainedConfig", recipe: Recipe, ranks: int) -> dict[str, torch.Tensor]:
    """The truth: one process that takes the batches of all `ranks` in turn and divides by their number.

    It has a rank's share of the threads, since kernels add in another order with more of them.
    """
    model = models.from_configuration(config)
    optimizer, threads = adamw(model.parameters()), torch.get_num_threads()
    torch.set_num_threads(max(1, threads // ranks))
    try:
        for _ in range(STEPS):
            for rank in range(ranks):
                (model(**batch_of(config, recipe, rank)).loss / ranks).backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        torch.set_num_threads(threads)
    return model.state_dict()


def batch_of(config: "PretrainedConfig", recipe: Recipe, rank: int) -> dict[str, torch.Tensor]:
    """The batch of a rank, the same in every process."""
    draw = torch.Generator().manual_seed(1000 + rank)
    ids = torch.randint(1, config.vocab_size, (recipe.batch, recipe.sequence), generator=draw)
    return {"input_ids": ids, "labels": ids.clone()}


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Over all parameters by name."""
    return max((one[name] - other[name]).abs().max().item() for name in one)


def _elements(tensors: Iterable[torch.Tensor]) -> int:
    return sum(local_part(tensor).numel() for tensor in tensors)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What lies on this rank of it."""
    return getattr(tensor, "_local_tensor", tensor)


# A real timeline.

COLLECTIVES = {"allgather": "all-gather", "reduce_scatter": "reduce-scatter", "allreduce": "all-reduce"}


@dataclass(frozen=True)
class Activity:
    """What a rank did from `start` to `end`, in seconds of a clock that all ranks share: a phase, or a collective."""

    what: str
    start: float
    end: float

    @property
    def computes(self) -> bool:
        """Whether it is a phase."""
        return self.what in PHASES


def trace_each(
    ways: dict[str, tuple[str, dict]], config: "PretrainedConfig", recipe: Recipe
) -> dict[str, list[Activity]]:
    """To be launched: what this rank does in the third step of each; a way is a name of `WAYS` and its options."""
    activities = {}
    for name, (way, options) in ways.items():
        setup, batch = (
            WAYS[way](models.from_configuration(config), **options),
            batch_of(config, recipe, dist.get_rank()),
        )
        for _ in range(2):
            setup.step(batch)
        dist.barrier()
        profiler = profile(activities=[ProfilerActivity.CPU])
        with quiet():
            profiler.start()
        setup.step(batch)
        with quiet():
            profiler.stop()
        events = profiler.profiler.kineto_results.events()
        (computing,) = {e.start_thread_id() for e in events if e.name() in PHASES}
        # gloo's own thread copies in its collectives: that is no computing of the step.
        own = (e for e in events if e.start_thread_id() == computing or not e.name().startswith("aten::"))
        activities[name] = read_activities([(e.name(), e.start_ns() / 1e9, e.end_ns() / 1e9) for e in own])
    return activities


def read_activities(events: Sequence[tuple[str, float, float]]) -> list[Activity]:
    """From the profiler's events as (name, start, end): each phase's stretches of operators, and the collectives."""
    events = sorted(events, key=lambda event: event[1])
    activities: list[Activity] = []
    for phase, begin, end in (event for event in events if event[0] in PHASES):
        stretches: list[list[float]] = []
        for _, a, b in (e for e in events if e[0].startswith("aten::") and begin <= e[1] < end):
            if stretches and a <= stretches[-1][1] + 150e-6:  # a short gap is Python between two operators
                stretches[-1][1] = max(stretches[-1][1], b)
            else:
                stretches.append([a, b])
        activities += [Activity(phase, a, b) for a, b in stretches]
    kinds = (
        kind for name, *_ in events if name.startswith("c10d::") for part, kind in COLLECTIVES.items() if part in name
    )
    # gloo works in a thread of its own, in the order of the calls, and may name one collective after another.
    works = [event for event in events if event[0].startswith("gloo:")]
    activities += [Activity(kind, a, b) for kind, (_, a, b) in zip(kinds, works, strict=False)]
    return sorted(activities, key=lambda activity: activity.start)


def overlap(activities: Sequence[Activity]) -> float:
    """The share of the time of collectives in which the rank also computed."""
    sent, computed = ([a for a in activities if a.computes == computes] for computes in (False, True))
    shared = sum(max(0.0, min(a.end, b.end) - max(a.start, b.start)) for a in sent for b in computed)
    return min(1.0, shared / sum(a.end - a.start for a in sent)) if sent else 0.0


# What libraries do that are asked to shard on a rank without a GPU. A worker imports its library on the rank.


@dataclass
class Found:
    """What a library made of the model: `wrapper` and `kind` by name, its `elements` on this rank; what one step sent."""

    kind: str
    wrapper: str
    elements: int
    loss: float
    sent: Traffic


def accelerate_on_rank(config: "PretrainedConfig", recipe: Recipe) -> Found:
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
    return Found(kind, type(model).__name__, models.parameter_count(model), loss.item(), sent)


def trainer_on_rank(config: "PretrainedConfig", recipe: Recipe, folder: str) -> Found:
    """To be launched: one step of Trainer with `fsdp=True`; `folder` is where it would save."""
    announce()
    logging.disable()  # DeepSpeed, if installed, tells on the screen what it finds
    from transformers import PrinterCallback, Trainer, TrainingArguments

    options = {"use_cpu": True, "max_steps": 1, "report_to": [], "disable_tqdm": True, "save_strategy": "no"}
    arguments = TrainingArguments(folder, fsdp=True, ddp_find_unused_parameters=False, **options)
    rows = [{name: row[0] for name, row in batch_of(config, recipe, rank).items()} for rank in range(2)]
    trainer = Trainer(model=models.from_configuration(config), args=arguments, train_dataset=rows)
    trainer.remove_callback(PrinterCallback)
    with counted() as sent:
        result = trainer.train()
    kind, model = str(trainer.accelerator.distributed_type), trainer.model_wrapped
    return Found(kind, type(model).__name__, models.parameter_count(model), result.training_loss, sent)


def deepspeed_on_rank(config: "PretrainedConfig", recipe: Recipe, stage: int, **zero) -> Found:
    """To be launched: `STEPS` steps under DeepSpeed's ZeRO of that stage; `sent` is of the last.

    `zero` goes into its `zero_optimization`.
    """
    announce()
    logging.disable()
    warnings.simplefilter("ignore")
    set_variable("DS_ACCELERATOR", "cpu")  # else it looks for other devices, at length
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
    kind = type(engine.optimizer).__name__
    return Found(kind, type(engine).__name__, models.parameter_count(engine), loss.item(), sent)


def block_activations(config: "PretrainedConfig", recipe: Recipe) -> int:
    """What one block saves for its backward pass: a model's activations with and without its last block."""
    saved = []
    for blocks in (config.num_hidden_layers, config.num_hidden_layers - 1):
        shallow = type(config)(**{**config.to_dict(), "num_hidden_layers": blocks})
        saved.append(estimate(shallow, recipe).by_instant()["forward"]["activations"])
    return saved[0] - saved[1]


def tokens_that_hide(flops: float, bandwidth: float, ranks: int, itemsize: int = 2) -> float:
    """From how many tokens a rank on computing a unit takes as long as gathering the next one, whatever their size.

    A gather sends (N − 1)/N · `itemsize` bytes a parameter, a token costs two operations a parameter.
    """
    return (ranks - 1) / ranks * itemsize / 2 * flops / bandwidth


# Figures.

STAGES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
LOOKS = {
    "forward": ("activations", ""),
    "backward": ("gradients", ""),
    "update": ("optimizer state", ""),
    "all-gather": ("parameters", "///"),
    "reduce-scatter": ("warning", "\\\\\\"),
    "all-reduce": ("temporaries", "xxx"),
}
"""Of what a rank does: color and hatch."""


def sharding_figure(ranks: int = 4) -> tuple[Figure, str]:
    """The idea: of parameters, gradients and optimizer state, what each rank keeps under DDP and ZeRO-1 to 3."""
    figure, axes = panels(height=3.9)
    kinds, height = ("parameters", "gradients", "optimizer state"), 0.76 / ranks
    for row, stage in enumerate(STAGES):
        axes.text(-0.15, row + 0.38, stage, ha="right", va="center", fontsize=11)
        for rank, (column, kind), part in product(range(ranks), enumerate(kinds), range(ranks)):
            is_sharded = row >= len(kinds) - column
            color = kind if part == rank or not is_sharded else "grid"
            corner = (1.15 * rank + 0.33 * column, row + part * height)
            cell(axes, *corner, color, width=0.29, height=height, edgecolor=COLORS["paper"])
    for rank in range(ranks):
        axes.text(1.15 * rank + 0.48, -0.12, f"rank {rank}", ha="center")
    drawing(axes, (-0.9, 1.15 * ranks), (len(STAGES) - 0.05, -0.35))
    legend(axes, *((kind, kind) for kind in kinds), ("kept by others", "grid"))
    axes.figure.suptitle("Each stage of ZeRO shards one kind more", x=0.01, ha="left", fontsize=11)
    return figure, (
        f"What each of {ranks} ranks keeps. DDP: all parameters, gradients and optimizer state on each. ZeRO-1: a share of "
        "the optimizer state. ZeRO-2: a share of the gradients too. ZeRO-3: a share of the parameters too."
    )


def unit_life(unit: float, ranks: int, activations: float) -> list[tuple[str, str, dict[str, float]]]:
    """What happens to one unit in a step of ZeRO-3: (what, on which lane, bytes of it on a rank meanwhile by kind).

    `unit` are the bytes of its parameters, `activations` those that it saves. Lanes are "wire", "computes" and "waits".
    """
    shard, whole, saved = {"shard": unit / ranks}, {"gathered": unit}, {"activations": activations}
    three_times = {"gradient": unit, "flat row": unit, "arriving sum": unit}
    return [
        ("all-gather", "wire", shard | whole),
        ("forward", "computes", shard | whole | saved),
        ("other units", "waits", shard | saved),
        ("all-gather", "wire", shard | whole | saved),
        ("backward", "computes", shard | whole | saved | {"gradient": unit}),
        ("reduce-scatter", "wire", shard | three_times | {"gradient shard": unit / ranks}),
        ("other units", "waits", shard | {"gradient shard": unit / ranks}),
    ]


LIFE = {
    "shard": ("parameters", ""),
    "gathered": ("recomputed", ""),
    "activations": ("activations", ""),
    "gradient": ("gradients", ""),
    "flat row": ("communication", ""),
    "arriving sum": ("temporaries", ""),
    "gradient shard": ("gradients", "///"),
}
"""Of what lies there of a unit: color and hatch."""


def unit_life_figure(unit: float, ranks: int, activations: float) -> tuple[Figure, str]:
    """The life of a unit from left to right: above what is done with it, below its bytes on a rank, stacked."""
    life = unit_life(unit, ranks, activations)
    size_name, size = byte_unit(unit)
    figure, (above, below) = subplots(2, figsize=(7.6, 4.4), layout="constrained", sharex=True, height_ratios=(1, 5))
    colors, seen = {"wire": "warning", "computes": "third", "waits": "not attributed"}, set()
    for place, (what, lane, held) in enumerate(life):
        above.add_patch(
            Rectangle((place - 0.47, 0), 0.94, 1, facecolor="none", edgecolor=COLORS[colors[lane]], linewidth=1.6)
        )
        above.text(place, 0.5, f"{what}\n({lane})", ha="center", va="center", fontsize=8, color=writing(colors[lane]))
        bottom = 0.0
        for kind, count in held.items():
            color, hatch = LIFE[kind]
            look = {"color": COLORS[color], "hatch": hatch, "edgecolor": COLORS["paper"], "linewidth": 0.8}
            below.bar(place, count / size, 0.94, bottom=bottom, **look)
            if kind not in seen:
                frame = {"boxstyle": "round,pad=0.15", "facecolor": COLORS["paper"], "edgecolor": "none"}
                below.text(place, bottom + count / size / 2, kind, ha="center", va="center", fontsize=8, bbox=frame)
                seen.add(kind)
            bottom += count / size
        below.text(place, bottom, f"{bottom:.2f}", ha="center", va="bottom", fontsize=9)
    above.set(xlim=(-0.6, len(life) - 0.4), ylim=(-0.1, 1.1))
    above.axis("off")
    most_held = max(sum(held.values()) for *_, held in life) / size
    below.set(ylabel=f"of this unit on a rank, {size_name}", xticks=[], ylim=(0, 1.12 * most_held))
    below.grid(axis="x", visible=False)
    title = "A block is whole twice in a step, and at its end its gradient is held three times"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    moments = "; ".join(
        f"{what} ({lane}): " + ", ".join(f"{kind} {format_bytes(count)}" for kind, count in held.items())
        for what, lane, held in life
    )
    return figure, f"One unit's life under ZeRO-3 on {ranks} ranks, and its bytes on a rank. {moments}."


def hiding_figure(parameters: float, flops: float, links: Mapping[str, float], ranks: int) -> tuple[Figure, str]:
    """Seconds to compute a block of `parameters` forward against tokens a rank, beside those to gather the next, in 16 bits.

    `flops` a second that the device reaches; `links` are bytes a second by name.
    """
    figure, axes = subplots(figsize=(7.6, 3.6), layout="constrained")
    tokens = np.geomspace(100, 100_000, 50)
    axes.plot(tokens, 1e3 * 2 * parameters * tokens / flops, color=COLORS["third"])
    axes.text(2_400, 0.75e3 * 2 * parameters * 2_400 / flops, "computing a block", color=writing("third"), va="top")
    crossings = []
    for (name, bandwidth), color in zip(links.items(), ("first", "second"), strict=False):
        gather, crossing = (ranks - 1) / ranks * 2 * parameters / bandwidth, tokens_that_hide(flops, bandwidth, ranks)
        axes.axhline(1e3 * gather, color=COLORS[color], linestyle="--")
        place, side = (95_000, "right") if crossing < 3000 else (105, "left")
        axes.text(place, 1.12e3 * gather, f"gathering the next, {name}", color=writing(color), ha=side, va="bottom")
        axes.plot(crossing, 1e3 * gather, "o", color=COLORS[color], markersize=7)
        axes.annotate(
            f"{crossing:,.0f} tokens", (crossing, 1e3 * gather), (6, -6), textcoords="offset points", va="top"
        )
        crossings.append(f"{crossing:,.0f} ({name})")
    axes.set(xscale="log", yscale="log", xlabel="tokens a rank computes in a step", ylabel="milliseconds per block")
    axes.set_title(f"A gather hides behind computing from {' or '.join(crossings)} tokens on", fontsize=10)
    return figure, (
        f"Milliseconds to compute a block of {parameters / 1e6:.0f} million parameters forward, rising with a rank's tokens, "
        f"and to gather the next one on {ranks} ranks, level. They cross at {', '.join(crossings)} tokens."
    )


def lanes_figure(runs: Mapping[str, Sequence[Activity]]) -> tuple[Figure, str]:
    """What rank 0 did in a real step of each run, on one time axis: a lane for what it computed, one for its collectives."""
    jobs, by_run = [], []
    for row, (name, lane) in enumerate(runs.items()):
        zero = min(activity.start for activity in lane)
        jobs += [(row, a.what, a.start - zero, a.end - zero) for a in lane]
        sent = ", ".join(f"{count} {what}" for what, count in Counter(a.what for a in lane if not a.computes).items())
        computed = format_seconds(sum(a.end - a.start for a in lane if a.computes))
        by_run.append(f"{name}: computes {computed} and takes part in {sent}")
    axes = panels(height=1.2 + 0.95 * len(runs))[1]
    names = [f"{run}: {does}" for run in runs for does in ("computes", "sends, receives")]
    shares = ", ".join(f"{name} {overlap(lane):.0%}" for name, lane in runs.items())
    title = f"Communication hidden by computing: {shares}"
    _draw_lanes(axes, jobs, names, title, "time of a step of rank 0", unit="seconds")
    return axes.figure, f"A step of rank 0 on one time axis. {'; '.join(by_run)}."


def _draw_lanes(axes: Axes, jobs: Sequence[tuple], names: Sequence[str], title: str, x: str, unit: str = "") -> None:
    """`jobs` are (pair of lanes from the top, what, start, end); `names` those of the lanes."""
    spans = [Span(2 * row + (what not in PHASES), start, end, what) for row, what, start, end in jobs]
    timeline(spans, names, title, x, unit=unit, looks=LOOKS, axes=axes)
    used = {what: look for what, look in LOOKS.items() if any(job[1] == what for job in jobs)}
    looks = ({"facecolor": COLORS[color], "hatch": hatch} for color, hatch in used.values())
    handles = [Patch(**look, edgecolor=COLORS["paper"]) for look in looks]
    axes.figure.legend(handles, list(used), loc="outside upper center", ncols=len(used))


def units_figure(table: pd.DataFrame, shards: float) -> tuple[Figure, str]:
    """Peak and largest unit against the number of units: `table` has columns `units`, `peak`, `gathered` (bytes).

    `shards` are the bytes that stay however small the units."""
    by_units = table.set_index("units")
    data = {"peak, measured": by_units["peak"], "largest unit": by_units["gathered"]}
    looks = {"peak, measured": ("measured", "o-"), "largest unit": ("temporaries", "s--"), "all shards": ("ink", ":")}
    title, levels = "Smaller units save memory until the largest is one matrix", {"all shards": shards}
    return lines(data, title, "units (log)", "of a rank", unit="bytes", log="x", looks=looks, levels=levels)


def moments_figure(on_paper: pd.DataFrame, measured: pd.DataFrame) -> tuple[Figure, str]:
    """A panel for each way: its two moments against tokens of a rank, as lines, and measured peaks, as dots.

    `on_paper` has columns `way`, `tokens`, `loss` and `gradients`; `measured` has `way`, `tokens` and `peak`, all in bytes.
    """
    ways = list(dict.fromkeys(on_paper["way"]))
    figure, grid = panels(1, len(ways), height=3.3, sharey=True)
    names = ("on paper: gradients", "on paper: loss", "measured, highest step")
    looks = dict(zip(names, (("gradients", "--"), ("activations", "-"), ("measured", "o")), strict=True))
    size, crossed = byte_unit(measured["peak"].max())[1], []
    for axes, way in zip(grid, ways, strict=True):
        paper = on_paper[on_paper["way"] == way].set_index("tokens")
        dots = measured[measured["way"] == way].set_index("tokens")
        drawn = (paper["gradients"] / size, paper["loss"] / size, dots["peak"] / size)
        data, y = dict(zip(names, drawn, strict=True)), f"{byte_unit(size)[0]} of a rank"
        lines(data, way, "tokens", y, log="x", looks=looks, labels="none", axes=axes)
        axes.set_xticks(ticks := [32, 128, 256, 512], ticks)
        axes.minorticks_off()
        above = paper.index[paper["loss"] > paper["gradients"]]
        crossed.append(f"{way} {above.min()}" if len(above) else f"{way} none drawn")
    grid[0].set_ylim(0, None)
    legend(grid[0])
    peaks = "; ".join(f"{row.way}, {row.tokens} tokens: {format_bytes(row.peak)}" for row in measured.itertuples())
    at = f"First tokens drawn at which the loss needs more than the gradients: {', '.join(crossed)}"
    text = f"Two moments on paper against tokens of a rank, rising and level. {at}. Measured peaks: {peaks}."
    return together(
        figure, "With few tokens the sum of gradients decides the peak, with many the moment of the loss", text
    )


# A step on paper, to play with: equal units, a steady wire. Times are in forward passes of the model, memory in parameters.


HELD = ("parameters", "optimizer state", "gathered", "gradients", "activations", "communication")
"""What a rank holds, from the bottom up; `communication` are copies of gradients under way."""


@dataclass
class Schedule:
    """`jobs` of the first and the last rank as (rank, what, start, end); what the first `held` from each of `times` on."""

    jobs: list[tuple[int, str, float, float]]
    times: list[float]
    held: dict[str, list[float]]

    @property
    def memory(self) -> list[float]:
        """All kinds together."""
        return [sum(sizes) for sizes in zip(*self.held.values(), strict=True)]

    @property
    def end(self) -> float:
        """When the step is over."""
        return max(end for *_, end in self.jobs)

    @property
    def waiting(self) -> float:
        """The share of the step in which the first rank computes nothing."""
        return 1 - sum(end - start for rank, what, start, end in self.jobs if rank == 0 and what in PHASES) / self.end


def step_on_paper(
    stage: int,
    ranks: int,
    units: int,
    wire: float = 1.0,
    latency: float = 0.001,
    prefetch: bool = True,
    slowest: float = 1.0,
) -> Schedule:
    """A step of `units` equal units under ZeRO `stage` 0 to 3.

    `wire` is what sending the parameters to another rank takes, `latency` what each message takes on top: a collective sends
    N − 1 on a ring, an all-reduce twice as many. Only stage 0 makes an all-reduce; the others have its two halves. With
    `prefetch` the next unit is gathered while this one computes. The last rank computes `slowest` times as long as the others.
    Gradients are copied to be sent as in `FSDP` and `DDP`.
    """
    pace, share = np.array([1.0, slowest][:ranks]), (1 / ranks if stage >= 2 else 1)
    around = wire * (ranks - 1) / ranks / units + latency * (ranks - 1)
    free = {"compute": np.zeros(len(pace)), "wire": np.zeros(len(pace))}
    # AdamW keeps twice the parameters.
    jobs, changes = [], [(0.0, "parameters", share), (0.0, "optimizer state", 2 / ranks if stage else 2)]
    gathered, copied = {}, 0.0

    def work(what: str, ready: np.ndarray, seconds: float) -> tuple[np.ndarray, np.ndarray]:
        """On each rank as soon as it is ready and its lane is free; a collective waits for all. Returns starts and ends."""
        lane = "compute" if what in PHASES else "wire"
        start = np.maximum(ready, free[lane])
        start = start if lane == "compute" else np.full(len(pace), start.max())
        free[lane] = start + seconds * (pace if lane == "compute" else 1)
        jobs.extend((rank, what, float(a), float(b)) for rank, (a, b) in enumerate(zip(start, free[lane], strict=True)))
        return start, free[lane]

    def hold(start: np.ndarray, kind: str, size: float) -> None:
        changes.append((float(start[0]), kind, size))

    def gather(unit: int, ready: np.ndarray) -> np.ndarray:
        gathered[unit], end = work("all-gather", ready, around)
        hold(gathered[unit], "gathered", 1 / units)
        return end

    def reshard(unit: int, time: np.ndarray) -> None:
        if gathered.pop(unit, None) is not None:
            hold(time, "gathered", -1 / units)

    for what, order, length in (("forward", range(units), 1), ("backward", range(units)[::-1], 2)):
        gathers = ranks > 1 and (stage == 3 or (stage == 2 and what == "forward"))
        ready = gather(order[0], free["compute"]) if gathers else free["compute"]
        for unit, following in zip(order, [*order[1:], None], strict=True):
            start, end = work(what, ready, length / units)
            more = gathers and following is not None
            ready = gather(following, start) if more and prefetch else end
            if what == "forward":
                hold(start, "activations", ACTIVATIONS / units)
                if stage == 3:
                    reshard(unit, end)
            else:
                hold(end, "activations", -ACTIVATIONS / units)
                reshard(unit, end)
                hold(start, "gradients", 1 / units)  # the unit's whole gradient, until it is reduced
                if ranks > 1:
                    sends = ("reduce-scatter", around) if stage else ("all-reduce", 2 * around)
                    done = work(sends[0], end, sends[1])[1]
                    copies = (1, 0, 2, 2)[stage] / units  # DDP's bucket; the flat row and the sum that arrives
                    hold(end, "communication", copies)
                    copied += copies
                    if stage >= 2:
                        hold(done, "communication", -copies)
                        hold(done, "gradients", share / units - 1 / units)
                        copied -= copies
            if more and not prefetch:
                ready = gather(following, end)
    begin, end = work("update", np.maximum(free["compute"], free["wire"]), 0.1 / (ranks if stage else 1))
    hold(begin, "communication", -copied)  # DDP's buckets
    if stage == 1 and ranks > 1:
        work("all-gather", end, around * units)
    return Schedule(jobs, *_add_up(changes))


ACTIVATIONS = 0.5
"""Of the whole model, in sizes of its parameters."""


def _add_up(changes: Sequence[tuple[float, str, float]]) -> tuple[list[float], dict[str, list[float]]]:
    """Times, and by kind the sum from each of them on; changes at one instant count together."""
    totals, total, last = {}, dict.fromkeys(HELD, 0.0), -1.0
    for time_, kind, change in sorted(changes):
        total[kind] += change
        last = time_ if time_ - last > 1e-6 else last
        totals[last] = dict(total)
    return list(totals), {kind: [one[kind] for one in totals.values()] for kind in HELD}


def play_sharding(
    stage: int = 3, ranks: int = 8, units: int = 6, wire: float = 1.0, latency: float = 0.002, prefetch: bool = True,
    slowest: float = 1.0,
) -> tuple[Figure, str]:  # fmt: skip
    """Play: the lanes of the first and the last rank in a step on paper; below, the first rank's memory by kind."""
    plan, followed = step_on_paper(stage, ranks, units, wire, latency, prefetch, slowest), [0, ranks - 1][:ranks]
    ratios = (0.75 * len(followed), 2.0)
    figure, (above, below) = panels(2, height=4.0 + 0.8 * len(followed), sharex=True, height_ratios=ratios)
    names = [f"rank {rank}: {does}" for rank in followed for does in ("computes", "sends, receives")]
    counted_ranks = f"{STAGES[stage]}, {format_counted(ranks, 'rank')}"
    title = f"{counted_ranks}: a step takes {plan.end:.2f}, of which rank 0 waits {plan.waiting:.0%}"
    _draw_lanes(above, plan.jobs, names, title, "")
    called = {"communication": "copies of gradients"}
    held = {called.get(kind, kind): [*sizes, sizes[-1]] for kind, sizes in plan.held.items() if max(sizes) > 1e-9}
    colors = {"gathered": "recomputed", "copies of gradients": "communication"}
    x, y = "time (forward pass of the model = 1)", "memory of rank 0\n(parameters = 1)"
    layers([*plan.times, plan.end], held, "", x, y, colors=colors, axes=below)
    peak = max(plan.memory)
    below.axhline(peak, color=COLORS["warning"], linestyle="--", linewidth=1.2)
    below.text(plan.end, peak, f"peak {peak:.2f} ", ha="right", va="bottom", color=writing("warning"))
    below.set(ylim=(0, max(2.0, 1.2 * peak)), xlim=(0, plan.end))
    legend(below)
    slow = f"; the last rank computes {slowest:g} times as long" if ranks > 1 and slowest > 1 else ""
    made = f"{sum(job[0] == 0 for job in plan.jobs)} jobs of a rank with {format_counted(units, 'unit')}{slow}"
    top = plan.memory.index(peak)
    there = ", ".join(f"{kind} {sizes[top]:.2f}" for kind, sizes in plan.held.items() if sizes[top] > 0.005)
    return figure, f"{title}; {made}; the memory peaks at {peak:.2f}: {there}."
