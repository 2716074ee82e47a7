"""One interface to the ways in which torch shares training out over ranks."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from course_utils.memory.step.sharded import shard_blocks, share_state

MakeOptimizer = Callable[[nn.Module], Optimizer]


class Engine:
    """What trains a model in one process; a subclass shares that out over ranks.

    `plain` is the module by its own names, `model` what is called. `averages`: the library takes the mean of the ranks'
    gradients. `opaque`: the library keeps the state in a form of its own, so it writes and reads checkpoints itself, by `write`
    and `read`, and nobody else counts its bytes. `casts_itself`: it needs no `torch.autocast` around the model. `norm` is that
    of the last update's gradients before they were clipped, nan where they are not. `stateful` is the optimizer that keeps
    this rank's state.
    """

    averages, opaque, casts_itself = False, False, False
    norm: torch.Tensor | float = math.nan

    def __init__(self, plain: nn.Module, make_optimizer: MakeOptimizer):
        self.plain = self.model = plain
        self.optimizer = self.stateful = make_optimizer(plain)

    @property
    def keeps_counts_on_device(self) -> bool:
        """Whether step counts lie beside the parameters, as torch has them for what is fused or captured in a graph."""
        return any(group.get("fused") or group.get("capturable") for group in self.optimizer.param_groups)

    def around(self, is_last: bool) -> AbstractContextManager:
        """A context for one micro-batch, forward and backward; `is_last`: an update follows it."""
        return nullcontext()

    def backward(self, loss: torch.Tensor) -> None:
        """Gradients of a micro-batch, added to those before it."""
        loss.backward()

    def clip(self, most: float) -> None:
        """Shorten the gradients of the coming update to a norm of `most`."""
        self.norm = nn.utils.clip_grad_norm_(self.plain.parameters(), most)

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

    def __init__(self, plain: nn.Module, make_optimizer: MakeOptimizer):
        super().__init__(plain, make_optimizer)
        self.model = DistributedDataParallel(plain)

    def around(self, is_last: bool) -> AbstractContextManager:
        return nullcontext() if is_last else self.model.no_sync()


class Zero1(Ddp):
    """DDP with `ZeroRedundancyOptimizer`: every rank updates its own share of the parameters (Rajbhandari et al. 2020)."""

    def __init__(self, plain: nn.Module, make_optimizer: MakeOptimizer):
        super().__init__(plain, lambda model: share_state(make_optimizer(model)))
        self.stateful = self.optimizer.optim


class Fsdp2(Engine):
    """`fully_shard` around every block and the whole, as ZeRO-3; with `replicas` in groups that hold everything each."""

    averages, casts_itself = True, True

    def __init__(
        self, plain: nn.Module, make_optimizer: MakeOptimizer, *, device: torch.device, halves: bool, replicas: int = 1
    ):
        shard_blocks(plain, device.type, replicas, halves=halves)
        super().__init__(plain, make_optimizer)
