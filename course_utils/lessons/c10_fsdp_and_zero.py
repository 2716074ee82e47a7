"""Chapter 10: the same training shared out in several ways on real ranks, and its figures.

Each way is measured: bytes at the peak, bytes on the wire, the parameters afterwards, a timeline.
"""

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from io import StringIO
from itertools import product

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from course_utils import models
from course_utils.distributed import DDP, FSDP, ShardedOptimizer, Traffic, counted
from course_utils.distributed.torchrun import announce
from course_utils.memory import Recipe, distinct_bytes, dry_run, estimate
from course_utils.memory.allocator import allocator_of, quiet
from course_utils.memory.plan import most
from course_utils.memory.sharded import units_of
from course_utils.memory.usage import Usage
from course_utils.settings import set_variable
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
    found, left = [], sum(p.numel() for p in module.parameters(recurse=False))
    for child in module.children():
        inside, outside = modules_of_at_least(child, least)
        found += inside
        left += outside
    if left >= least and not isinstance(module, nn.ModuleList):  # which has no forward pass
        return [*found, module], 0
    return found, left


# What one rank sees of a way.


@dataclass
class Seen:
    """What one rank saw: `peak` bytes of a step, all that it keeps included; `traffic` of a step.

    `kept` are elements of parameters and of optimizer state between steps; `full` the parameters at the end.
    """

    peak: int
    kept: dict[str, int]
    kinds: tuple[str, ...]
    traffic: Traffic
    losses: list[float]
    full: dict[str, torch.Tensor] = field(repr=False)


STEPS = 5
"""Of training, the same for every way; after them one is counted, and as many more are recorded."""


def measure_way(way: str, config, recipe: Recipe, **options) -> Seen:
    """To be launched: `STEPS` steps of the model of `config` in one of `WAYS`, with other batches on each rank.

    The bytes of a step are those of steps after them. `peak` is what the tensors take that a rank keeps (parameters, buffers,
    optimizer state, batch), and what the allocator saw on top of what was there when the step began.
    """
    setup = WAYS[way](models.from_configuration(config), **options)
    batch = batch_of(config, recipe, dist.get_rank())
    losses = [setup.step(batch).item() for _ in range(STEPS)]
    trained = {name: tensor.detach().clone() for name, tensor in setup.full().items()}
    with counted() as traffic:
        setup.step(batch)
    above = []
    for _ in range(STEPS):
        allocator = allocator_of(torch.device("cpu"))
        with allocator.recording(), allocator.measured():
            setup.step(batch)
        above.append(allocator.account().above_start)
    inner = setup.optimizer.optimizer if way == "ZeRO-1" else setup.optimizer
    state = [v for values in inner.state.values() for v in values.values() if torch.is_tensor(v)]
    tensors = [*setup.model.parameters(), *setup.model.buffers(), *state, *batch.values()]
    return Seen(
        # The lowest, because a thread of gloo's may hold a row of gradients a moment longer than the step needs it.
        distinct_bytes(map(_local, tensors)) + min(above),
        {"parameters": _elements(setup.model.parameters()), "optimizer state": _elements(s for s in state if s.dim())},
        tuple(sorted({type(p).__name__ for p in setup.model.parameters()})),
        traffic,
        losses,
        trained,
    )


def measure_each(ways: Sequence[str], config, recipe: Recipe) -> dict[str, Seen]:
    """To be launched: `measure_way` for one way after the other."""
    return {way: measure_way(way, config, recipe) for way in ways}


def predict_way(way: str, config, recipe: Recipe, ranks: int) -> Usage:
    """The fullest rank's memory: `way` itself on tensors without values, as each of `ranks`, while the others are pretended."""

    def build() -> tuple:
        setup = WAYS[way](models.from_configuration(config))
        return setup.model, setup.optimizer, setup, batch_of(config, recipe, 0)

    step = lambda model, optimizer, setup, batch: setup.step(batch)  # noqa: E731
    return max((dry_run(build, step, ranks=ranks, rank=rank) for rank in range(ranks)), key=lambda usage: usage.peak)


def train_alone(config, recipe: Recipe, ranks: int) -> dict[str, torch.Tensor]:
    """The truth: one process that takes the batches of all `ranks` in turn and divides by their number.

    It has a rank's share of the threads, since kernels add in another order with more of them.
    """
    model = models.from_configuration(config)
    optimizer = adamw(model.parameters())
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // ranks))
    for _ in range(STEPS):
        for rank in range(ranks):
            (model(**batch_of(config, recipe, rank)).loss / ranks).backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.set_num_threads(threads)
    return model.state_dict()


