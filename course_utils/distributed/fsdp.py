"""Fully sharded data parallelism: parameters, gradients and state in N parts, whole only where and while they are needed.

ZeRO-2 and ZeRO-3 (Rajbhandari et al. 2020, sections 5.2 and 5.3), by unit as in FSDP (Zhao et al. 2023).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from zlib import crc32

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable
from torch.utils._pytree import tree_leaves, tree_map

from course_utils.distributed import full_state
from course_utils.distributed.agreement import require_alike
from course_utils.distributed.collectives import require_way
from course_utils.distributed.flat import Flat, Unit, backward_task, within_backward
from course_utils.distributed.traffic import unbooked
from course_utils.distributed.units import cut
from course_utils.errors import CourseError


class FSDP(nn.Module):
    """`module` of which every rank keeps an N-th: `parameters()` are flat shards, whose `.grad` is the mean over all ranks.

    `units` says what is gathered at once: None for the whole module, a class or a tuple of classes of its modules, a list of
    its modules, or the least number of parameters of a unit. What no unit holds, and what several hold, belongs to the module
    itself, the root. Around a unit's forward pass and around its backward pass its parameters are gathered; with
    `reshard_after_forward=False` they stay in between (ZeRO-2). With `prefetch` the next unit's are on their way meanwhile.

    Every rank begins with the parameters and buffers of rank 0. With `compute_dtype` parameters are cast before they are sent,
    and so are floating-point inputs of units; gradients travel in it too, and become a mean in the shard's own type. A
    parameter that nobody uses has a zero gradient, a unit that nobody uses has none. Every rank must use the same units in
    the same order: where they do not, the next `backward` raises `CourseError`, or waits until the time-out. Weights are only
    there while their unit's forward or backward pass runs: read outside of it, by a penalty on weights say, they have no memory,
    and the process may die of it. Buffers stay each rank's own. An optimizer of the shards sees rows of numbers and no matrices:
    right where it treats every element alike, as Adam does.

    `by` is "torch" or "ring" (`collectives`). Raises `CourseError` for units that the module does not have, and where ranks bring
    different modules.
    """

    def __init__(
        self,
        module: nn.Module,
        units=None,
        compute_dtype: torch.dtype | None = None,
        reshard_after_forward: bool = True,
        prefetch: bool = True,
        by: str = "torch",
    ):
        super().__init__()
        self._names, self._compute_dtype = list(module.state_dict()), compute_dtype
        self._reshards, self._prefetches, self._averages = reshard_after_forward, prefetch, True
        require_alike([*module.named_parameters(), *module.named_buffers()])
        for buffer in module.buffers():
            dist.broadcast(buffer, 0)
        self.module, self.units = module, cut(module, units, compute_dtype, require_way(by))
        self._scattering, self._in_backward = None, False
        self._order, self._last_order, self._mark = [], [], 0
        for unit in self.units:
            unit.module.register_forward_pre_hook(self._before_forward(unit), with_kwargs=True, prepend=True)
            unit.module.register_forward_hook(self._after_forward(unit))

    def __deepcopy__(self, memo):
        raise CourseError(
            "A sharded module cannot be copied, since its hooks gather the first one's shards; build another FSDP and give it "
            "load_full_state_dict(full_state_dict())."
        )

    def _apply(self, fn, recurse=True):
        raise CourseError("A sharded module stays as it is; move or cast the plain module before it is sharded.")

    def forward(self, *args, **kwargs):
        """The module's own."""
        return self.module(*args, **kwargs)

    @property
    def gathered_bytes(self) -> int:
        """Bytes of parameters that are gathered now."""
        return sum(flat.gathered_bytes for flat in self._flats())

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes meanwhile keep whole gradients on this rank and send none; the next one outside sends the sum."""
        self._averages = False
        try:
            yield
        finally:
            self._averages = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As of any module; also what `no_sync` has kept is dropped."""
        super().zero_grad(set_to_none)
        self._drop_gradients()

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scale the gradients so that the norm of all ranks' together is at most `max_norm`; returns the norm before."""
        gradients = [flat.shard.grad for flat in self._flats() if flat.shard.grad is not None]
        norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
        square = torch.stack(norms).square().sum() if norms else next(self.parameters()).new_zeros(())
        dist.all_reduce(square)
        norm = square.sqrt()
        for gradient in gradients:
            gradient.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """What the plain module's `state_dict()` would be, on every rank (a collective call)."""
        return full_state.parameters_and_buffers(self.module, list(self._flats()), self._names)

    def load_full_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take this rank's parts of a plain module's state, which every rank brings. Raises `CourseError` for another's."""
        full_state.load_parameters_and_buffers(self.module, list(self._flats()), self._names, state)

    def full_optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict:
        """State and settings of an optimizer of the shards, by the plain module's names, on every rank (a collective call)."""
        return full_state.of_optimizer(optimizer, list(self._flats()))

    def load_full_optimizer_state(self, optimizer: torch.optim.Optimizer, state: dict) -> None:
        """Take this rank's parts of what `full_optimizer_state` gave at any number of ranks."""
        full_state.load_into_optimizer(optimizer, list(self._flats()), state)

    def load_state_dict(self, state_dict: dict, strict: bool = True, assign: bool = False):
        """This rank's shards, as of any module; `assign` is refused with `CourseError`."""
        if assign:
            raise CourseError("A sharded module goes on computing with the tensors it has; leave assign=True out.")
        return super().load_state_dict(state_dict, strict)

    def _flats(self) -> Iterator[Flat]:
        return (flat for unit in self.units for flat in unit.flats)

    # Forward

    def _before_forward(self, unit: Unit):
        def hook(module, args, kwargs):
            if not within_backward():
                if unit is self.units[0]:
                    self._begin_forward()
                self._order.append(unit)
            self._gather(unit)
            for flat in unit.flats:
                flat.use(lambda flat: self._arrived(unit, flat))
            args, kwargs = tree_map(self._cast, (args, kwargs))
            self._free_frozen_before(unit, (args, kwargs))
            return args, kwargs

        return hook

    def _after_forward(self, unit: Unit):
        def hook(module, args, outputs):
            tensors = list(_tensors_in(outputs, set()))
            hooked = [tensor.register_hook(self._before_backward(unit)) for tensor in tensors if tensor.requires_grad]
            if not within_backward():
                # Where no tensor shows when its gradient comes back, backward must find all in its place.
                unit.stays = torch.is_grad_enabled() and not (tensors and (self._reshards or not hooked))
                self._free([unit] if unit is not self.units[0] else self.units)

        return hook

    def _begin_forward(self) -> None:
        """Also drops what a failed backward pass left, and parameters that an update has made old."""
        self._end_scatter()
        self._free(self.units, all_of_them=True)
        if self._in_backward:
            self._drop_gradients()
        self._in_backward, self._last_order, self._order = False, self._order, []

    def _free_frozen_before(self, unit: Unit, inputs) -> None:
        """When the gradient comes out of the unit, backward is done with it, also with what gets no gradient itself."""
        tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
        for tensor in [tensor for tensor in tensors if tensor.grad_fn is not None][:1]:
            tensor.register_hook(lambda _: unit.free(frozen_only=True))

    def _cast(self, value):
        casts = self._compute_dtype is not None and isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(self._compute_dtype) if casts else value

    # Gathering

    def _gather(self, unit: Unit) -> None:
        """Have the unit's parameters here, and its successor's on their way."""
        self._begin_gather(unit)
        unit.end_gather()
        if self._prefetches and (successor := self._successor(unit)) is not None:
            self._begin_gather(successor)

    def _begin_gather(self, unit: Unit) -> None:
        if unit.begin_gather():
            self._note("gather", unit)

    def _successor(self, unit: Unit) -> Unit | None:
        """The unit that came next in the last forward pass; in backward, the one before in this."""
        order = self._order[::-1] if within_backward() else self._last_order
        return dict(zip(order, order[1:], strict=False)).get(unit)

    def _free(self, units: list[Unit], all_of_them: bool = False) -> None:
        for unit in units:
            if all_of_them or not unit.stays:
                unit.free()

    # Backward

    def _before_backward(self, unit: Unit):
        def hook(gradient):
            self._begin_backward()
            unit.task, unit.stays = backward_task(), False
            self._gather(unit)

        return hook

    def _drop_gradients(self) -> None:
        for flat in self._flats():
            flat.gradient, flat.expected = None, 0

    def _begin_backward(self) -> None:
        if not self._in_backward:
            self._in_backward = True
            Variable._execution_engine.queue_callback(self._finish)

    def _arrived(self, unit: Unit, flat: Flat) -> None:
        """Gradients of a row are there: all, unless the unit was used several times, or a checkpoint's backward brings a part."""
        self._begin_backward()
        if unit.task == backward_task():
            if flat.expected <= 0:
                self._scatter(unit, flat)
            if not unit.stays:
                flat.free()

    def _scatter(self, unit: Unit, flat: Flat) -> None:
        if self._averages:
            self._end_scatter()
            self._note("scatter", unit)
            self._scattering = flat.begin_scatter()

    def _end_scatter(self) -> None:
        if self._scattering is not None:
            self._scattering()
            self._scattering = None

    def _finish(self) -> None:
        """At the end of the backward pass: gradients that came in parts, or not at all on this rank, or that `no_sync` kept."""
        for unit in self.units[::-1]:
            for flat in unit.flats:
                if flat.gradient is not None or flat.expected > 0:
                    self._scatter(unit, flat)
                flat.expected = 0
            unit.task = None
        self._end_scatter()
        self._free(self.units, all_of_them=True)
        self._in_backward = False
        self._require_same_order()

    def _note(self, what: str, unit: Unit) -> None:
        self._mark = crc32(f"{what} {unit.name}".encode(), self._mark)

    def _require_same_order(self) -> None:
        """Units of one size could be taken for each other: the ranks compare what they gathered and sent, and when.

        Passes without backward count towards the next backward pass.
        """
        ends = torch.tensor(
            [self._mark, -self._mark], device=self.units[0].module.shard_0.device if self.units[0].flats else "cpu"
        )
        with unbooked():
            dist.all_reduce(ends, dist.ReduceOp.MAX)
        self._mark = 0
        if ends.sum():
            raise CourseError(
                "The ranks used different units since the last backward pass, so what was gathered is wrong; have every rank "
                "use the same units."
            )


def _tensors_in(value, seen: set[int]) -> Iterator[torch.Tensor]:
    """Also those in objects that are no containers, such as a dataclass or a cache of keys and values."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif hasattr(leaf, "__dict__") and not isinstance(leaf, type | nn.Module) and id(leaf) not in seen:
            seen.add(id(leaf))
            yield from _tensors_in(vars(leaf), seen)
