"""Chapter 10: the same training shared out in several ways on real ranks.

Each way is measured: bytes at the peak, bytes on the wire, the parameters afterwards, a timeline.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mode
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from course_utils import models
from course_utils.distributed import DDP, FSDP, ShardedOptimizer, Traffic, counted
from course_utils.distributed.torchrun import announce
from course_utils.lessons.shared import account_of, inner_optimizer, local_part
from course_utils.memory import Recipe, distinct_bytes, estimate
from course_utils.memory.step.sharded import units_of
from course_utils.memory.trace.allocator import Account, allocator_of, quiet
from course_utils.training.profile import PHASES
from course_utils.units import MiB

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# The ways to share a model out. Each returns a `Setup`.


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
    """PyTorch's AdamW, one tensor after another, so that its temporaries are small."""
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
    """PyTorch's ZeRO-1: `ZeroRedundancyOptimizer` beside its DDP."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.AdamW, lr=1e-3, foreach=False)
    return Setup(wrapped, optimizer, model.state_dict)


def zero2(model: nn.Module) -> Setup:
    """Gradients are sharded too; parameters stay gathered from a unit's forward pass to its backward pass."""
    return zero3(model, reshard_after_forward=False)


def zero3(model: nn.Module, least: int | None = None, **options) -> Setup:
    """Parameters are sharded too. A unit is a block, or a module with at least `least` parameters."""
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

    def full() -> dict[str, torch.Tensor]:
        return {name: tensor.full_tensor() for name, tensor in model.state_dict().items()}

    return Setup(model, adamw(model.parameters()), full)


WAYS = {"DDP": ddp, "ZeRO-1": zero1, "ZeRO-2": zero2, "ZeRO-3": zero3, "FSDP2": fsdp2, "torch's ZeRO-1": torch_zero1}


def modules_of_at_least(module: nn.Module, least: int) -> tuple[list[nn.Module], int]:
    """The smallest modules with `least` parameters outside of smaller ones, inner ones first; how many are left over."""
    modules = []
    left = sum(p.numel() for p in module.parameters(recurse=False))
    for child in module.children():
        inside, outside = modules_of_at_least(child, least)
        modules += inside
        left += outside
    if left >= least and not isinstance(module, nn.ModuleList):  # a list has no forward pass
        return [*modules, module], 0
    return modules, left


# Measuring.


@dataclass
class RankMeasurement:
    """What one rank saw of a way."""

    peak: int  # bytes, the `usual_peak` of its steps, all that it keeps included
    # Bytes over the loopback device in the quietest step, by the number of ranks; None: not counted.
    carried: float | None
    elements: dict[str, int]  # of parameters and of optimizer state that lie on the rank between steps
    kinds: tuple[str, ...]  # of parameters: names of their classes
    traffic: Traffic  # of a step
    losses: list[float]
    full: dict[str, torch.Tensor] = field(repr=False)  # parameters at the end


STEPS = 5
"""Steps of training, the same for every way; after them one is counted."""
RECORDED = 8
"""Steps whose allocations are recorded."""


