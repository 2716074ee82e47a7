"""Tensor parallelism: every rank has a part of each matrix (Shoeybi et al. 2019).

The first layers of a module are cut by their outputs, the last by its inputs, so that between them nothing is sent. The parts
of the last layer's output are added up: one all-reduce forward. The gradients of the module's input are added up: one backward.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx


class CopyToAll(torch.autograd.Function):
    """Forward: nothing, as all ranks have `x`. Backward: each rank's gradient is a part of the sum."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, x: Float[Tensor, "*shape"], group: dist.ProcessGroup | None
    ) -> Float[Tensor, "*shape"]:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: FunctionCtx, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        return sum_over_ranks(grad_output, ctx.group), None


class SumOfAll(torch.autograd.Function):
    """Forward: the sum over the ranks. Backward: nothing, as all ranks have the sum's gradient."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, part: Float[Tensor, "*shape"], group: dist.ProcessGroup | None
    ) -> Float[Tensor, "*shape"]:
        return sum_over_ranks(part, group)

    @staticmethod
    def backward(ctx: FunctionCtx, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        return grad_output, None


def sum_over_ranks(tensor: Float[Tensor, "*shape"], group: dist.ProcessGroup | None) -> Float[Tensor, "*shape"]:
    """The sum over the ranks of `group`, in new memory."""
    total = tensor.contiguous().clone()
    dist.all_reduce(total, group=group)
    return total


class RowLinear(nn.Module):
    """A linear layer of which this rank has the weights of some inputs, and gets only those."""

    def __init__(self, linear: nn.Linear, group: dist.ProcessGroup | None = None):
        super().__init__()
        self.weight = part_of(linear.weight, 1, group)
        self.bias = linear.bias
        self.group = group

    def forward(self, x: Float[Tensor, "*tokens part"]) -> Float[Tensor, "*tokens outputs"]:
        """The whole output: x has a part of the inputs."""
        output = SumOfAll.apply(x @ self.weight.T, self.group)
        return output if self.bias is None else output + self.bias


class Split(nn.Module):
    """`module` cut over the ranks of `group`: its linear layers `columns` by their outputs, those of `rows` by their inputs.

    Between them no number may depend on outputs of other ranks: an activation is applied to each alone, a head of attention
    needs its own q, k and v. The first argument is the same on all ranks, and so is the output. N divides what is cut.
    """

    def __init__(
        self, module: nn.Module, columns: Sequence[str], rows: Sequence[str], group: dist.ProcessGroup | None = None
    ):
        super().__init__()
        self.module, self.group = module, group
        for name in columns:
            linear = module.get_submodule(name)
            linear.weight = part_of(linear.weight, 0, group)
            if linear.bias is not None:
                linear.bias = part_of(linear.bias, 0, group)
        for name in rows:
            setattr(module, name, RowLinear(module.get_submodule(name), group))

    def forward(self, hidden_states: Tensor, *args, **kwargs) -> object:
        return self.module(CopyToAll.apply(hidden_states, self.group), *args, **kwargs)


def part_of(parameter: Tensor, dim: int, group: dist.ProcessGroup | None) -> nn.Parameter:
    """This rank's N-th of a parameter, cut along `dim`, whose size N divides, in memory of its own."""
    part = parameter.detach().chunk(dist.get_world_size(group), dim)[dist.get_rank(group)].clone()
    return nn.Parameter(part, parameter.requires_grad)
