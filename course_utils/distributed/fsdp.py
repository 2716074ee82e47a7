"""FSDP: ZeRO-2 and ZeRO-3 (Rajbhandari et al. 2020), one unit of the module after the other (Zhao et al. 2023)."""

from collections.abc import Iterable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import FunctionCtx
from torch.utils._pytree import tree_leaves, tree_map_only

# Their names since torch 2.13, and before.
all_gather_into = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor
reduce_scatter_into = (
    dist.reduce_scatter_single if hasattr(dist, "reduce_scatter_single") else dist.reduce_scatter_tensor
)


class FlatParameter:
    """A unit's parameters end to end, with zeros after the last so that N ranks have equal parts; at first they are rank 0's.

    `shard` is this rank's part, the only one that lasts. `full_param` has memory only between `unshard` and `reshard`.
    """

    def __init__(self, root: nn.Module, names: dict[nn.Parameter, list[str]], compute_dtype: torch.dtype | None):
        self.names = list(names.values())
        self.ranks = dist.get_world_size()
        self.shapes = [parameter.shape for parameter in names]
        row = self.flatten([parameter.detach() for parameter in names])
        dist.broadcast(row, 0)
        self.shard = nn.Parameter(row.chunk(self.ranks)[dist.get_rank()].clone())
        self.full_param = torch.empty_like(row, dtype=compute_dtype)
        self.uses = []  # (number of the parameter, module that has it, attribute): a tied parameter has several
        for number, tied in enumerate(self.names):
            for path, _, attribute in (name.rpartition(".") for name in tied):
                root.get_submodule(path)._parameters.pop(attribute, None)  # so that a tensor can take its place
                self.uses.append((number, root.get_submodule(path), attribute))
        self.reshard()

    def flatten(self, tensors: Sequence[Tensor]) -> Float[Tensor, " row"]:
        """The tensors end to end, with zeros up to the next multiple of N."""
        size = sum(tensor.numel() for tensor in tensors)
        return torch.cat([*(tensor.reshape(-1) for tensor in tensors), tensors[0].new_zeros(-size % self.ranks)])

    def split(self, row: Float[Tensor, " row"]) -> list[Tensor]:
        """The parameters in a row, in their shapes; `.data`, so that gathering again is no change of what autograd has saved."""
        sizes = [shape.numel() for shape in self.shapes]
        pieces = row[: sum(sizes)].split(sizes)
        return [piece.view(shape).data for piece, shape in zip(pieces, self.shapes, strict=True)]

    def unshard(self) -> None:
        """Gather `full_param`, if it is not there. What autograd saved are views of it, so these have values again too."""
        if self.full_param.untyped_storage().nbytes() == 0:
            self.full_param.untyped_storage().resize_(self.full_param.nbytes)
            all_gather_into(self.full_param.data, self.shard.detach().to(self.full_param.dtype))

    def reshard(self) -> None:
        """Free the memory of `full_param`."""
        self.full_param.untyped_storage().resize_(0)

    def use(self) -> None:
        """Let the modules compute with `full_param`, in such a way that gradients come back to `shard`."""
        tensors = Unshard.apply(self.shard, self)
        for number, module, attribute in self.uses:
            setattr(module, attribute, tensors[number])


class Unshard(Function):
    """Forward: from the shard to the unit's parameters. Backward, once all have gradients: to this rank's shard of the mean."""

    @staticmethod
    def forward(ctx: FunctionCtx, shard: Float[Tensor, " shard"], unit: FlatParameter) -> tuple[Tensor, ...]:
        ctx.unit = unit
        return tuple(unit.split(unit.full_param))

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Float[Tensor, " shard"], None]:
        # Three times the unit at once: `gradients`, `row`, and gloo's own copy (chapter 10, *Two moments*).
        ctx.unit.reshard()  # first, because the gradients are done
        row = ctx.unit.flatten(gradients)
        gradient = row.new_empty(len(row) // ctx.unit.ranks)
        reduce_scatter_into(gradient, row)
        return gradient.to(ctx.unit.shard.dtype).div_(ctx.unit.ranks), None


class FSDP(nn.Module):
    """`module` of which every rank keeps an N-th: `parameters()` are the shards, whose `.grad` is the mean over all ranks.

    `units` are modules in it, inner ones before outer ones; what is in none of them is the root unit. A unit is gathered for
    its forward pass and again for its backward pass. With `reshard_after_forward=False` it stays in between (ZeRO-2). With
    `compute_dtype` units compute, gather and reduce in that type; the shards keep theirs.

    All parameters are trained, all ranks use the same units in the same order, and a re-entrant checkpoint is one around a
    unit. Make the optimizer afterwards, from the shards: it sees rows of numbers, so it must treat all alike, as Adam does.
    """

    def __init__(
        self,
        module: nn.Module,
        units: Iterable[nn.Module] = (),
        compute_dtype: torch.dtype | None = None,
        reshard_after_forward: bool = True,
    ):
        super().__init__()
        self.module, self.compute_dtype, self.reshard_after_forward = module, compute_dtype, reshard_after_forward
        self.state_names = list(module.state_dict())
        self.units: list[FlatParameter] = []
        for buffer in module.buffers():
            dist.broadcast(buffer, 0)
        names: dict[nn.Parameter, list[str]] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            names.setdefault(parameter, []).append(name)
        for part in (*units, module):
            if unit_names := {p: names.pop(p) for p in part.parameters() if p in names}:
                unit = FlatParameter(module, unit_names, compute_dtype)
                self.units.append(unit)
                part.register_forward_pre_hook(partial(self._before_forward, unit), with_kwargs=True, prepend=True)
                part.register_forward_hook(partial(self._after_forward, unit))
        self.shards = nn.ParameterList(unit.shard for unit in self.units)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def _before_forward(self, unit: FlatParameter, module: nn.Module, args: tuple, kwargs: dict) -> tuple:
        if not in_backward():
            unit.reshard()  # what an earlier forward pass left may be older than the last update
        unit.unshard()
        unit.use()
        return tree_map_only(Tensor, self._cast, (args, kwargs))

    def _cast(self, value: Tensor) -> Tensor:
        return value.to(self.compute_dtype) if self.compute_dtype and value.is_floating_point() else value

    def _after_forward(self, unit: FlatParameter, module: nn.Module, args: tuple, output: object) -> None:
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                tensor.register_hook(lambda gradient: unit.unshard())  # backward comes to this unit
        if not in_backward() and (self.reshard_after_forward or not torch.is_grad_enabled()):
            unit.reshard()

    def full_state_dict(self) -> dict[str, Tensor]:
        """What the plain module's `state_dict()` would be, on every rank."""
        state = {**self.module.state_dict(), **self.gather_by_name(self.shards)}
        return {name: state[name] for name in self.state_names}

    def gather_by_name(self, shards: Iterable[Float[Tensor, " _"]]) -> dict[str, Tensor]:
        """The parameters' tensors by name, on every rank, from a shard of each unit, such as one kind of an optimizer's state."""
        tensors = {}
        for unit, shard in zip(self.units, shards, strict=True):
            row = shard.new_empty(len(shard) * unit.ranks)
            all_gather_into(row, shard.detach())
            for names, tensor in zip(unit.names, unit.split(row), strict=True):
                tensors |= {name: tensor.clone() for name in names}
        return tensors


def in_backward() -> bool:
    """Whether backward is under way: a forward pass inside it computes again what a checkpoint did not keep."""
    return torch._C._current_graph_task_id() != -1
