"""One interface to the ways in which torch shares training out over ranks."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from course_utils.memory.step.sharded import shard_blocks, share_state
from course_utils.script.job import SHARDED_STRATEGIES, BatchSplit, Job
from course_utils.script.optimizers import make_optimizer

CLIP_TO = 1.0
"""The norm to which the gradients of an update are clipped."""
OptimizerOf = Callable[[nn.Module], Optimizer]


class Engine:
    """Trains a model in one process; a subclass shares that out over ranks.

    `plain` is the module by its own names, `model` what is called, `stateful` the optimizer that keeps this rank's state.
    An engine that `averages` takes the mean of the ranks' gradients. One that `is_opaque` alone writes, reads and counts its
    state, by methods `write` and `read`. One that `casts_itself` needs no `torch.autocast` around the model. `norm` is that of
    the last update's gradients before they were clipped, if they are.
    """

    averages = is_opaque = casts_itself = False
    norm: torch.Tensor | float = math.nan

    def __init__(self, plain: nn.Module, optimizer_of: OptimizerOf):
        self.plain = self.model = plain
        self.optimizer = self.stateful = optimizer_of(plain)

    @property
    def keeps_counts_on_device(self) -> bool:
        """Whether step counts are on the parameters' device, where torch has them for fused and for captured updates."""
        return any(group.get("fused") or group.get("capturable") for group in self.optimizer.param_groups)

    def micro_batch_context(self, is_last: bool) -> AbstractContextManager:
        """A context for one micro-batch, forward and backward; `is_last`: an update follows it."""
        return nullcontext()

    def backward(self, loss: torch.Tensor) -> None:
        """Gradients of a micro-batch, added to those before it."""
        loss.backward()

    def clip(self, max_norm: float) -> None:
        """Shorten the gradients of the coming update to a norm of `max_norm`."""
        self.norm = nn.utils.clip_grad_norm_(self.plain.parameters(), max_norm)

    def update(self, step: Callable[[], object]) -> None:
        """An update, by `step`; the gradients are dropped."""
        step()
        self.optimizer.zero_grad()

    def state(self) -> Iterator[tuple[nn.Parameter, dict]]:
        """The optimizer's state of each parameter on this rank."""
        states = self.stateful.state
        return ((p, states.get(p, {})) for group in self.stateful.param_groups for p in group["params"])

    def set_state(self, parameter: nn.Parameter, state: dict) -> None:
        """Put back what was kept for a parameter."""
        for optimizer in getattr(self.stateful, "optimizers", [self.stateful]):
            if any(parameter is p for group in optimizer.param_groups for p in group["params"]):
                optimizer.state[parameter] = state


class Ddp(Engine):
    """`DistributedDataParallel` (Li et al. 2020): gradients travel once an update."""

    averages = True

    def __init__(self, plain: nn.Module, optimizer_of: OptimizerOf):
        super().__init__(plain, optimizer_of)
        self.model = DistributedDataParallel(plain)

    def micro_batch_context(self, is_last: bool) -> AbstractContextManager:
        return nullcontext() if is_last else self.model.no_sync()


class Zero1(Ddp):
    """DDP with `ZeroRedundancyOptimizer`: every rank updates its own share of the parameters (Rajbhandari et al. 2020)."""

    def __init__(self, plain: nn.Module, optimizer_of: OptimizerOf):
        super().__init__(plain, lambda model: share_state(optimizer_of(model)))
        self.stateful = self.optimizer.optim


class Fsdp2(Engine):
    """`fully_shard` around every block and the whole, as ZeRO-3; with `replicas` in groups that hold everything each."""

    averages = casts_itself = True

    def __init__(self, plain: nn.Module, optimizer_of: OptimizerOf, job: Job, device: torch.device):
        shard_blocks(plain, device.type, job.replicas, is_half=job.precision == "autocast")
        super().__init__(plain, optimizer_of)


def make_engine(split: BatchSplit, plain: nn.Module, device: torch.device) -> Engine:
    """The engine that the job of `split` names, around a model on `device`."""
    job = split.job
    optimizer_of = partial(make_optimizer, job.optimizer, lr=job.lr, options=job.options)
    if job.strategy.startswith("deepspeed"):
        from course_utils.script.deepspeed import DeepSpeed

        engine = DeepSpeed(plain, optimizer_of, split)
    elif job.strategy in SHARDED_STRATEGIES:
        engine = Fsdp2(plain, optimizer_of, job, device)
    else:
        engine = {"none": Engine, "ddp": Ddp, "zero1": Zero1}[job.strategy](plain, optimizer_of)
    if job.compiled:
        engine.model.compile()
    return engine
