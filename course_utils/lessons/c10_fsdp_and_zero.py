"""Chapter 10: the same training shared out in several ways on real ranks, and its figures.

Each way is measured: bytes at the peak, bytes on the wire, the parameters afterwards, a timeline.
"""

import logging
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from io import StringIO
from itertools import product

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from course_utils import models
from course_utils.distributed import DDP, FSDP, ShardedOptimizer, Traffic, counted
from course_utils.distributed.fsdp import all_gather
from course_utils.distributed.torchrun import announce
from course_utils.hardware import Machine
from course_utils.memory import Recipe, Workload, distinct_bytes, estimate, predict_seconds
from course_utils.memory.plan.plan import most
from course_utils.memory.step.sharded import units_of
from course_utils.memory.trace.allocator import allocator_of, quiet
from course_utils.settings import set_variable, settings
from course_utils.training.profile import PHASES
from course_utils.units import format_bytes, format_counted, format_seconds
from course_utils.viz.parts import byte_unit, patches, second_unit, subplots
from course_utils.viz.style import COLORS, writing

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


def adamw(parameters) -> torch.optim.AdamW:
    """torch's, one tensor after another, so that its temporaries are small."""
    return torch.optim.AdamW(parameters, lr=1e-3, foreach=False)


def ddp(model: nn.Module) -> Setup:
    """Everything on every rank."""
    wrapped = DDP(model)
    return Setup(wrapped, adamw(wrapped.parameters()), model.state_dict)


def torch_ddp(model: nn.Module, **options) -> Setup:
    """PyTorch's own DDP."""
    wrapped = nn.parallel.DistributedDataParallel(model, **options)
    return Setup(wrapped, adamw(wrapped.parameters()), model.state_dict)


def zero1(model: nn.Module) -> Setup:
    """The optimizer's state is sharded; each gradient goes to the owner of its state only."""
    optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3, foreach=False)
    return Setup(model, optimizer, model.state_dict)


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


WAYS = {"DDP": ddp, "ZeRO-1": zero1, "ZeRO-2": zero2, "ZeRO-3": zero3, "FSDP2": fsdp2}


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
    """What one rank saw: `peak` bytes of a step, all that it keeps included; `traffic` of a step.

    `peak` is that of the lowest of `RECORDED` steps, `highest` that of the highest. `kept` are elements of parameters and of
    optimizer state between steps; `full` the parameters at the end.
    """

    peak: int
    highest: int
    kept: dict[str, int]
    kinds: tuple[str, ...]
    traffic: Traffic
    losses: list[float]
    full: dict[str, torch.Tensor] = field(repr=False)


STEPS = 5
"""Of training, the same for every way; after them one is counted."""
RECORDED = 8
"""Steps whose allocations are recorded; the lowest peak counts."""
TIMED = 3 if settings().scale.name == "smoke" else 12
"""Steps that are timed; the quickest counts."""


def measure_way(way: str, config, recipe: Recipe, **options) -> Seen:
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
    above = []
    for _ in range(RECORDED):
        allocator = allocator_of(torch.device("cpu"))
        with allocator.recording(), allocator.measured():
            setup.step(batch)
        above.append(allocator.account().above_start)
    inner = setup.optimizer.optimizer if way == "ZeRO-1" else setup.optimizer
    state = [v for values in inner.state.values() for v in values.values() if torch.is_tensor(v)]
    tensors = [*setup.model.parameters(), *setup.model.buffers(), *state, *batch.values()]
    held = distinct_bytes(map(local_part, tensors))
    return Seen(
        # The lowest is what the step needs; in others a thread of gloo's holds a row of gradients a moment longer.
        held + min(above),
        held + max(above),
        {"parameters": _elements(setup.model.parameters()), "optimizer state": _elements(s for s in state if s.dim())},
        tuple(sorted({type(p).__name__ for p in setup.model.parameters()})),
        traffic,
        losses,
        trained,
    )


