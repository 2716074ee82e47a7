"""The same training shared out in several ways on real ranks: bytes at the peak, bytes on the wire, the parameters after it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function

from course_utils import models
from course_utils.distributed import DDP, FSDP, ShardedOptimizer, counted
from course_utils.distributed.traffic import Entry, Traffic
from course_utils.memory import Recipe, distinct_bytes, dry_run
from course_utils.memory.allocator import allocator_of
from course_utils.training.sharded_trace import Activity, trace_step

RATE = 1e-3
_MEASURED = 3
STEPS = 1 + _MEASURED + 1
"""One in which the optimizer's state is born, those whose peak is read, one whose messages are counted."""
_HERE = torch.device("cpu")


def adamw(parameters) -> torch.optim.AdamW:
    """torch's, one tensor after another, so that its temporaries are small."""
    return torch.optim.AdamW(parameters, lr=RATE, foreach=False)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The transformer's blocks: what Transformers says must not be split, as FSDP's units."""
    names = set(model._no_split_modules)
    return [module for module in model.modules() if type(module).__name__ in names]


@dataclass
class Setup:
    """A model as a way of sharing wraps it, its optimizer, and how to get all parameters by name."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    whole: Callable[[], dict[str, torch.Tensor]]

    def step(self, batch: dict) -> torch.Tensor:
        """Forward, backward, update, each with its mark."""
        with record_function("forward"):
            loss = self.model(**batch).loss
        with record_function("backward"):
            loss.backward()
        with record_function("update"):
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.detach()


def ddp(model: nn.Module) -> Setup:
    """Everything on every rank."""
    wrapped = DDP(model)
    return Setup(wrapped, adamw(wrapped.parameters()), model.state_dict)


def zero1(model: nn.Module) -> Setup:
    """The optimizer's state is shared out; each gradient goes to the owner of its state only."""
    options = {"lr": RATE, "foreach": False, "average": True}
    return Setup(model, ShardedOptimizer(model.parameters(), torch.optim.AdamW, **options), model.state_dict)


def zero2(model: nn.Module, **options) -> Setup:
    """Gradients too; the parameters stay gathered from a unit's forward pass to its backward pass."""
    return zero3(model, reshard_after_forward=False, **options)


def zero3(model: nn.Module, **options) -> Setup:
    """Parameters too. A unit is a block, or what `units` says."""
    options = {"units": blocks_of(model), **options}
    wrapped = FSDP(model, **options)
    return Setup(wrapped, adamw(wrapped.parameters()), wrapped.full_state_dict)


