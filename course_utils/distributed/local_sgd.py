"""Local SGD: every rank trains alone for H steps, then all go on from the mean of their parameters (Stich 2019).

Also called parameter averaging or federated averaging (McMahan et al. 2017). With an outer optimizer, for which a round of H
steps is one gradient, it is DiLoCo (Douillard et al. 2023).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from course_utils.distributed.ddp import split_into_buckets
from course_utils.distributed.traffic import uncounted


@dataclass(frozen=True)
class OuterNesterov:
    """Nesterov momentum over rounds, as in DiLoCo. `OuterNesterov(lr=1, momentum=0)` is plain averaging."""

    lr: float = 0.7
    momentum: float = 0.9

    def step(
        self, start: Float[Tensor, "*shape"], mean: Float[Tensor, "*shape"], velocity: Float[Tensor, "*shape"]
    ) -> None:
        """Move `start`, the parameters at the last average, by one round that ended on average at `mean`.

        The gradient is Δ = start − mean: u ← μ u + Δ, θ ← θ − η (Δ + μ u).
        """
        delta = start - mean
        velocity.mul_(self.momentum).add_(delta)
        start.sub_(self.lr * (delta + self.momentum * velocity))


class LocalSGD:
    """Averages what `optimizer` trains over all ranks, after every `sync_every` calls of `step`.

    - `state` is what an average does with the optimizer's state, such as Adam's m and v: "keep" leaves each rank its own,
      "average" sends it too and takes the mean, "reset" drops it.
    - `extra_tensors` are averaged too, such as a module's buffers.
    - `outer_optimizer` steps from the last average towards the mean. It keeps two more copies of the parameters.

    Every rank starts with rank 0's parameters. `sync_every` may change on the way, on all ranks alike.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        sync_every: int,
        *,
        state: str = "keep",
        extra_tensors: Iterable[Tensor] = (),
        outer_optimizer: OuterNesterov | None = None,
    ):
        self.optimizer, self.outer_optimizer = optimizer, outer_optimizer
        self.sync_every, self.state = sync_every, state
        self.steps = 0
        self.extra_tensors = list(extra_tensors)
        self.parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        for tensor in (*self.parameters, *self.extra_tensors):
            dist.broadcast(tensor.detach(), 0)
        self.start = [p.detach().clone() for p in self.parameters] if outer_optimizer else []
        self.velocity = [torch.zeros_like(start) for start in self.start]

    def step(self) -> bool:
        """Call after every step of the optimizer; True if the ranks have averaged."""
        self.steps += 1
        if self.steps < self.sync_every:
            return False
        self.average()
        return True

    def finish(self) -> None:
        """Call after the last step: averages what a shorter last round has left apart."""
        if self.steps:
            self.average()

    @torch.no_grad()
    def average(self) -> None:
        """End the round: all ranks call it together."""
        tensors = [*self.parameters, *self.extra_tensors]
        if self.state == "average":
            tensors += [value for p in self.parameters for value in self.optimizer.state[p].values()]
        average_over_ranks(tensors)
        if self.state == "reset":
            self.optimizer.state.clear()
        if self.outer_optimizer:
            for parameter, start, velocity in zip(self.parameters, self.start, self.velocity, strict=True):
                self.outer_optimizer.step(start, parameter, velocity)
                parameter.copy_(start)
        self.steps = 0


@torch.no_grad()
def average_over_ranks(tensors: Sequence[Tensor]) -> None:
    """Replace the tensors by their means over all ranks. A rank sends 2(N − 1)/N of their bytes."""
    for bucket in split_into_buckets(tensors, 25 * 2**20):
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for tensor, mean in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
            tensor.copy_(mean.view_as(tensor))


@torch.no_grad()
def drift(parameters: Iterable[Tensor]) -> float:
    """The distance of this rank from the mean of all ranks, ‖θ − mean θ‖. What it sends is not counted."""
    flat = torch.cat([p.reshape(-1) for p in parameters])
    mean = flat.clone()
    with uncounted():
        average_over_ranks([mean])
    return float((flat - mean).norm())