def batch_of(config, recipe: Recipe, rank: int) -> dict[str, torch.Tensor]:
    """The batch of a rank, the same in every process."""
    draw = torch.Generator().manual_seed(1000 + rank)
    ids = torch.randint(1, config.vocab_size, (recipe.batch, recipe.sequence), generator=draw)
    return {"input_ids": ids, "labels": ids.clone()}


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Over all parameters by name."""
    return max((one[name] - other[name]).abs().max().item() for name in one)


def _elements(tensors: Iterable[torch.Tensor]) -> int:
    return sum(_local(tensor).numel() for tensor in tensors)


def _local(tensor: torch.Tensor) -> torch.Tensor:
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
    found = {}
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
        found[name] = read_activities([(e.name(), e.start_ns() / 1e9, e.end_ns() / 1e9) for e in events])
    return found


def read_activities(events: Sequence[tuple[str, float, float]]) -> list[Activity]:
    """From the profiler's events as (name, start, end): each phase's stretches of operators, and the collectives."""
    events = sorted(events, key=lambda event: event[1])
    found: list[Activity] = []
    for phase, begin, end in (event for event in events if event[0] in PHASES):
        stretches: list[list[float]] = []
        for _, a, b in (e for e in events if e[0].startswith("aten::") and begin <= e[1] < end):
            if stretches and a <= stretches[-1][1] + 150e-6:  # a short gap is Python between two operators
                stretches[-1][1] = max(stretches[-1][1], b)
            else:
                stretches.append([a, b])
        found += [Activity(phase, a, b) for a, b in stretches]
    kinds = (
        kind for name, *_ in events if name.startswith("c10d::") for part, kind in COLLECTIVES.items() if part in name
    )
    # gloo works in a thread of its own, in the order of the calls, and may name one collective after another.
    works = [event for event in events if event[0].startswith("gloo:")]
    found += [Activity(kind, a, b) for kind, (_, a, b) in zip(kinds, works, strict=False)]
    return sorted(found, key=lambda activity: activity.start)


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


def lanes_figure(ranks: Sequence[Sequence[Activity]], title: str) -> tuple[Figure, str]:
    """What each rank did in a real step: a lane for what it computed, one for its collectives. All lanes share one clock."""
    zero = min(activity.start for lane in ranks for activity in lane)
    end = max(activity.end for lane in ranks for activity in lane) - zero
    unit, size = second_unit(end)
    figure, axes = subplots(figsize=(7.6, 1.2 + 0.85 * len(ranks)), layout="constrained")
    jobs = [
        (rank, a.what, (a.start - zero) / size, (a.end - zero) / size) for rank, lane in enumerate(ranks) for a in lane
    ]
    _draw_lanes(figure, axes, jobs, range(len(ranks)))
    axes.set(xlim=(0, end / size), xlabel=f"time, {unit}", title=title)
    said = []
    for rank, lane in enumerate(ranks):
        sent = ", ".join(f"{count} {what}" for what, count in Counter(a.what for a in lane if not a.computes).items())
        computed = format_seconds(sum(a.end - a.start for a in lane if a.computes))
        said.append(f"rank {rank} computes {computed} and takes part in {sent}")
    return figure, f"{title}: {'; '.join(said)}."


def _draw_lanes(figure: Figure, axes, jobs: Sequence[tuple[int, str, float, float]], ranks: Iterable[int]) -> None:
    """`jobs` are (rank counted from the top, what, start, end); `ranks` their numbers."""
    for rank, what, start, end in jobs:
        color, hatch = LOOKS[what]
        look = {"facecolor": COLORS[color], "edgecolor": COLORS["paper"], "hatch": hatch, "linewidth": 0.3}
        axes.add_patch(Rectangle((start, 2 * rank + (what not in PHASES) - 0.38), end - start, 0.76, **look))
    names = [name for rank in ranks for name in (f"rank {rank} computes", "sends, receives")]
    axes.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.4, -0.6))
    axes.grid(axis="y", visible=False)
    used = {what: look for what, look in LOOKS.items() if any(job[1] == what for job in jobs)}
    handles = [Patch(facecolor=COLORS[color], hatch=hatch, edgecolor=COLORS["paper"]) for color, hatch in used.values()]
    figure.legend(handles, list(used), loc="outside upper center", ncols=len(used))


def units_figure(table: pd.DataFrame) -> tuple[Figure, str]:
    """Peak and predicted seconds against the number of units: `table` has columns `units`, `peak`, `gathered` (bytes) and
    one of seconds for each network."""
    figure, (left, right) = subplots(1, 2, figsize=(7.6, 3.2), layout="constrained")
    unit, size = byte_unit(table["peak"].max())
    left.plot(table["units"], table["peak"] / size, "o-", color=COLORS["measured"], label="peak of a rank, measured")
    left.plot(table["units"], table["gathered"] / size, "s--", color=COLORS["temporaries"], label="largest unit")
    left.set(xlabel="units", ylabel=unit, ylim=(0, None), xscale="log")
    networks = [name for name in table if name not in ("units", "peak", "gathered")]
    for name, marker, color in zip(networks, "ovD", ("first", "second", "third"), strict=False):
        right.plot(table["units"], table[name], f"{marker}-", color=COLORS[color], label=name)
    right.set(xlabel="units", ylabel="seconds of a step on the wire", yscale="log", xscale="log")
    for axes in (left, right):
        axes.set_xticks(table["units"], [f"{count}" for count in table["units"]])
        axes.minorticks_off()
        axes.legend()
    said = "; ".join(
        f"{format_counted(row.units, 'unit')}: peak {format_bytes(row.peak)}, largest unit {format_bytes(row.gathered)}, "
        + ", ".join(f"{name} {format_seconds(table.loc[row.Index, name])}" for name in networks)
        for row in table.itertuples()
    )
    return figure, f"Peak of a rank and seconds on the wire against the number of units. {said}."


def lengths_figure(consistent: Mapping[str, tuple[int, int] | None], longest: int) -> tuple[Figure, str]:
    """For each row of a table of largest batches, the lengths of a sequence (shortest, longest) that agree with it, or None.

    `longest` is the most tokens that the model takes.
    """
    figure, axes = subplots(figsize=(7.6, 0.9 + 0.4 * len(consistent)), layout="constrained")
    words = {name: f"{found[0]} to {found[1]}" if found else "none" for name, found in consistent.items()}
    for row, (name, found) in enumerate(consistent.items()):
        start, end = found or (0, 0)
        axes.barh(row, end - start + bool(found), left=start, height=0.6, color=COLORS["measured"])
        axes.text(end + 0.012 * longest, row, words[name], va="center")
    last = max((found[1] for found in consistent.values() if found), default=longest)
    axes.set(yticks=range(len(consistent)), yticklabels=list(consistent), ylim=(len(consistent) - 0.5, -0.5))
    axes.set(xlabel="tokens of a sequence that agree with the row", xlim=(0, min(longest, 1.35 * last)))
    axes.grid(axis="y", visible=False)
    said = "; ".join(f"{name}: {length}" for name, length in words.items())
    return figure, f"Lengths of the sequence that agree with each row. {said}."


# A step on paper, to play with: equal units, a steady wire. Times are in forward passes of the model, memory in parameters.


@dataclass
class Schedule:
    """`jobs` of the first and the last rank as (rank, what, start, end); of the first, memory from each of `times` on."""

    jobs: list[tuple[int, str, float, float]]
    times: list[float]
    memory: list[float]

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
    latency: float = 0.01,
    prefetch: bool = True,
    slowest: float = 1.0,
) -> Schedule:
    """A step of `units` equal units under ZeRO `stage` 0 to 3.

    `wire` is what sending the parameters to another rank takes, `latency` what each collective takes on top. With `prefetch`
    the next unit is gathered while this one computes. The last rank computes `slowest` times as long as the others.
    """
    pace, kept = np.array([1.0, slowest][:ranks]), (1 / ranks if stage >= 2 else 1)
    around = wire * (ranks - 1) / ranks / units + latency * (ranks > 1)
    free = {"compute": np.zeros(len(pace)), "wire": np.zeros(len(pace))}
    jobs, changes, gathered = (
        [],
        [(0.0, kept + (2 / ranks if stage else 2))],
        {},
    )  # AdamW: twice the parameters

    def work(what: str, ready: np.ndarray, seconds: float) -> tuple[np.ndarray, np.ndarray]:
        """On each rank as soon as it is ready and its lane is free; a collective waits for all. Returns starts and ends."""
        lane = "compute" if what in PHASES else "wire"
        start = np.maximum(ready, free[lane])
        start = start if lane == "compute" else np.full(len(pace), start.max())
        free[lane] = start + seconds * (pace if lane == "compute" else 1)
        jobs.extend((rank, what, float(a), float(b)) for rank, (a, b) in enumerate(zip(start, free[lane], strict=True)))
        return start, free[lane]

    def hold(start: np.ndarray, size: float) -> None:
        changes.append((float(start[0]), size))

    def gather(unit: int, ready: np.ndarray) -> np.ndarray:
        gathered[unit], end = work("all-gather", ready, around)
        hold(gathered[unit], 1 / units)
        return end

    def reshard(unit: int, time: np.ndarray) -> None:
        if gathered.pop(unit, None) is not None:
            hold(time, -1 / units)

    for what, order, length in (("forward", range(units), 1), ("backward", range(units)[::-1], 2)):
        gathers = ranks > 1 and (stage == 3 or (stage == 2 and what == "forward"))
        ready = gather(order[0], free["compute"]) if gathers else free["compute"]
        for unit, following in zip(order, [*order[1:], None], strict=True):
            start, end = work(what, ready, length / units)
            more = gathers and following is not None
            ready = gather(following, start) if more and prefetch else end
            if what == "forward":
                hold(start, ACTIVATIONS / units)
                if stage == 3:
                    reshard(unit, end)
            else:
                hold(end, -ACTIVATIONS / units)
                reshard(unit, end)
                hold(start, 1 / units)  # the unit's whole gradient, until it is reduced
                done = end
                if ranks > 1:
                    sends = ("reduce-scatter", around) if stage >= 2 else ("all-reduce", 2 * around)
                    done = work(sends[0], end, sends[1])[1]
                hold(done, kept / units - 1 / units)
            if more and not prefetch:
                ready = gather(following, end)
    end = work("update", np.maximum(free["compute"], free["wire"]), 0.1 / (ranks if stage else 1))[1]
    if stage == 1 and ranks > 1:
        work("all-gather", end, around * units)
    return Schedule(jobs, *_add_up(changes))


ACTIVATIONS = 0.5
"""Of the whole model, in sizes of its parameters."""


def _add_up(changes: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Times, and the sum from each of them on; changes at one instant count together."""
    totals, total, last = {}, 0.0, -1.0
    for time, change in sorted(changes):
        total += change
        last = time if time - last > 1e-6 else last
        totals[last] = total
    return list(totals), list(totals.values())


