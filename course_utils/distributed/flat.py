"""Parameters in one row, of which every rank keeps an N-th: gathered for the moment they are needed (Zhao et al. 2023, section 3)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Function

from course_utils.distributed.collectives import begin_all_gather, begin_reduce_scatter


@dataclass(eq=False)
class Member:
    """A parameter of the plain module (None once it is cut up), the modules and attributes that hold it, and its names, several where it is tied."""

    parameter: nn.Parameter | None
    holders: list[tuple[nn.Module, str]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def place(self, tensor: torch.Tensor) -> None:
        """Have the modules compute with `tensor`."""
        for module, attribute in self.holders:
            setattr(module, attribute, tensor)


class Flat:
    """Parameters of one kind, end to end, with zeros after the last so that N ranks have equal parts.

    `shard` is this rank's part and the only one that lasts. `whole` has the memory of all parts while they are gathered, in
    `dtype`, and none otherwise. Gradients go the other way: what backward gives for `whole` is added up over the ranks, and
    this rank keeps the mean of its part. Begins as rank 0's.
    """

    def __init__(self, members: list[Member], dtype: torch.dtype, by: str):
        self.members, self._by, self._wait = members, by, None
        self.gradient, self.expected = None, 0  # what backward has given so far, and how often it still will
        self.shapes = [member.parameter.shape for member in members]
        self._device = members[0].parameter.device
        row = self.in_a_row([member.parameter.detach() for member in members], members[0].parameter.dtype)
        dist.broadcast(row, 0)
        self.shard = nn.Parameter(self.own_part(row).clone(), requires_grad=members[0].parameter.requires_grad)
        self.whole = torch.empty_like(row, dtype=dtype)
        for member in members:
            for module, attribute in member.holders:
                delattr(module, attribute)
            member.parameter = None  # else the plain module's memory would stay
        self._place(self.views(self.whole))
        self.free()

    def in_a_row(self, tensors, dtype: torch.dtype) -> torch.Tensor:
        """The tensors end to end, zeros for None and up to the next multiple of N."""
        sizes, ranks = [shape.numel() for shape in self.shapes], dist.get_world_size()
        row = torch.zeros(-(-sum(sizes) // ranks) * ranks, dtype=dtype, device=self._device)
        for part, tensor in zip(row.split([*sizes, len(row) - sum(sizes)]), tensors, strict=False):
            if tensor is not None:
                part.copy_(tensor.reshape(-1))
        return row

    def views(self, row: torch.Tensor) -> list[torch.Tensor]:
        """The members inside a row, each in its shape."""
        sizes = [shape.numel() for shape in self.shapes]
        parts = row[: sum(sizes)].split(sizes)
        # Without .data the writes of the next gathering would count as changes of what backward still needs.
        return [part.view(shape).data for part, shape in zip(parts, self.shapes, strict=True)]

    def own_part(self, row: torch.Tensor) -> torch.Tensor:
        """This rank's part of a row."""
        return row.chunk(dist.get_world_size())[dist.get_rank()]

    def whole_of(self, part: torch.Tensor) -> torch.Tensor:
        """The row whose parts the ranks hold, anew (a collective call)."""
        row = part.new_empty(len(part) * dist.get_world_size())
        begin_all_gather(row, part, self._by)()
        return row

    @property
    def is_there(self) -> bool:
        """Whether all parts are gathered, or on their way."""
        return self.gathered_bytes > 0

    @property
    def gathered_bytes(self) -> int:
        """Bytes of `whole` now."""
        return self.whole.untyped_storage().nbytes()

    def begin_gather(self) -> None:
        """Make room and begin to fill it."""
        self.whole.untyped_storage().resize_(self.whole.nbytes)
        part = self.shard.detach().to(self.whole.dtype)
        self._wait = begin_all_gather(self.whole.data, part, self._by)

    def end_gather(self) -> None:
        """Wait until all parts are there."""
        if self._wait is not None:
            self._wait()
            self._wait = None

    def free(self) -> None:
        """Give the memory back; whoever holds a view of it finds it filled again after the next gathering."""
        self.end_gather()
        self.whole.untyped_storage().resize_(0)

    def use(self, arrived: Callable) -> None:
        """Have the modules compute with what is gathered; backward calls `arrived(flat)` when its gradients are in `gradient`."""
        if torch.is_grad_enabled() and self.shard.requires_grad and not within_backward():
            self.expected += 1
        self._place(_Whole.apply(self.shard, self, arrived))

    def add(self, gradients: tuple[torch.Tensor | None, ...]) -> None:
        """Keep the members' gradients, or add them to those kept: these are then in the shard's type."""
        self.expected -= 1
        row = self.in_a_row(gradients, self.whole.dtype)
        self.gradient = row if self.gradient is None else self.gradient.to(self.shard.dtype).add_(row)

    def begin_scatter(self) -> Callable[[], None]:
        """Begin to sum the gradients over the ranks, in `dtype`; the result waits and adds the mean to `shard.grad`.

        This rank's are zero where backward gave none.
        """
        row = self.in_a_row([None], self.whole.dtype) if self.gradient is None else self.gradient.to(self.whole.dtype)
        self.gradient = None
        part = torch.empty_like(self.shard, dtype=row.dtype)
        wait = begin_reduce_scatter(part, row, self._by)

        def end() -> None:
            wait()
            mean = part.to(self.shard.dtype).div_(dist.get_world_size())
            self.shard.grad = mean if self.shard.grad is None else self.shard.grad.add_(mean)

        return end

    def _place(self, tensors) -> None:
        for member, tensor in zip(self.members, tensors, strict=True):
            member.place(tensor)