def time_each(ways: dict[str, tuple[str, dict]], config, recipe: Recipe, times: int = TIMED) -> dict[str, float]:
    """To be launched: seconds of a step in each way, a name of `WAYS` and its options; the quickest of `times`.

    The ways take turns, so that whatever else the machine does meets all of them alike. A step is timed from the moment when
    all ranks are ready.
    """
    setups = {name: WAYS[way](models.from_configuration(config), **options) for name, (way, options) in ways.items()}
    batch, by_way = batch_of(config, recipe, dist.get_rank()), {name: [] for name in ways}
    for _ in range(times):
        for name, setup in setups.items():
            dist.barrier()
            begin = time.perf_counter()
            setup.step(batch)
            by_way[name].append(time.perf_counter() - begin)
    return {name: min(seconds) for name, seconds in by_way.items()}


def computing_seconds(config, recipe: Recipe, machine: Machine) -> tuple[float, float]:
    """Predicted of a step on `machine`: the seconds of forward and backward, and those of the update of all parameters."""
    work = Workload(config, recipe)

    def build() -> tuple:
        model, _, batches = work.build()
        return model, batches

    def passes(model: nn.Module, batches: list) -> None:
        for batch in batches:
            model(**batch).loss.backward()
        model.zero_grad()

    of_passes = predict_seconds(build, passes, machine).seconds
    return of_passes, predict_seconds(work.build, work.step, machine).seconds - of_passes


def seconds_of_message(times: int = 200) -> float:
    """To be launched on two ranks: what the smallest all-gather takes, one message each way; the median."""
    mine, both, seconds = torch.ones(1), torch.empty(dist.get_world_size()), []
    for _ in range(times):
        begin = time.perf_counter()
        all_gather(both, mine)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def peaks_of_torch_ddp(config, recipe: Recipe) -> dict[str, int]:
    """To be launched: the peak of a step under PyTorch's DDP by `gradient_as_bucket_view`, the buckets that it keeps included.

    The lowest of `RECORDED` steps, as in `measure_way`.
    """
    peaks = {}
    for name, view in {"default": False, "bucket view": True}.items():
        allocator = allocator_of(torch.device("cpu"))
        with allocator.recording():  # from before the model is made: the buckets live as long as it does
            setup = torch_ddp(models.from_configuration(config), gradient_as_bucket_view=view)
            batch = batch_of(config, recipe, dist.get_rank())
            for _ in range(2):
                setup.step(batch)
            with allocator.measured():
                for number in range(RECORDED):
                    allocator.begin_phase(str(number))
                    setup.step(batch)
        account = allocator.account()
        peaks[name] = account.at_start + min(account.by_phase.values())
        del setup
    return peaks


def measure_each(ways: Sequence[str], config, recipe: Recipe) -> dict[str, Seen]:
    """To be launched: `measure_way` for one way after the other."""
    return {way: measure_way(way, config, recipe) for way in ways}


def peak_of_rank(ranks: int, parameters: int, blocks: int, block: int, head: int, waiting: float) -> float:
    """Bytes at the peak of a rank under `FSDP` with AdamW in 32 bits, where gloo reduces: it makes the third copy of gradients.

    Of all `parameters` there are `block` in each of so many `blocks`, and `head` in the output layer, which is in the root unit.
    `waiting` bytes wait for each block until backward reaches it: its activations, and under ZeRO-2 its parameters too.
    """
    root, shard = parameters - blocks * block, 4 * block / ranks
    last_block, first_block = blocks * shard, shard + (blocks - 1) * waiting  # that backward reaches
    in_a_block = 12 * parameters / ranks + 4 * root + 4 * head + 12 * block + max(last_block, first_block)
    in_the_root = 16 * parameters / ranks + 12 * root
    return max(in_a_block, in_the_root)


def train_alone(config, recipe: Recipe, ranks: int) -> dict[str, torch.Tensor]:
    """The truth: one process that takes the batches of all `ranks` in turn and divides by their number.

    It has a rank's share of the threads, since kernels add in another order with more of them.
    """
    model = models.from_configuration(config)
    optimizer = adamw(model.parameters())
    with threads_of_a_rank(ranks):
        for _ in range(STEPS):
            for rank in range(ranks):
                (model(**batch_of(config, recipe, rank)).loss / ranks).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model.state_dict()


