"""Chapter 10: the same training on real ranks by several strategies of sharding.

Each is measured: bytes at the peak, bytes on the wire, the parameters afterwards.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function

from course_utils import models
from course_utils.distributed import DDP, FSDP, ShardedOptimizer, Traffic, counted
from course_utils.lessons.shared import account_of, inner_optimizer, local_part
from course_utils.memory import Recipe, distinct_bytes, estimate
from course_utils.memory.step.sharded import units_of
from course_utils.memory.trace.allocator import Account, allocator_of
from course_utils.units import MiB

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# The strategies. Each returns a `Setup`.


@dataclass
class Setup:
    """A model as a strategy wraps it, its optimizer, and how to get the full parameters by name."""

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


def zero3(model: nn.Module, min_parameters: int | None = None, **options) -> Setup:
    """Parameters are sharded too. A unit is a block, or a module with at least `min_parameters`."""
    units = units_of(model) if min_parameters is None else modules_of_at_least(min_parameters, model)[0]
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


STRATEGIES = {"DDP": ddp, "ZeRO-1": zero1, "ZeRO-2": zero2, "ZeRO-3": zero3}
STRATEGIES |= {"FSDP2": fsdp2, "torch's ZeRO-1": torch_zero1}


def modules_of_at_least(count: int, module: nn.Module) -> tuple[list[nn.Module], int]:
    """The smallest modules with `count` parameters outside of smaller ones, inner ones first; how many are left over."""
    modules = []
    left_over = sum(p.numel() for p in module.parameters(recurse=False))
    for child in module.children():
        inner_modules, rest = modules_of_at_least(count, child)
        modules += inner_modules
        left_over += rest
    if left_over >= count and not isinstance(module, nn.ModuleList):  # a list has no forward pass
        return [*modules, module], 0
    return modules, left_over


# Measuring.


@dataclass
class RankMeasurement:
    """What one rank saw of a strategy."""

    peak: int  # bytes, the `lowest_peak` of its steps, all that it keeps included
    carried: float | None  # bytes over the loopback device in the quietest step, by the number of ranks, where counted
    elements: dict[str, int]  # of parameters and of optimizer state that lie on the rank between steps
    kinds: tuple[str, ...]  # of parameters: names of their classes
    traffic: Traffic  # of a step
    losses: list[float]
    full: dict[str, torch.Tensor] = field(repr=False)  # parameters at the end


STEPS = 5
"""Steps of training, the same for every strategy; after them one is counted."""
RECORDED_STEPS = 8
"""Steps whose allocations are recorded."""


def measure_on_rank(strategy: str, config: "PretrainedConfig", recipe: Recipe, **options) -> RankMeasurement:
    """To be launched: `STEPS` steps of the model of `config` by one of `STRATEGIES`, with other batches on each rank.

    The bytes of a step are those of steps after them. A peak is what the tensors take that a rank keeps (parameters, buffers,
    optimizer state, batch), and what the allocator saw on top of what was there when the step began.
    """
    setup = STRATEGIES[strategy](models.from_configuration(config), **options)
    batch = batch_of(config, recipe, dist.get_rank())
    losses = [setup.step(batch).item() for _ in range(STEPS)]
    parameters = {name: tensor.detach().clone() for name, tensor in setup.full().items()}
    with counted() as traffic:
        setup.step(batch)
    above, carried = record(lambda: setup.step(batch))
    by_parameter = inner_optimizer(setup.optimizer).state.values()
    state = [v for values in by_parameter for v in values.values() if isinstance(v, torch.Tensor)]
    tensors = [*setup.model.parameters(), *setup.model.buffers(), *state, *batch.values()]
    by_kind = {"parameters": setup.model.parameters(), "optimizer state": (s for s in state if s.dim())}
    return RankMeasurement(
        peak=distinct_bytes(map(local_part, tensors)) + above,
        carried=carried,
        elements={kind: sum(local_part(t).numel() for t in tensors) for kind, tensors in by_kind.items()},
        kinds=tuple(sorted({type(p).__name__ for p in setup.model.parameters()})),
        traffic=traffic,
        losses=losses,
        full=parameters,
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
    setup = fsdp2(models.from_configuration(config))
    batch = batch_of(config, recipe, dist.get_rank())
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
    calls = traffic.frame()["calls"]
    sent = round(traffic.sent / MiB, 2)
    peak = round(record(update)[0] / MiB, 2)
    return Accumulation(calls["all-gather"], calls["reduce-scatter"], sent, peak)


def record(step: Callable[[], object]) -> tuple[int, float | None]:
    """Run `step` on all ranks at once `RECORDED_STEPS` times, or up to five times as often until each has a balanced account.

    Returns the bytes of `lowest_peak`, and `bytes_carried` in the quietest step, for each rank.
    """
    accounts, carried = [], []
    all_balanced = torch.zeros(())
    while len(accounts) < RECORDED_STEPS or (not all_balanced and len(accounts) < 5 * RECORDED_STEPS):
        accounts.append(account_of(lambda: carried.append(bytes_carried(step))))
        all_balanced = torch.tensor(float(any(account.left == 0 for account in accounts)))
        dist.all_reduce(all_balanced, dist.ReduceOp.MIN)
    return lowest_peak(accounts), None if None in carried else min(carried) / dist.get_world_size()


def lowest_peak(accounts: Sequence[Account]) -> int:
    """The lowest peak above the start.

    A thread of gloo's may be the last to hold a tensor. The profiler misses what it releases, and the account does not balance;
    where it is late, a step needs more. Both only add to a peak.
    """
    return min(account.above_start for account in accounts)


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


def measure_all_on_rank(
    strategies: Sequence[str], config: "PretrainedConfig", recipe: Recipe
) -> dict[str, RankMeasurement]:
    """To be launched: `measure_on_rank` for one strategy after the other."""
    return {strategy: measure_on_rank(strategy, config, recipe) for strategy in strategies}


def block_activations(config: "PretrainedConfig", recipe: Recipe) -> int:
    """What one block saves for its backward pass: a model's activations with and without its last block."""
    saved = []
    for blocks in (config.num_hidden_layers, config.num_hidden_layers - 1):
        shallow = type(config)(**{**config.to_dict(), "num_hidden_layers": blocks})
        saved.append(estimate(shallow, recipe).by_instant()["forward"]["activations"])
    return saved[0] - saved[1]