def play_sharding(
    stage: int = 3, ranks: int = 8, units: int = 6, wire: float = 1.0, latency: float = 0.02, prefetch: bool = True,
    slowest: float = 1.0,
) -> tuple[Figure, str]:  # fmt: skip
    """Play: the lanes of the first and the last rank in a step on paper; below, the first rank's memory."""
    plan, followed = step_on_paper(stage, ranks, units, wire, latency, prefetch, slowest), [0, ranks - 1][:ranks]
    size = (7.6, 3.6 + 0.8 * len(followed))
    figure, (above, below) = subplots(
        2, figsize=size, layout="constrained", sharex=True, height_ratios=(0.75 * len(followed), 1.7)
    )
    _draw_lanes(figure, above, plan.jobs, followed)
    peak = max(plan.memory)
    below.fill_between(plan.times, plan.memory, step="post", color=COLORS["activations"], alpha=0.5)
    below.step(plan.times, plan.memory, where="post", color=COLORS["ink"], linewidth=1.2)
    below.axhline(peak, color=COLORS["warning"], linestyle="--", linewidth=1.2)
    below.text(plan.end, peak, f"peak {peak:.2f} ", ha="right", va="bottom", color=writing("warning"))
    below.set(ylabel="memory of rank 0\n(parameters = 1)", ylim=(0, max(2.0, 1.2 * peak)), xlim=(0, plan.end))
    below.set_xlabel("time (forward pass of the model = 1)")
    counted_ranks = f"{STAGES[stage]}, {format_counted(ranks, 'rank')}"
    said = f"{counted_ranks}: a step takes {plan.end:.2f}, of which rank 0 waits {plan.waiting:.0%}"
    above.set_title(said)
    slow = f"; the last rank computes {slowest:g} times as long" if ranks > 1 and slowest > 1 else ""
    made = f"{sum(job[0] == 0 for job in plan.jobs)} jobs of a rank with {format_counted(units, 'unit')}{slow}"
    return figure, f"{said}; {made}; the memory peaks at {peak:.2f}."