@contextmanager
def threads_of_a_rank(ranks: int) -> Iterator[None]:
    """Within, torch has the threads that `launch` gives to each of `ranks`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // ranks))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def batch_of(config, recipe: Recipe, rank: int) -> dict[str, torch.Tensor]:
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


def trace_each(ways: dict[str, tuple[str, dict]], config, recipe: Recipe) -> dict[str, list[Activity]]:
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
        activities[name] = read_activities([(e.name(), e.start_ns() / 1e9, e.end_ns() / 1e9) for e in events])
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


def accelerate_on_rank(config, recipe: Recipe) -> Found:
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


def trainer_on_rank(config, recipe: Recipe, folder: str) -> Found:
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


def deepspeed_on_rank(config, recipe: Recipe, stage: int, **zero) -> Found:
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


# A published table of largest batches does not say how long its sequences were. Worked out backwards:


def consistent_lengths(config, recipe: Recipe, largest: int, budget: float) -> tuple[int, int] | None:
    """The shortest and the longest sequence with which `largest` examples fit into `budget` bytes and one more does not.

    By formulas that dry runs of smaller sizes gave. None where there is no such length.
    """
    limit = config.max_position_embeddings
    start = min(128, limit)
    finder = estimate(config, replace(recipe, batch=largest, sequence=start)).finder

    def longest_of(batch: int) -> int:
        return most(lambda length: finder.guess(batch, length).peak <= budget, start, limit) or 0

    longest, too_long = longest_of(largest), longest_of(largest + 1)
    return (too_long + 1, longest) if longest > too_long else None


def largest_batch(config, recipe: Recipe, length: int, budget: float) -> int:
    """How many sequences of `length` tokens fit into `budget` bytes, by dry runs; 0 where not even one does.

    Where activations decide, bytes grow in proportion to the batch: two runs of many sequences give a first guess.
    """

    def peak(batch: int) -> int:
        return estimate(config, replace(recipe, batch=batch, sequence=length)).peak

    many, twice = peak(100), peak(200)
    batch = max(0, 100 + int(100 * (budget - many) / (twice - many)))
    while batch and peak(batch) > budget:
        batch -= 1
    while peak(batch + 1) <= budget:
        batch += 1
    return batch


def block_activations(config, recipe: Recipe) -> int:
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
    figure, axes = subplots(figsize=(7.6, 3.9), layout="constrained")
    kinds, height = ("parameters", "gradients", "optimizer state"), 0.76 / ranks
    for row, stage in enumerate(STAGES):
        axes.text(-0.15, row + 0.38, stage, ha="right", va="center", fontsize=11)
        for rank, (column, kind), part in product(range(ranks), enumerate(kinds), range(ranks)):
            is_sharded = row >= len(kinds) - column
            color = COLORS[kind if part == rank or not is_sharded else "grid"]
            corner = (1.15 * rank + 0.33 * column, row + part * height)
            axes.add_patch(Rectangle(corner, 0.29, height, facecolor=color, edgecolor=COLORS["paper"]))
    for rank in range(ranks):
        axes.text(1.15 * rank + 0.48, -0.12, f"rank {rank}", ha="center")
    axes.set(xlim=(-0.9, 1.15 * ranks), ylim=(len(STAGES) - 0.05, -0.35))
    axes.axis("off")
    handles, labels = patches(*((kind, kind) for kind in kinds), ("kept by others", "grid"))
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
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
    title = "A block is whole twice in a step, and at its end its gradient lies there three times"
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
    axes.text(1_300, 1.6e3 * 2 * parameters * 1_300 / flops, "computing a block", color=writing("third"), rotation=28)
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
    axes.set(xscale="log", yscale="log", xlabel="tokens of a rank in a step", ylabel="milliseconds")
    axes.set_title(f"A gather hides behind computing from {' or '.join(crossings)} tokens on", fontsize=10)
    return figure, (
        f"Milliseconds to compute a block of {parameters / 1e6:.0f} million parameters forward, rising with a rank's tokens, "
        f"and to gather the next one on {ranks} ranks, level. They cross at {', '.join(crossings)} tokens."
    )


def bucket_figure(peaks: Mapping[str, int]) -> tuple[Figure, str]:
    """Gradients beside DDP's bucket, and as views into it; `peaks` of a rank with the first way and with the second."""
    figure, axes = subplots(figsize=(7.6, 2.7), layout="constrained")
    widths, (before, after) = (1.4, 0.8, 2.2, 1.1), (format_bytes(peak) for peak in peaks.values())
    left = bucket = 2.6
    for number, width in enumerate(widths):
        _draw_box(axes, left, 0, width, f"grad {number}", "gradients")
        _draw_box(axes, bucket, 0.97, width, "", "communication")
        _draw_box(axes, bucket, 1.9, width, f"grad {number}", "gradients")
        arrow = {"arrowstyle": "-|>", "color": COLORS["ink"], "linewidth": 1.2}
        axes.annotate("", (bucket + width / 2, 0.95), (left + width / 2, 0.52), arrowprops=arrow)
        left, bucket = left + width + 0.12, bucket + width
    for middle, words, peak in (
        (0.75, "default:\ngradients, and copies", before),
        (2.15, "as bucket views:\nonly the bucket", after),
    ):
        axes.text(2.4, middle, words, ha="right", va="center", fontsize=9)
        axes.text(8.7, middle, f"peak {peak}", va="center", weight="bold")
    axes.text(2.6, 1.52, "bucket, which is sent", va="top", fontsize=8, color=writing("communication"))
    axes.set(xlim=(0, 10.6), ylim=(2.6, -0.2))
    axes.axis("off")
    axes.set_title("Gradients that are windows into the bucket save one copy of all of them")
    by_default = f"DDP copies each gradient into a bucket and sends that: peak {before}."
    return figure, f"{by_default} As views the gradients are the bucket: peak {after}."