def fsdp2(model: nn.Module, mesh: Sequence[int] | None = None, **options) -> Setup:
    """torch's own, unit by unit. `mesh` of two numbers shards within groups and replicates between them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    shape = tuple(mesh or (dist.get_world_size(),))
    options["mesh"] = init_device_mesh("cpu", shape, mesh_dim_names=("between", "within")[-len(shape) :])
    for unit in [*blocks_of(model), model]:
        fully_shard(unit, **options)
    whole = lambda: {name: tensor.full_tensor() for name, tensor in model.state_dict().items()}  # noqa: E731
    return Setup(model, adamw(model.parameters()), whole)


WAYS = {"DDP": ddp, "ZeRO-1": zero1, "ZeRO-2": zero2, "ZeRO-3": zero3, "FSDP2": fsdp2}


@dataclass
class Seen:
    """What one rank saw: `peak` in bytes of a step, all it keeps included; `traffic` of the last.

    `kept` are the elements of parameters and of optimizer state between steps, `whole` the parameters at the end.
    """

    peak: int
    kept: dict[str, int]
    kinds: tuple[str, ...]
    entries: list[Entry]
    losses: list[float]
    whole: dict[str, torch.Tensor] = field(repr=False)

    @property
    def traffic(self) -> Traffic:
        """The ledger again, with its `frame()`."""
        ledger = Traffic()
        ledger.entries.extend(self.entries)
        return ledger


def share(way: str, config, recipe: Recipe, **options) -> Seen:
    """To be launched: `STEPS` steps of the model of `config` in one of `WAYS`, with batches that differ by rank.

    Everything lies in the processor's memory, whatever else the machine has.
    """
    setup = WAYS[way](models.from_configuration(config), **options)
    batch = batch_of(config, recipe, dist.get_rank())
    losses, above = [setup.step(batch)], []
    for _ in range(_MEASURED):
        allocator = allocator_of(_HERE)
        with allocator.recording(), allocator.measured():
            losses.append(setup.step(batch))
        above.append(allocator.account().above_start)
    state = list(_state(setup.optimizer))
    kept = distinct_bytes(
        [*map(_local, setup.model.parameters()), *setup.model.buffers(), *map(_local, state), *batch.values()]
    )
    with counted() as ledger:
        losses.append(setup.step(batch))
    return Seen(
        # Of several steps, since a thread of gloo's may hold what the account has as gone, or the other way round.
        kept + round(median(above)),
        {"parameters": _elements(setup.model.parameters()), "optimizer state": _elements(s for s in state if s.dim())},
        tuple(sorted({type(p).__name__ for p in setup.model.parameters()})),
        ledger.entries,
        [loss.item() for loss in losses],
        {name: tensor.detach().clone() for name, tensor in setup.whole().items()},
    )


def share_each(ways: Sequence[str], config, recipe: Recipe) -> dict[str, Seen]:
    """To be launched: `share` for one way after the other."""
    return {way: share(way, config, recipe) for way in ways}


def trace_each(ways: dict[str, tuple[str, dict]], config, recipe: Recipe) -> dict[str, list[Activity]]:
    """To be launched: what this rank does in the third step of each; a way is a name of `WAYS` and its options."""
    seen = {}
    for name, (way, options) in ways.items():
        setup = WAYS[way](models.from_configuration(config), **options)
        batch = batch_of(config, recipe, dist.get_rank())
        for _ in range(2):
            setup.step(batch)
        dist.barrier()
        seen[name] = trace_step(lambda setup=setup, batch=batch: setup.step(batch))
    return seen


def predicted_peak(way: str, config, recipe: Recipe, ranks: int) -> int:
    """Bytes of the fullest rank: `way` itself, run dry as each of `ranks`, the others pretended."""

    def build() -> tuple:
        setup = WAYS[way](models.from_configuration(config))
        return setup.model, setup.optimizer, setup, batch_of(config, recipe, 0)

    step = lambda model, optimizer, setup, batch: setup.step(batch)  # noqa: E731
    return max(dry_run(build, step, ranks=ranks, rank=rank).peak for rank in range(ranks))


def train_alone(config, recipe: Recipe, ranks: int, steps: int = STEPS) -> dict[str, torch.Tensor]:
    """The truth: one process that takes the batches of all `ranks` in turn and divides by their number."""
    model = models.from_configuration(config)
    optimizer = adamw(model.parameters())
    batches = [batch_of(config, recipe, rank) for rank in range(ranks)]
    for _ in range(steps):
        for batch in batches:
            (model(**batch).loss / ranks).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def batch_of(config, recipe: Recipe, rank: int) -> dict[str, torch.Tensor]:
    """The batch of a rank, the same in every process."""
    draw = torch.Generator().manual_seed(1000 + rank)
    ids = torch.randint(1, config.vocab_size, (recipe.batch, recipe.sequence), generator=draw)
    return {"input_ids": ids, "labels": ids.clone()}


def offloaded_step(
    model: nn.Module, host: Sequence[torch.Tensor], optimizer: torch.optim.Optimizer, batch: dict
) -> None:
    """A step whose update happens on copies of the parameters in the host's memory, `host`, which `optimizer` trains."""
    model(**batch).loss.backward()
    for parameter, copy in zip(model.parameters(), host, strict=True):
        copy.grad, parameter.grad = parameter.grad.to("cpu"), None
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for parameter, copy in zip(model.parameters(), host, strict=True):
            parameter.copy_(copy)


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Over all parameters by name."""
    return max((one[name] - other[name]).abs().max().item() for name in one)


def _state(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value))


def _elements(tensors: Iterable[torch.Tensor]) -> int:
    return sum(_local(tensor).numel() for tensor in tensors)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """What lies on this rank of it."""
    return getattr(tensor, "_local_tensor", tensor)