@dataclass(frozen=True)
class Sizes:
    """`P` parameters: `u` in each of `B` blocks, `h` in the output layer; bytes that a block saves, and that the loss takes."""

    P: int
    B: int
    u: int
    h: int
    a_bytes: int
    loss_bytes: int

    @classmethod
    def from_model(cls, config: "PretrainedConfig", recipe: Recipe) -> "Sizes":
        """The sizes of a model of Transformers and of a step of `recipe`, in 32 bits."""
        model = models.from_configuration(config)
        blocks = units_of(model)
        return cls(
            P=models.parameter_count(model),
            B=len(blocks),
            u=models.parameter_count(blocks[0]),
            h=model.lm_head.weight.numel(),
            a_bytes=block_activations(config, recipe),
            # The logits' log-probabilities, the gradient of these, and that of the logits.
            loss_bytes=12 * recipe.batch * recipe.sequence * config.vocab_size,
        )


def two_moments(strategy: str, s: Sizes, N: int) -> dict[str, float]:  # noqa: N803
    """Bytes of a rank of N at its two fullest moments, with AdamW in 32 bits and gloo, which copies what it sums.

    "loss": backward begins, and all activations wait. "gradients": the gradients of all, or of one unit, are summed.
    """
    parameters = gradients = 4 * s.P  # 4 bytes each
    averages = 8 * s.P  # Adam's two
    if strategy in ("DDP", "ZeRO-1"):
        resident = parameters + (averages if strategy == "DDP" else averages / N)
        buckets = gradients if strategy == "DDP" else 0
        return {"loss": resident + s.B * s.a_bytes + s.loss_bytes, "gradients": resident + gradients + buckets}
    shards = (parameters + averages) / N
    root, unit, output = 4 * (s.P - s.B * s.u), 4 * s.u, 4 * s.h  # a tensor of each, gathered or a gradient
    # A block keeps activations until its backward pass, and under ZeRO-2 its gathered parameters.
    kept_per_block = s.a_bytes + (unit if strategy == "ZeRO-2" else 0)
    # Gradient shards so far, and what is still kept, when backward is at the last block and when it is at the first.
    at_last_block = unit / N + (s.B - 1) * kept_per_block
    at_first_block = s.B * unit / N
    # The root's parameters are gathered and the output layer's gradient waits. 3 * unit is 3 · 4u = 12u: the block's gradient
    # as it arises, in the flat row that is sent, and in gloo's own copy, in which it sums; NCCL has none.
    in_block = root + output + 3 * unit + max(at_last_block, at_first_block)
    in_root = gradients / N + 3 * root  # gradient shards of all, and the root's gradient three times
    return {"loss": shards + root + s.B * kept_per_block + s.loss_bytes, "gradients": shards + max(in_block, in_root)}


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