def _draw_box(axes, x: float, y: float, width: float, text: str, color: str) -> None:
    axes.add_patch(Rectangle((x, y), width, 0.5, facecolor=COLORS[color], edgecolor=COLORS["paper"], linewidth=1.5))
    axes.text(x + width / 2, y + 0.25, text, ha="center", va="center", fontsize=8)


def number_units(activities: Sequence[Activity], blocks: int) -> list[str]:
    """For which unit each activity is, by the order of the calls: "R" for the root, then blocks from 1; "" for a phase.

    A step gathers root and blocks, in backward root and blocks from the last on, and reduces blocks and root. Where other
    numbers of collectives are found, none is named.
    """
    forward, back = [str(block + 1) for block in range(blocks)], [str(blocks - block) for block in range(blocks)]
    orders = {"all-gather": ["R", *forward, "R", *back], "reduce-scatter": [*back, "R"]}
    counts = Counter(activity.what for activity in activities)
    units = {what: iter(order) for what, order in orders.items() if counts[what] == len(order)}
    return [next(units[activity.what], "") if activity.what in units else "" for activity in activities]


def lanes_figure(runs: Mapping[str, Sequence[Activity]], blocks: int) -> tuple[Figure, str]:
    """What rank 0 did in a real step of each run, on one time axis: a lane for what it computed, one for its collectives."""
    jobs, by_run, end = [], [], 0.0
    for row, lane in enumerate(runs.values()):
        zero = min(activity.start for activity in lane)
        end = max(end, max(activity.end for activity in lane) - zero)
        numbers = number_units(lane, blocks)
        jobs += [(row, a.what, a.start - zero, a.end - zero, unit) for a, unit in zip(lane, numbers, strict=True)]
    unit_name, size = second_unit(end)
    jobs = [(row, what, start / size, stop / size, unit) for row, what, start, stop, unit in jobs]
    figure, axes = subplots(figsize=(7.6, 1.2 + 0.95 * len(runs)), layout="constrained")
    _draw_lanes(figure, axes, jobs, [name for run in runs for name in (f"{run}: computes", "sends, receives")])
    axes.set(xlim=(0, end / size), xlabel=f"time of a step of rank 0, {unit_name}; numbers are blocks, R the root")
    shares = " and ".join(f"{overlap(lane):.0%} ({name})" for name, lane in runs.items())
    axes.set_title(f"Rank 0 also computes in {shares} of the time of its collectives", fontsize=10)
    for name, lane in runs.items():
        sent = ", ".join(f"{count} {what}" for what, count in Counter(a.what for a in lane if not a.computes).items())
        computed = format_seconds(sum(a.end - a.start for a in lane if a.computes))
        by_run.append(
            f"{name}: computes {computed} and takes part in {sent}, {overlap(lane):.0%} of their time while it computes"
        )
    return figure, f"A step of rank 0 on one time axis. {'; '.join(by_run)}."