class _Whole(Function):
    """Of a shard, the members; of the members' gradients, none here: they are on their way to the shards."""

    @staticmethod
    def forward(ctx, shard, flat, arrived):
        ctx.set_materialize_grads(False)
        ctx.flat, ctx.arrived = flat, arrived
        return tuple(flat.views(flat.whole))

    @staticmethod
    def backward(ctx, *gradients):
        if any(gradient is not None for gradient in gradients):
            ctx.flat.add(gradients)
            ctx.arrived(ctx.flat)
        return None, None, None


def backward_task() -> int:
    """The number of the backward pass at work, −1 outside of one; one inside another has a number of its own."""
    return torch._C._current_graph_task_id()


def within_backward() -> bool:
    """Whether a backward pass is at work; a forward pass within it is a checkpoint's."""
    return backward_task() != -1


class Unit:
    """A module whose parameters are gathered at once, in a row for each kind: trained or frozen, by type and device."""

    def __init__(self, name: str, module: nn.Module, members: list[Member], compute_dtype: torch.dtype | None, by: str):
        self.name, self.module, self.task, self.stays = name, module, None, False
        self.flats = [Flat(alike, _computed(alike, compute_dtype), by) for alike in _by_kind(members)]
        for number, flat in enumerate(self.flats):
            module.register_parameter(f"shard_{number}", flat.shard)

    @property
    def elements(self) -> int:
        """Elements of all its parameters, without the zeros at the end."""
        return sum(shape.numel() for flat in self.flats for shape in flat.shapes)

    @property
    def bytes(self) -> int:
        """Bytes of what is gathered for it."""
        return sum(flat.whole.nbytes for flat in self.flats)

    def begin_gather(self) -> bool:
        """Begin to gather what is not there; False where nothing was to be done."""
        absent = [flat for flat in self.flats if not flat.is_there]
        for flat in absent:
            flat.begin_gather()
        return bool(absent)

    def end_gather(self) -> None:
        """Wait until all is there."""
        for flat in self.flats:
            flat.end_gather()

    def free(self, frozen_only: bool = False) -> None:
        """Give the memory back."""
        for flat in self.flats:
            if flat.is_there and not (frozen_only and flat.shard.requires_grad):
                flat.free()


def _computed(members: list[Member], compute_dtype: torch.dtype | None) -> torch.dtype:
    dtype = members[0].parameter.dtype
    return compute_dtype if compute_dtype is not None and dtype.is_floating_point else dtype


def _by_kind(members: list[Member]) -> Iterator[list[Member]]:
    kinds: dict = {}
    for member in members:
        parameter = member.parameter
        kinds.setdefault((parameter.requires_grad, parameter.dtype, parameter.device), []).append(member)
    return iter(kinds.values())
