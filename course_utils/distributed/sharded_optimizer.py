"""ZeRO-1: every rank keeps the optimizer's state of its share of the parameters only (Rajbhandari et al. 2020, section 5.1)."""

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist


class ShardedOptimizer:
    """`optimizer_cls(params, **options)` of which each rank keeps a share: an optimizer around its own parameters, `optimizer`.

    A share consists of whole tensors, so that every optimizer works, also one that looks at rows, columns or blocks. The shares
    are as equal as whole tensors allow. `step()` sends each gradient to its owner, who averages, updates, and sends the new
    parameter to all. A parameter without a gradient counts as zero. A learning-rate schedule takes `optimizer`.
    """

    def __init__(self, params: Iterable, optimizer_cls: Callable[..., torch.optim.Optimizer], **options):
        params = list(params)
        groups = params if isinstance(params[0], dict) else [{"params": params}]
        groups = [{**group, "params": [p for p in group["params"] if p.requires_grad]} for group in groups]
        self.owner = {}
        load = [0] * dist.get_world_size()
        # The largest first, each to the rank that has least: all ranks come to the same shares.
        for parameter in sorted((p for group in groups for p in group["params"]), key=torch.numel, reverse=True):
            self.owner[parameter] = load.index(min(load))
            load[self.owner[parameter]] += parameter.numel()
            dist.broadcast(parameter.detach(), 0)
        own_groups = [{**group, "params": [p for p in group["params"] if self.is_own(p)]} for group in groups]
        self.optimizer = optimizer_cls(own_groups, **options)

    def is_own(self, parameter: torch.Tensor) -> bool:
        """Whether this rank updates the parameter."""
        return self.owner[parameter] == dist.get_rank()

    def zero_grad(self) -> None:
        for parameter in self.owner:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Reduce each gradient to its owner, update this rank's share, and broadcast the new parameters."""
        for parameter in self.owner:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        wait_for([dist.reduce(p.grad, owner, async_op=True) for p, owner in self.owner.items()])
        for parameter in self.owner:
            parameter.grad = parameter.grad.div_(dist.get_world_size()) if self.is_own(parameter) else None
        self.optimizer.step()
        wait_for([dist.broadcast(p.detach(), owner, async_op=True) for p, owner in self.owner.items()])


def wait_for(works: list[dist.Work]) -> None:
    """Wait until all collectives have ended."""
    for work in works:
        work.wait()