def measure_way_on_rank(way: str, config: "PretrainedConfig", recipe: Recipe, **options) -> RankMeasurement:
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
    by_parameter = inner_optimizer(setup.optimizer).state.values()
    state = [v for values in by_parameter for v in values.values() if torch.is_tensor(v)]
    tensors = [*setup.model.parameters(), *setup.model.buffers(), *state, *batch.values()]
    tensors_of_kind = {"parameters": setup.model.parameters(), "optimizer state": (s for s in state if s.dim())}
    return RankMeasurement(
        peak=distinct_bytes(map(local_part, tensors)) + above,
        carried=carried,
        elements={kind: sum(local_part(tensor).numel() for tensor in every) for kind, every in tensors_of_kind.items()},
        kinds=tuple(sorted({type(p).__name__ for p in setup.model.parameters()})),
        traffic=traffic,
        losses=losses,
        full=trained,
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


class Accumulation(NamedTuple):
    """What an update cost a rank."""

    gathers: int
    scatters: int
    sent: float  # MiB, on a ring
    peak: float  # MiB


def accumulate_on_rank(
    config: "PretrainedConfig", recipe: Recipe, micro_batches: int, sync: bool = True, reshard: bool = True
) -> Accumulation:
    """To be launched: an update of FSDP2 from this many micro-batches.

    Without `sync` gradients are only sent with the last micro-batch, without `reshard` parameters stay
    gathered from each backward pass to the next forward pass.
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
    return Accumulation(
        calls["all-gather"], calls["reduce-scatter"], round(traffic.sent / MiB, 2), round(above / MiB, 2)
    )


def record(step: Callable[[], object]) -> tuple[int, float | None]:
    """`step` on all ranks at once, `RECORDED` times and on until each has one whose books balance, or five times as often.

    Returns the bytes of `usual_peak`, and `bytes_carried` in the quietest step, for each rank.
    """
    accounts, carried = [], []
    done = torch.zeros(())
    while len(accounts) < RECORDED or (not done and len(accounts) < 5 * RECORDED):
        accounts.append(account_of(lambda: carried.append(bytes_carried(step))))
        done = torch.tensor(float(any(account.left == 0 for account in accounts)))
        dist.all_reduce(done, dist.ReduceOp.MIN)
    return usual_peak(accounts), None if None in carried else min(carried) / dist.get_world_size()


def usual_peak(accounts: Sequence[Account]) -> int:
    """The peak above the start of most steps whose books balance.

    A thread of gloo's may be the last to hold a tensor. The profiler misses what it releases, and the books do not balance.
    Where it is late, on a busy machine, a step needs more than the others.
    """
    balanced = min(account.left for account in accounts)
    return mode(account.above_start for account in accounts if account.left == balanced)


def build_on_rank(config: "PretrainedConfig", device: str) -> tuple[Setup, int]:
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


def measure_ways_on_rank(ways: Sequence[str], config: "PretrainedConfig", recipe: Recipe) -> dict[str, RankMeasurement]:
    """To be launched: `measure_way_on_rank` for one way after the other."""
    return {way: measure_way_on_rank(way, config, recipe) for way in ways}


def block_activations(config: "PretrainedConfig", recipe: Recipe) -> int:
    """What one block saves for its backward pass: a model's activations with and without its last block."""
    saved = []
    for blocks in (config.num_hidden_layers, config.num_hidden_layers - 1):
        shallow = type(config)(**{**config.to_dict(), "num_hidden_layers": blocks})
        saved.append(estimate(shallow, recipe).by_instant()["forward"]["activations"])
    return saved[0] - saved[1]


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
        """The sizes of a model of Transformers and of a step of `recipe`, in 32 bits."""
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
        resident = parameters + (averages if way == "DDP" else averages / N)
        copies = gradients if way == "DDP" else 0  # DDP's buckets
        return {"loss": resident + s.B * s.a + s.loss, "gradients": resident + gradients + copies}
    resident = (parameters + averages) / N  # shards
    root, unit, output = 4 * (s.P - s.B * s.u), 4 * s.u, 4 * s.h  # a tensor of each, gathered or a gradient
    waits = s.a + (unit if way == "ZeRO-2" else 0)  # of a block until its backward: activations, gathered parameters
    first, last = unit / N + (s.B - 1) * waits, s.B * unit / N  # gradient shards, and what the other blocks still hold
    # The root's parameters are gathered and the output layer's gradient waits. 3 * unit is 3 · 4u = 12u: the block's gradient
    # as it arises, in the flat row that is sent, and in gloo's own copy, in which it sums; NCCL has none.
    in_block = root + output + 3 * unit + max(first, last)
    in_root = gradients / N + 3 * root  # gradient shards of all, and the root's gradient three times
    return {"loss": resident + root + s.B * waits + s.loss, "gradients": resident + max(in_block, in_root)}


def train_alone(config: "PretrainedConfig", recipe: Recipe, ranks: int) -> dict[str, torch.Tensor]:
    """The truth: one process that takes the batches of all `ranks` in turn and divides by their number.

    It has a rank's share of the threads, since kernels add in another order with more of them.
    """
    model = models.from_configuration(config)
    optimizer = adamw(model.parameters())
    threads = torch.get_num_threads()
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
        return self.what in PHASES


def trace_ways_on_rank(
    ways: dict[str, tuple[str, dict]], config: "PretrainedConfig", recipe: Recipe
) -> dict[str, list[Activity]]:
    """To be launched: what this rank does in the third step of each; a way is a name of `WAYS` and its options."""
    activities = {}
    for name, (way, options) in ways.items():
        setup = WAYS[way](models.from_configuration(config), **options)
        batch = batch_of(config, recipe, dist.get_rank())
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
    """The phases' runs of operators without a gap, and the collectives, from the profiler's events as (name, start, end)."""
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

    options = {"use_cpu": True, "max_steps": 1, "report_to": [], "disable_tqdm": True, "save_strategy": "no"}
    arguments = TrainingArguments(folder, fsdp=True, ddp_find_unused_parameters=False, **options)
    rows = [{name: row[0] for name, row in batch_of(config, recipe, rank).items()} for rank in range(2)]
    trainer = Trainer(model=models.from_configuration(config), args=arguments, train_dataset=rows)
    trainer.remove_callback(PrinterCallback)
    with counted() as sent:
        result = trainer.train()
    kind, model = str(trainer.accelerator.distributed_type), trainer.model_wrapped
    return LibraryRun(kind, type(model).__name__, models.parameter_count(model), result.training_loss, sent)