def _draw_lanes(figure: Figure, axes, jobs: Sequence[tuple], names: Sequence[str]) -> None:
    """`jobs` are (pair of lanes from the top, what, start, end, unit or ""); `names` those of the lanes."""
    shades = sorted({job[4] for job in jobs} - {""}, key=lambda unit: (unit != "R", unit.zfill(3)))
    for row, what, start, end, unit in jobs:
        color, hatch = LOOKS[what]
        face = _SHADES((shades.index(unit) + 0.5) / len(shades)) if unit else COLORS[color]
        hatch = hatch if what == "reduce-scatter" or not unit else ""
        look = {"facecolor": face, "edgecolor": COLORS["paper"], "hatch": hatch, "linewidth": 0.3}
        place = 2 * row + (what not in PHASES)
        axes.add_patch(Rectangle((start, place - 0.38), end - start, 0.76, **look))
        if unit and end - start > 0.012 * max(job[3] for job in jobs):
            look = {"color": _ink_on(face), "fontsize": 7, "weight": "bold"}
            axes.text((start + end) / 2, place, unit, ha="center", va="center", **look)
    axes.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.4, -0.6))
    axes.grid(axis="y", visible=False)
    used = {what: look for what, look in LOOKS.items() if any(job[1] == what for job in jobs)}
    handles = [
        Patch(facecolor=_SHADES(0.5) if shades and what not in PHASES else COLORS[color],
              hatch="" if shades and what == "all-gather" else hatch, edgecolor=COLORS["paper"])
        for what, (color, hatch) in used.items()
    ]  # fmt: skip
    figure.legend(handles, list(used), loc="outside upper center", ncols=len(used))


_SHADES = colormaps["viridis"]


