"""An event log of memory: when each piece is allocated and when it is freed, for what, and where.

It only logs; `Usage` analyses afterwards. A piece is a storage, the memory behind one tensor and all its views.
"""

import weakref
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch import nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    is_traceable_wrapper_subclass,
    is_traceable_wrapper_subclass_type,
)
from torch.utils._pytree import tree_iter, tree_leaves

from course_utils.errors import CourseError
from course_utils.memory.trace.as_cuda import HOST
from course_utils.memory.trace.fake import ASKS_DEVICE, device_of
from course_utils.memory.trace.log import Piece, Usage
from course_utils.memory.trace.phases import observe_phases
from course_utils.memory.trace.scratch import may_hide, peak_inside
from course_utils.memory.trace.state import unwrap

_KIND_BY_ACTIVITY = {"forward": "activations", "backward": "backward temporaries", "update": "optimizer temporaries"}
_aten = torch.ops.aten
_STRIDED = torch.strided
_RESIZE = _aten.resize_.default
_ADDS = (_aten.add.Tensor, _aten.index_put.default, _aten.scatter.src, _aten.scatter_add.default)
_IN_PLACE_UNWATCHED = set(map(id, _ADDS))  # hashing an operator takes longer than all else here
_TRAITS: dict[int, tuple[bool, bool, bool]] = {}  # by `id` too: operators are never given back
_LASTING = ("gradients", "parameters", "optimizer state")
_SEEN_OTHERWISE = dict.fromkeys(("_parameters", "_buffers", "_modules"))
_COLLECTIVE = ("c10d", "_c10d_functional", "fsdp")


class Meter(TorchDispatchMode):
    """A context that logs every birth and death of device memory inside it; `usage()` tells, during and afterwards.

    `model` is a module or several, `optimizer` one or several, `tensors` what else is there (a batch, a data set). Known at
    once: parameters, buffers, gradients, optimizer state; what is passed to a model's forward is an input. All else is named
    after the phase that allocates it: activations (forward), recomputed (a forward inside backward, as checkpointing has it),
    communication (what collectives fill and send), backward temporaries, optimizer temporaries (the update, clipping
    included). Phases are distinguished by what PyTorch is doing; inside `memory.phase(name)` they have that name.
    `device` is by default the one where the models are; what is on the host is logged apart from it. `round_to` is the
    allocator's grain in bytes (512 on CUDA). With `look_inside` the few operators that hide memory on a CPU are tried out once
    apart from the step, to learn how much (`scratch`); it shows as a piece allocated "inside" the operator. Works on fake
    tensors; a step that raises leaves a usable log and the model without hooks.
    """

    def __init__(
        self,
        model: nn.Module | Iterable[nn.Module],
        optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None = None,
        *,
        tensors: Iterable[torch.Tensor] = (),
        device: torch.device | None = None,
        round_to: int | None = None,
        look_inside: bool = True,
    ):
        super().__init__()
        self.models = [model] if isinstance(model, nn.Module) else list(model)
        several = [] if optimizer is None else optimizer if isinstance(optimizer, list | tuple) else [optimizer]
        self.optimizers = [unwrap(optimizer) for optimizer in several]
        self._tensors = list(tensors)
        self.device = device or device_of_models(self.models)
        self._look_inside = look_inside and self.device == HOST
        self._grain = round_to or (512 if self.device.type == "cuda" else 1)
        self._pieces: list[_LivePiece] = []
        self._events: list[tuple[int, int, str]] = []  # (change in bytes, place of the piece, phase)
        self._alive: dict[int, tuple[int, weakref.ref]] = {}  # by the address of the storage: the place of its piece
        self._addition: _Addition | None = None
        self._modules: list[str] = []
        self._nodes_made: list[tuple[int, str]] = []  # (autograd's sequence number, module at work from then on)
        self._marks: list[str] = []
        self._phase = self._activity = "forward"
        self._updating = self._after_backward = False

    def usage(self) -> Usage:
        """What has been logged so far, on the models' device; `usage().host` where the host is another."""
        away = [piece.device == HOST != self.device for piece in self._pieces]
        host = self._usage_of([place for place, is_away in enumerate(away) if is_away], 1) if any(away) else None
        return self._usage_of([place for place, is_away in enumerate(away) if not is_away], self._grain, host)

    def _usage_of(self, places: list[int], grain: int, host: Usage | None = None) -> Usage:
        number = {place: new for new, place in enumerate(places)} | {-1: -1}
        events = tuple((change, number[place], phase) for change, place, phase in self._events if place in number)
        pieces = []
        for piece in (self._pieces[place] for place in places):
            module = piece.module if piece.node is None else self._module_of(piece.node)
            size = piece.bytes if piece.bytes_before is None else piece.bytes_before
            operator, shape, was_there = str(piece.operator), tuple(piece.shape), piece.bytes_before is not None
            pieces.append(Piece(size, piece.kind, module, operator, shape, piece.dtype, was_there))
        return Usage(tuple(pieces), events, grain, host)

    def __enter__(self):
        self._hooks = ExitStack()
        self._register_what_is_there()
        for name, module in self._iterate_named("named_modules"):
            before = module.register_forward_pre_hook(partial(self._begin_module, name), with_kwargs=True)
            self._hooks.callback(before.remove)
            self._hooks.callback(module.register_forward_hook(self._end_module, always_call=True).remove)
        for optimizer in self.optimizers:
            self._hooks.callback(optimizer.register_step_pre_hook(self._begin_update).remove)
            self._hooks.callback(optimizer.register_step_post_hook(self._end_update).remove)
        self._hooks.enter_context(observe_phases(self._mark))
        # No operator makes the states of the random generator that checkpointing keeps for each block.
        self._hooks.enter_context(patch.object(torch, "get_rng_state", self._see_random_state(torch.get_rng_state)))
        # Nor does one give memory back while the tensor stays, as sharding does with gathered parameters.
        resize = torch.UntypedStorage.resize_
        self._hooks.enter_context(patch.object(torch.UntypedStorage, "resize_", self._see_resize(resize)))
        return super().__enter__()

    def __exit__(self, *error):
        try:
            return super().__exit__(*error)
        finally:
            self._hooks.close()
            self._modules.clear()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and torch's guard against it costs as much as the rest

    def __torch_dispatch__(self, func: OpOverload, types: Collection, args: tuple = (), kwargs: dict | None = None):
        if func is ASKS_DEVICE and type(args[0]) is FakeTensor:
            return args[0].fake_device
        if types and any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # it comes again with the tensors inside
        result = func(*args, **kwargs) if kwargs else func(*args)
        makes, hides, sends = _TRAITS.get(id(func)) or _find_traits(func)
        if makes:
            self._update_phase()
            if hides and self._look_inside and (size := peak_inside(func, args, kwargs or {}, result)):
                self._come_and_go(size, self._kind_of_birth(), func)
            if type(result) is torch.Tensor:
                self._log_tensor(result, func, args)
            else:
                for tensor in tree_iter(result):
                    if isinstance(tensor, torch.Tensor):
                        self._log_tensor(tensor, func, args)
        if sends:
            self._note_communication(func, args, kwargs or {})
        return result

    def _come_and_go(self, size: int, kind: str, func: OpOverload) -> None:
        """Memory that is allocated and freed inside one operator."""
        module, node = self._place_now()
        piece = _LivePiece(size, kind, module, node, f"inside {func}", (size,), torch.uint8, self.device)
        place = self._log_birth(piece)
        self._events.append((-size, place, self._phase))

    def _note_communication(self, func: OpOverload, args: tuple, kwargs: dict) -> None:
        if self._look_inside and func.overloadpacket.__name__ == "_reduce_scatter_base_":
            # gloo sums a copy of the whole, and keeps its part of it.
            self._come_and_go(args[1].untyped_storage().nbytes(), "communication", func)
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor) and not is_traceable_wrapper_subclass(tensor):
                entry = self._alive.get(tensor.untyped_storage()._cdata)
                piece = entry and self._pieces[entry[0]]
                if piece and piece.bytes_before is None and piece.kind not in _LASTING:
                    piece.kind = "communication"

    def _update_phase(self) -> None:
        """Note what PyTorch is doing just now, and log the phase if it is a new one; marks name phases, whatever PyTorch does."""
        if self._updating:
            self._activity = "update"
        elif torch._C._current_graph_task_id() != -1:
            self._activity = "backward"
        else:  # clipping, after backward and before the step, is neither in a module nor recorded
            between = not self._modules and not torch.is_grad_enabled()
            self._activity = "update" if between and (self._after_backward or "update" in self._marks) else "forward"
        if self._marks:
            phase = self._marks[-1]
        else:
            phase = self._activity
            self._after_backward = phase == "backward" or (self._after_backward and phase == "update")
        if phase != self._phase or not self._events:
            self._phase = phase
            self._events.append((0, -1, phase))

    def _see_random_state(self, function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def seen(*args, **kwargs) -> torch.Tensor:
            result = function(*args, **kwargs)
            self._update_phase()
            self._log_tensor(result, function.__name__)
            return result

        return seen

    def _see_resize(self, resize: Callable) -> Callable[[torch.UntypedStorage, int], object]:
        def seen(storage: torch.UntypedStorage, size: int) -> object:
            result = resize(storage, size)
            if entry := self._alive.get(storage._cdata):
                self._update_phase()
                self._resize(entry[0], storage)
            return result

        return seen

    def _log_tensor(self, tensor: torch.Tensor, operator: OpOverload | str, args: tuple = ()) -> None:
        if type(tensor) is not torch.Tensor and is_traceable_wrapper_subclass(tensor):
            for inner in _inner_tensors(tensor):
                self._log_tensor(inner, operator)
            return
        if tensor.layout is not _STRIDED:
            if type(tensor) is FakeTensor:
                raise CourseError(
                    "The memory of sparse tensors depends on their values, and a dry run has none: leave sparse=True out, "
                    "or run the step itself in memory.measure(build, step)."
                )
            return
        storage = tensor.untyped_storage()
        entry = self._alive.get(storage._cdata)
        if entry is not None:
            if operator is _RESIZE:
                self._resize(entry[0], storage)
            return
        device = device_of(tensor)
        if device == self.device or device == HOST:
            size, kind, (module, node) = storage.nbytes(), self._kind_of_birth(), self._place_now()
            piece = _LivePiece(size, kind, module, node, operator, tensor.shape, tensor.dtype, device)
            place = self._log_birth(piece, storage)
            if id(operator) in _IN_PLACE_UNWATCHED:
                self._note_in_place(place, operator, args)

    def _log_birth(self, piece: "_LivePiece", storage: torch.UntypedStorage | None = None) -> int:
        """Log a birth and watch for the death of its storage; returns the piece's place."""
        place = len(self._pieces)
        self._pieces.append(piece)
        if piece.bytes_before is None:
            self._events.append((piece.bytes, place, self._phase))
        if storage is not None:
            self._alive[storage._cdata] = place, weakref.ref(storage, partial(self._log_death, storage._cdata))
        return place

    def _log_death(self, address: int, reference: weakref.ref) -> None:
        place, current = self._alive.get(address, (-1, None))
        if current is not reference:  # an address may already have a new tenant
            return
        del self._alive[address]
        addition = self._addition
        if addition is not None and (addition.old, addition.events) == (place, len(self._events)):
            self._events.pop()  # the new piece turns out to be the old one in other hands
            births = reversed(self._alive.items())
            address, reference = next((at, reference) for at, (new, reference) in births if new == addition.new)
            self._alive[address] = place, reference
            self._addition = None
        else:
            self._events.append((-self._pieces[place].bytes, place, self._phase))

    def _note_in_place(self, new: int, operator: OpOverload, args: tuple) -> None:
        """Unwatched, autograd works in place here, in a gradient that nobody else refers to; watched, it makes a new one.

        `InputBuffer::accumulate` adds the gradients of several uses so, and the gradient of an index fills its zeros so. If
        the old memory is given back at once, the new one takes its place in the log.
        """
        if self._activity != "backward" or torch.is_grad_enabled():
            return
        storage = args[0].untyped_storage()
        # Two uses are the gradient's and ours; with more, somebody else shows the same memory.
        old, _ = self._alive.get(storage._cdata, (-1, None))
        if old < 0 or torch._C._storage_Use_Count(storage._cdata) > 2:
            return
        before, after = self._pieces[old], self._pieces[new]
        by_engine = (before.module, before.node) != (after.module, after.node)
        as_large = before.bytes == after.bytes == args[0].nbytes
        if as_large and (operator is not _aten.add.Tensor or by_engine):
            self._addition = _Addition(old, new, len(self._events))

    def _resize(self, place: int, storage: torch.UntypedStorage) -> None:
        piece, size = self._pieces[place], storage.nbytes()
        self._events.append((size - piece.bytes, place, self._phase))
        piece.bytes = size

    def _kind_of_birth(self) -> str:
        # Autograd runs without recording, so recording inside it is a forward pass run again.
        again = self._activity == "backward" and torch.is_grad_enabled()
        return "recomputed" if again else _KIND_BY_ACTIVITY[self._activity]

    def _place_now(self) -> tuple[str, int | None]:
        """The module at work; in backward the node that is differentiated, whose module is looked up in the end."""
        if self._modules:
            return self._modules[-1], None
        node = torch._C._current_autograd_node()
        return "", None if node is None else node._sequence_nr()

    def _module_of(self, number: int) -> str:
        before = bisect_right(self._nodes_made, number, key=lambda made: made[0])
        accumulates = number >= 2**63  # the sum into .grad has the largest number there is, and no forward
        return self._nodes_made[before - 1][1] if before and not accumulates else ""

    def _register_what_is_there(self) -> None:
        for name, parameter in self._iterate_named("named_parameters"):
            module, _, leaf = name.rpartition(".")
            self._set_kind("parameters", [parameter], leaf, module)
            if parameter.grad is not None:
                self._set_kind("gradients", [parameter.grad], leaf, module)
            if parameter.requires_grad:
                hook = parameter.register_post_accumulate_grad_hook(partial(self._set_kind_of_gradient, module))
                self._hooks.callback(hook.remove)
        for name, buffer in self._iterate_named("named_buffers"):
            self._set_kind("buffers", [buffer], "", name.rpartition(".")[0])
        for name, module in self._iterate_named("named_modules"):
            self._set_kind("buffers", _tensors_in({**vars(module), **_SEEN_OTHERWISE}), "", name)
            for parameter in module.parameters(recurse=False):  # as statistics of quantized weights
                self._set_kind("buffers", _tensors_in(vars(parameter)), "", name)
        self._set_kind_of_state()
        self._set_kind("inputs", self._tensors)

    def _iterate_named(self, what: str) -> Iterator[tuple[str, object]]:
        """Parameters, buffers or modules of all models by name; with several models a name begins with the model's number."""
        for number, model in enumerate(self.models):
            prefix = f"{number}" if len(self.models) > 1 else ""
            yield from getattr(model, what)(prefix=prefix)

    def _set_kind(self, kind: str, tensors: Iterable, operator: str = "", module: str = "") -> None:
        """Give the pieces of `tensors` this kind; those unseen so far were there before the log began."""
        for tensor in (inner for whole in tensors for inner in _inner_tensors(whole)):
            device = device_of(tensor)
            # torch.func's, whose memory is seen within.
            wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
            if wrapped or device not in (self.device, HOST) or tensor.layout is not torch.strided:
                continue
            storage = tensor.untyped_storage()
            entry = self._alive.get(storage._cdata)
            if entry is None:
                size = storage.nbytes()
                piece = _LivePiece(size, kind, module, None, operator, tensor.shape, tensor.dtype, device, size)
                self._log_birth(piece, storage)
            elif kind not in ("inputs", "buffers") or self._pieces[entry[0]].bytes_before is None:
                self._pieces[entry[0]].kind = kind

    def _set_kind_of_gradient(self, module: str, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:  # of a shard it comes later, when the ranks have summed it
            self._set_kind("gradients", [parameter.grad], module=module)

    def _set_kind_of_state(self) -> None:
        modules = {id(p): name.rpartition(".")[0] for name, p in self._iterate_named("named_parameters")}
        for optimizer in self.optimizers:
            inner = getattr(optimizer, "optim", None)  # ZeroRedundancyOptimizer keeps its part in one of its own
            for holder in (optimizer, inner):
                for parameter, state in holder.state.items() if isinstance(holder, torch.optim.Optimizer) else ():
                    tensors = (value for value in tree_iter(state) if isinstance(value, torch.Tensor))
                    self._set_kind("optimizer state", tensors, module=modules.get(id(parameter), ""))

    def _begin_module(self, name: str, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if any(module is model for model in self.models):
            self._modules.clear()  # a forward that failed may have left its modules here
            self._set_kind("inputs", (x for x in tree_iter((args, kwargs)) if isinstance(x, torch.Tensor)))
        self._modules.append(name)
        self._nodes_made.append((torch.autograd._get_sequence_nr(), name))

    def _end_module(self, *_) -> None:
        if self._modules:
            self._modules.pop()
        self._nodes_made.append((torch.autograd._get_sequence_nr(), self._modules[-1] if self._modules else ""))

    def _begin_update(self, *_) -> None:
        self._updating = True
        for name, parameter in self._iterate_named("named_parameters"):
            self._set_kind_of_gradient(name.rpartition(".")[0], parameter)

    def _end_update(self, *_) -> None:
        self._updating = False
        self._set_kind_of_state()

    @contextmanager
    def _mark(self, name: str) -> Iterator[None]:
        self._marks.append(name)
        self._update_phase()
        try:
            yield
        finally:
            self._marks.pop()


class _Addition(NamedTuple):
    """A sum perhaps in place: the `new` piece is the `old` one, if that dies after just so many `events`."""

    old: int
    new: int
    events: int


@dataclass(slots=True)
class _LivePiece:
    """One storage, as long as its kind and size may still change."""

    bytes: int
    kind: str
    module: str  # at work when it was allocated; empty in backward
    node: int | None  # the number of the node that was differentiated then, in backward
    operator: object
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    bytes_before: int | None = None  # if it was there before the log began


def _find_traits(func: OpOverload) -> tuple[bool, bool, bool]:
    """Whether an operator can make new memory, may hide some, and serves communication: asked once of each.

    A view, an operator in place and a number that is read (`loss.item()`) make none; a profiler's mark is no part of a step.
    """
    returns = func._schema.returns
    fresh = any(r.alias_info is None and "Tensor" in str(r.type) for r in returns)
    makes = (fresh or func is _RESIZE) and func.namespace != "profiler"
    _TRAITS[id(func)] = does = makes or may_hide(func), may_hide(func), func.namespace in _COLLECTIVE
    return does


def _inner_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that a wrapper such as `DTensor` is made of; of another itself."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _inner_tensors(getattr(tensor, name))
    elif isinstance(tensor, torch.Tensor):  # a DTensor names its mesh too
        yield tensor


def _tensors_in(things: object, depth: int = 3) -> Iterator[torch.Tensor]:
    """Tensors in containers, and in plain objects inside them."""
    for thing in tree_leaves(things):
        if isinstance(thing, torch.Tensor):
            yield thing
        elif depth and hasattr(thing, "__dict__") and not isinstance(thing, nn.Module | type) and not callable(thing):
            yield from _tensors_in(vars(thing), depth - 1)


def device_of_models(models: list[nn.Module]) -> torch.device:
    """The device of the models: another than the host, if any of their tensors is on one."""
    devices = {tensor.device for model in models for tensor in (*model.parameters(), *model.buffers())}
    return next((device for device in devices if device != HOST), HOST)