def _ink_on(color: tuple) -> str:
    """Black or white, whichever is read more easily on `color` (WCAG 2.2: by relative luminance)."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color[:3])
    return COLORS["buffers" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "paper"]


def units_figure(table: pd.DataFrame, shards: float) -> tuple[Figure, str]:
    """Peak and predicted seconds against the number of units: `table` has columns `units`, `peak`, `gathered` (bytes) and
    one of seconds for each network. `shards` are the bytes that stay however small the units."""
    figure, (left, right) = subplots(1, 2, figsize=(7.6, 3.4), layout="constrained")
    unit, size = byte_unit(table["peak"].max())
    units, peaks, gathered = table["units"], table["peak"] / size, table["gathered"] / size
    left.plot(units, peaks, "o-", color=COLORS["measured"])
    left.plot(units, gathered, "s--", color=COLORS["temporaries"])
    left.axhline(shards / size, color=COLORS["ink"], linestyle=":")
    left.text(units.iloc[0], shards / size, "all shards", va="top", fontsize=9)
    look = {"va": "bottom", "ha": "right", "fontsize": 9}
    left.text(units.iloc[-1], 1.08 * peaks.iloc[-1] + 1, "peak, measured", color=writing("measured"), **look)
    left.text(units.iloc[-1], gathered.iloc[-1] + 1.2, "largest unit", color=writing("temporaries"), **look)
    left.set(xlabel="units", ylabel=f"{unit} of a rank", ylim=(0, None), xscale="log")
    left.set_title(f"Memory falls from {peaks.iloc[0]:.0f} to {peaks.iloc[-1]:.0f} {unit} …", fontsize=10)
    networks = [name for name in table if name not in ("units", "peak", "gathered")]
    for name, marker, color in zip(networks, "ovD", ("first", "second", "third"), strict=False):
        right.plot(units, 1e3 * table[name], f"{marker}-", color=COLORS[color])
        right.text(units.iloc[-1], 1.4e3 * table[name].iloc[-1], name, color=writing(color), **look)
    right.set(xlabel="units", ylabel="milliseconds on the wire, predicted", yscale="log", xscale="log")
    right.set_ylim(None, 5e3 * table[networks].to_numpy().max())
    more = " and ".join(f"{table[name].iloc[-1] / table[name].iloc[0]:.2g}" for name in networks)
    right.set_title(f"… seconds grow {more} times", fontsize=10)
    for axes in (left, right):
        axes.set_xticks(units, [f"{count}" for count in units])
        axes.minorticks_off()
    by_count = "; ".join(
        f"{format_counted(row.units, 'unit')}: peak {format_bytes(row.peak)}, largest unit {format_bytes(row.gathered)}, "
        + ", ".join(f"{name} {format_seconds(table.loc[row.Index, name])}" for name in networks)
        for row in table.itertuples()
    )
    started = (
        f"Peak of a rank and seconds on the wire against the number of units; all shards take {format_bytes(shards)}"
    )
    return figure, f"{started}. {by_count}."


def lengths_figure(consistent: Mapping[str, tuple[int, int] | None], marked: Mapping[int, str]) -> tuple[Figure, str]:
    """For each row of a table of largest batches, the lengths of a sequence (shortest, longest) that agree with it, or None.

    `marked` are lengths drawn as lines, with what is to be said about them.
    """
    figure, axes = subplots(figsize=(7.6, 1.6 + 0.36 * len(consistent)), layout="constrained")
    words = {name: f"{lengths[0]} to {lengths[1]}" if lengths else "none" for name, lengths in consistent.items()}
    for row, (name, lengths) in enumerate(consistent.items()):
        start, end = lengths or (0, 0)
        axes.barh(row, end - start + bool(lengths), left=start, height=0.6, color=COLORS["measured"])
        axes.text(1.04 * (end or 20), row, words[name], va="center", fontsize=9)
    for length, remark in marked.items():
        axes.axvline(length, color=COLORS["warning"], linestyle="--", linewidth=1.4)
        look = {"color": writing("warning"), "fontsize": 9, "va": "bottom"}
        axes.text(length, -0.8, f" {remark} ", ha="left" if length < 100 else "right", **look)
    axes.set(yticks=range(len(consistent)), yticklabels=list(consistent), ylim=(len(consistent) - 0.5, -1.7))
    axes.set(xscale="log", xlim=(8, 1500), xlabel="tokens of a sequence that agree with the row, by our estimate")
    ticks = (10, 30, 100, 300, 1000)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(axis="y", visible=False)
    ranges = list(consistent.values())
    shared = all(ranges) and max(start for start, _ in ranges) <= min(end for _, end in ranges)
    axes.set_title("One length agrees with every row" if shared else "No one length agrees with every row")
    by_row = "; ".join(f"{name}: {length}" for name, length in words.items())
    lines = "; ".join(f"{length} tokens: {remark}" for length, remark in marked.items())
    return figure, f"Lengths of the sequence that agree with each row. {by_row}. Marked: {lines}."


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
    size = (7.6, 4.0 + 0.8 * len(followed))
    figure, (above, below) = subplots(
        2, figsize=size, layout="constrained", sharex=True, height_ratios=(0.75 * len(followed), 2.0)
    )
    names = [name for rank in followed for name in (f"rank {rank} computes", "sends, receives")]
    _draw_lanes(figure, above, [(*job, "") for job in plan.jobs], names)
    low, times = np.zeros(len(plan.times) + 1), [*plan.times, plan.end]
    for kind, sizes in plan.held.items():
        high = low + np.array([*sizes, sizes[-1]])
        if max(sizes) > 1e-9:
            color = COLORS["recomputed" if kind == "gathered" else kind]
            name = "copies of gradients" if kind == "communication" else kind
            below.fill_between(times, low, high, step="post", color=color, linewidth=0, label=name)
        low = high
    peak = max(plan.memory)
    below.axhline(peak, color=COLORS["warning"], linestyle="--", linewidth=1.2)
    below.text(plan.end, peak, f"peak {peak:.2f} ", ha="right", va="bottom", color=writing("warning"))
    below.set(ylabel="memory of rank 0\n(parameters = 1)", ylim=(0, max(2.0, 1.2 * peak)), xlim=(0, plan.end))
    below.set_xlabel("time (forward pass of the model = 1)")
    figure.legend(*below.get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8)
    counted_ranks = f"{STAGES[stage]}, {format_counted(ranks, 'rank')}"
    title = f"{counted_ranks}: a step takes {plan.end:.2f}, of which rank 0 waits {plan.waiting:.0%}"
    above.set_title(title)
    slow = f"; the last rank computes {slowest:g} times as long" if ranks > 1 and slowest > 1 else ""
    made = f"{sum(job[0] == 0 for job in plan.jobs)} jobs of a rank with {format_counted(units, 'unit')}{slow}"
    top = plan.memory.index(peak)
    there = ", ".join(f"{kind} {sizes[top]:.2f}" for kind, sizes in plan.held.items() if sizes[top] > 0.005)
    return figure, f"{title}; {made}; the memory peaks at {peak:.2f}: {there}."
