"""An event log of memory: when each piece is born and when it dies, for what, and where.

It only logs; `Usage` analyses afterwards. A piece is a storage, the memory behind one tensor and all its views.
"""

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_iter, tree_leaves

from course_utils.memory.fake import device_of, wraps
from course_utils.memory.phases import observed_by
from course_utils.memory.scratch import may_hide, peak_inside
from course_utils.memory.state import unwrapped
from course_utils.memory.usage import Piece, Usage

_BORN_FOR = {"forward": "activations", "backward": "backward temporaries", "update": "optimizer temporaries"}
_HOST = torch.device("cpu")
_aten = torch.ops.aten


class Meter(TorchDispatchMode):
    """A context that logs every birth and death of device memory inside it; `usage()` tells, during and afterwards.

    `model` is a module or several, `optimizer` one or several, `tensors` what else is there (a batch, a data set). Known at
    once: parameters, buffers, gradients, optimizer state; what is passed to a model's forward is an input. All else is named
    after the phase of its birth: activations (forward), recomputed (a forward inside backward, as checkpointing has it),
    communication (what collectives fill and send), backward temporaries, optimizer temporaries (the update, clipping
    included). The phases are told apart by what PyTorch is doing; inside `memory.phase(name)` they have that name.
    `device` is by default the one where the models are; what is on the host is logged apart from it. `round_to` is the
    allocator's grain in bytes (512 on CUDA). With `look_inside` the few operators that hide memory on a CPU are tried out once
    apart from the step, to learn how much (`scratch`); it shows as a piece born "inside" the operator. Works on fake tensors;
    a step that raises leaves a usable log and the model without hooks.
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
        self.optimizers = [unwrapped(one) for one in several]
        self._tensors = list(tensors)
        self.device = device or where(self.models)
        self._look = look_inside and self.device == _HOST
        self._grain = round_to or (512 if self.device.type == "cuda" else 1)
        self._kinds: list[str] = []  # by piece, as are the next two
        self._sizes: list[int] = []
        self._births: list[_Birth] = []
        self._events: list[tuple[int, int, str]] = []  # (change in bytes, piece, phase)
        self._alive: dict[int, tuple[int, weakref.ref]] = {}  # by the address of the storage: its piece
        self._added_in_place: tuple[int, int, int] | None = None
        self._modules: list[str] = []
        self._nodes_made: list[tuple[int, str]] = []  # (autograd's sequence number, module at work from then on)
        self._marks: list[str] = []
        self._phase, self._work, self._updating, self._after_backward = "forward", "forward", False, False

    def usage(self) -> Usage:
        """What has been logged so far, on the models' device; `usage().host` where the host is another."""
        on_host = [birth.device == _HOST for birth in self._births]
        if self.device == _HOST or not any(on_host):
            return self._selected(lambda index: True, None)
        return self._selected(lambda index: not on_host[index], self._selected(lambda index: on_host[index], None, 1))

    def _selected(self, chosen: Callable[[int], bool], host: Usage | None, grain: int | None = None) -> Usage:
        kept = [index for index in range(len(self._sizes)) if chosen(index)]
        number = {index: place for place, index in enumerate(kept)} | {-1: -1}
        events = tuple((c, number[i], phase) for c, i, phase in self._events if i in number)
        return Usage(tuple(map(self._piece, kept)), events, grain or self._grain, host)

    def _piece(self, index: int) -> Piece:
        place, maker, shape, dtype, _, there = self._births[index]
        module = place if isinstance(place, str) else self._module_of(place)
        size = self._sizes[index] if there is None else there
        return Piece(size, self._kinds[index], module, str(maker), tuple(shape), dtype, there is not None)

    def __enter__(self):
        self._hooks = ExitStack()
        self._register_what_is_there()
        self._hook_modules()
        self._hook_optimizers()
        self._hooks.enter_context(observed_by(self._marked))
        # No operator makes the states of the random generator that checkpointing keeps for each block.
        self._hooks.enter_context(patch.object(torch, "get_rng_state", self._seeing(torch.get_rng_state)))
        # Nor does one give memory back while the tensor stays, as sharding does with gathered parameters.
        self._hooks.enter_context(patch.object(torch.UntypedStorage, "resize_", self._seeing_resize()))
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

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if types and any(map(wraps, types)):
            return NotImplemented  # it comes again with the tensors inside
        result = func(*args, **kwargs) if kwargs else func(*args)
        makes, hides, sends = _KNOWN.get(id(func)) or _what_it_does(func)
        if makes:
            self._enter()
            if hides and self._look:
                self._look_inside(func, args, kwargs or {}, result)
            if type(result) is torch.Tensor:
                self._see(result, func, args)
            else:
                for tensor in tree_iter(result):
                    if isinstance(tensor, torch.Tensor):
                        self._see(tensor, func, args)
        if sends:
            self._note_communication(func, args, kwargs or {})
        return result

    def _look_inside(self, func, args: tuple, kwargs: dict, result) -> None:
        if size := peak_inside(func, args, kwargs, result):
            self._come_and_go(size, self._kind_of_birth(), func)

    def _come_and_go(self, size: int, kind: str, func) -> None:
        birth = _Birth(self._place_now(), f"inside {func}", (size,), torch.uint8, self.device)
        self._log(-size, self._new_piece(size, kind, birth))

    def _note_communication(self, func, args: tuple, kwargs: dict) -> None:
        if self._look and func.overloadpacket.__name__ == "_reduce_scatter_base_":
            # gloo sums a copy of the whole, and keeps its part of it.
            self._come_and_go(args[1].untyped_storage().nbytes(), "communication", func)
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor) and not is_traceable_wrapper_subclass(tensor):
                known = self._alive.get(tensor.untyped_storage()._cdata)
                if known and self._births[known[0]].there is None and self._kinds[known[0]] not in _LASTING:
                    self._kinds[known[0]] = "communication"

    def _enter(self) -> None:
        self._work = self._work_now()
        phase = self._phase_now()
        if phase != self._phase or not self._events:
            self._phase = phase
            self._log(0, -1)

    def _log(self, change: int, index: int) -> None:
        self._events.append((change, index, self._phase))

    def _phase_now(self) -> str:
        if self._marks:
            return self._marks[-1]
        phase = self._work
        self._after_backward = phase == "backward" or (self._after_backward and phase == "update")
        return phase

    def _work_now(self) -> str:
        """What PyTorch is doing, whatever the marks say."""
        if self._updating:
            return "update"
        if torch._C._current_graph_task_id() != -1:
            return "backward"
        between = not self._modules and not torch.is_grad_enabled()  # as clipping: after backward, before the step
        return "update" if between and (self._after_backward or "update" in self._marks) else "forward"

    def _seeing(self, function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def seen(*args, **kwargs) -> torch.Tensor:
            result = function(*args, **kwargs)
            self._enter()
            self._see(result, function.__name__)
            return result

        return seen

    def _seeing_resize(self) -> Callable[[torch.UntypedStorage, int], object]:
        resize = torch.UntypedStorage.resize_

        def seen(storage: torch.UntypedStorage, size: int) -> object:
            result = resize(storage, size)
            if known := self._alive.get(storage._cdata):
                self._enter()
                self._resized(known[0], storage)
            return result

        return seen

    def _see(self, tensor: torch.Tensor, maker, args: tuple = ()) -> None:
        if type(tensor) is not torch.Tensor and is_traceable_wrapper_subclass(tensor):
            for inner in _plain(tensor):
                self._see(inner, maker)
            return
        if tensor.layout is not _STRIDED:
            return
        storage = tensor.untyped_storage()
        known = self._alive.get(storage._cdata)
        if known is not None:
            if maker is _RESIZE:
                self._resized(known[0], storage)
            return
        device = device_of(tensor)
        if device == self.device or device == _HOST:
            birth = _Birth(self._place_now(), maker, tensor.shape, tensor.dtype, device)
            index = self._be_born(storage, self._kind_of_birth(), birth)
            if id(maker) in _IN_PLACE_UNWATCHED:
                self._note_in_place(index, maker, args)

    def _be_born(self, storage, kind: str, birth: "_Birth") -> int:
        index, address = self._new_piece(storage.nbytes(), kind, birth), storage._cdata
        self._alive[address] = index, weakref.ref(storage, partial(self._die, address))
        return index

    def _new_piece(self, size: int, kind: str, birth: "_Birth") -> int:
        index = len(self._sizes)
        self._kinds.append(kind)
        self._sizes.append(size)
        self._births.append(birth)
        if birth.there is None:
            self._events.append((size, index, self._phase))
        return index

    def _die(self, address: int, reference: weakref.ref) -> None:
        index, current = self._alive.get(address, (-1, None))
        if current is not reference:  # an address may already have a new tenant
            return
        del self._alive[address]
        if self._added_in_place and self._added_in_place[::2] == (index, len(self._events)):
            self._take_over(index, self._added_in_place[1])
        else:
            self._log(-self._sizes[index], index)

    def _note_in_place(self, index: int, maker, args: tuple) -> None:
        """Unwatched, autograd works in place here, in a gradient that nobody else refers to; watched, it makes a new one.

        `InputBuffer::accumulate` adds the gradients of several uses so, and the gradient of an index fills its zeros so. If
        the old memory is given back at once, the new one takes its place in the log.
        """
        if self._work != "backward" or torch.is_grad_enabled():
            return
        storage = args[0].untyped_storage()
        # Two uses are the gradient's and ours; with more, somebody else shows the same memory.
        if torch._C._storage_Use_Count(storage._cdata) > 2:
            return
        old, _ = self._alive.get(storage._cdata, (-1, None))
        by_engine = old >= 0 and self._births[old].place != self._births[index].place
        as_large = old >= 0 and self._sizes[old] == self._sizes[index] == args[0].nbytes
        if as_large and (maker is not _aten.add.Tensor or by_engine):
            self._added_in_place = old, index, len(self._events)

    def _take_over(self, old: int, new: int) -> None:
        """The piece `new` turns out to be `old` in other hands."""
        self._events.pop()
        address, reference = next((a, r) for a, (i, r) in reversed(self._alive.items()) if i == new)
        self._alive[address] = old, reference
        self._added_in_place = None

    def _resized(self, index: int, storage) -> None:
        size = storage.nbytes()
        self._log(size - self._sizes[index], index)
        self._sizes[index] = size

    def _kind_of_birth(self) -> str:
        # Autograd runs without recording, so recording inside it is a forward pass run again.
        again = self._work == "backward" and torch.is_grad_enabled()
        return "recomputed" if again else _BORN_FOR[self._work]

    def _place_now(self) -> str | int:
        """The module at work; in backward the node that is differentiated, whose module is looked up in the end."""
        if self._modules:
            return self._modules[-1]
        node = torch._C._current_autograd_node()
        return "" if node is None else node._sequence_nr()

    def _module_of(self, number: int) -> str:
        before = bisect_right(self._nodes_made, number, key=lambda made: made[0])
        accumulates = number >= 2**63  # the sum into .grad has the largest number there is, and no forward
        return self._nodes_made[before - 1][1] if before and not accumulates else ""

    def _register_what_is_there(self) -> None:
        for name, parameter in self._named("named_parameters"):
            module, _, leaf = name.rpartition(".")
            self._mark_as("parameters", [parameter], leaf, module)
            if parameter.grad is not None:
                self._mark_as("gradients", [parameter.grad], leaf, module)
            if parameter.requires_grad:
                self._hooks.callback(parameter.register_post_accumulate_grad_hook(partial(self._graded, module)).remove)
        for name, buffer in self._named("named_buffers"):
            self._mark_as("buffers", [buffer], "", name.rpartition(".")[0])
        for name, module in self._named("named_modules"):
            self._mark_as("buffers", _tensors_in({**vars(module), **_NOT_LOOSE}), "", name)
            for parameter in module.parameters(recurse=False):  # as statistics of quantized weights
                self._mark_as("buffers", _tensors_in(vars(parameter)), "", name)
        self._note_state()
        self._mark_as("inputs", self._tensors)

    def _named(self, what: str) -> Iterator[tuple[str, object]]:
        """Of all models by name; of several each name begins with the model's number."""
        for number, model in enumerate(self.models):
            prefix = f"{number}" if len(self.models) > 1 else ""
            yield from getattr(model, what)(prefix=prefix)

    def _mark_as(self, kind: str, tensors: Iterable, maker: str = "", module: str = "") -> None:
        """Give the pieces of `tensors` this kind; those unseen so far were there before the log began."""
        for whole in tensors:
            for tensor in _plain(whole):
                if device_of(tensor) not in (self.device, _HOST) or tensor.layout is not torch.strided:
                    continue
                storage = tensor.untyped_storage()
                known = self._alive.get(storage._cdata)
                if known is None:
                    about = tensor.shape, tensor.dtype, device_of(tensor)
                    self._be_born(storage, kind, _Birth(module, maker, *about, there=storage.nbytes()))
                elif not (kind in ("inputs", "buffers") and self._births[known[0]].there is not None):
                    self._kinds[known[0]] = kind

    def _graded(self, module: str, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:  # of a shard it comes later, when the ranks have summed it
            self._mark_as("gradients", [parameter.grad], module=module)

    def _note_state(self, *_) -> None:
        modules = {id(p): name.rpartition(".")[0] for name, p in self._named("named_parameters")}
        for optimizer in self.optimizers:
            inner = getattr(optimizer, "optim", None)  # ZeroRedundancyOptimizer keeps its part in one of its own
            for one in (optimizer, inner):
                for parameter, state in one.state.items() if isinstance(one, torch.optim.Optimizer) else ():
                    kept = (value for value in tree_iter(state) if isinstance(value, torch.Tensor))
                    self._mark_as("optimizer state", kept, module=modules.get(id(parameter), ""))

    def _hook_modules(self) -> None:
        for name, module in self._named("named_modules"):
            before = module.register_forward_pre_hook(partial(self._begin, name), with_kwargs=True)
            after = module.register_forward_hook(self._end, always_call=True)
            self._hooks.callback(before.remove)
            self._hooks.callback(after.remove)

    def _begin(self, name: str, module: nn.Module, args, kwargs) -> None:
        if any(module is model for model in self.models):
            self._modules.clear()  # a forward that failed may have left its modules here
            self._mark_as("inputs", (x for x in tree_iter((args, kwargs)) if isinstance(x, torch.Tensor)))
        self._modules.append(name)
        self._nodes_made.append((torch.autograd._get_sequence_nr(), name))

    def _end(self, *_) -> None:
        if self._modules:
            self._modules.pop()
        self._nodes_made.append((torch.autograd._get_sequence_nr(), self._modules[-1] if self._modules else ""))

    def _hook_optimizers(self) -> None:
        for optimizer in self.optimizers:
            self._hooks.callback(optimizer.register_step_pre_hook(self._begin_update).remove)
            self._hooks.callback(optimizer.register_step_post_hook(self._end_update).remove)

    def _begin_update(self, *_) -> None:
        self._updating = True
        for name, parameter in self._named("named_parameters"):
            self._graded(name.rpartition(".")[0], parameter)

    def _end_update(self, *_) -> None:
        self._updating = False
        self._note_state()

    @contextmanager
    def _marked(self, name: str) -> Iterator[None]:
        self._marks.append(name)
        self._enter()
        try:
            yield
        finally:
            self._marks.pop()


class _Birth(NamedTuple):
    """What never changes of a piece; `there` are its bytes from before the log, if it was born then."""

    place: str | int  # the module's name, or the sequence number of the node that was differentiated
    maker: object
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    there: int | None = None


_STRIDED = torch.strided
_RESIZE = _aten.resize_.default
_ADDS = (_aten.add.Tensor, _aten.index_put.default, _aten.scatter.src, _aten.scatter_add.default)
_IN_PLACE_UNWATCHED = set(map(id, _ADDS))  # hashing an operator takes longer than all else that is asked of it
_KNOWN: dict[int, tuple[bool, bool, bool]] = {}  # by `id` too: operators are never given back
_LASTING = ("gradients", "parameters", "optimizer state")
_NOT_LOOSE = dict.fromkeys(("_parameters", "_buffers", "_modules"))
_COLLECTIVE = ("c10d", "_c10d_functional", "fsdp")


def _what_it_does(func) -> tuple[bool, bool, bool]:
    """Whether an operator can make new memory, may hide some, and serves communication: asked once of each.

    A view, an operator in place and a number that is read (`loss.item()`) make none; a profiler's mark is no part of a step.
    """
    returns = func._schema.returns
    fresh = any(r.alias_info is None and "Tensor" in str(r.type) for r in returns)
    makes = (fresh or func is _RESIZE) and func.namespace != "profiler"
    _KNOWN[id(func)] = does = makes or may_hide(func), may_hide(func), func.namespace in _COLLECTIVE
    return does


def _plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that a wrapper such as `DTensor` is made of; of another itself."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _plain(getattr(tensor, name))
    elif isinstance(tensor, torch.Tensor):  # a DTensor names its mesh too
        yield tensor


def _tensors_in(things, depth: int = 3) -> Iterator[torch.Tensor]:
    """Tensors in containers, and in plain objects inside them."""
    for thing in tree_leaves(things):
        if isinstance(thing, torch.Tensor):
            yield thing
        elif depth and hasattr(thing, "__dict__") and not isinstance(thing, nn.Module | type) and not callable(thing):
            yield from _tensors_in(vars(thing), depth - 1)


def where(models: list[nn.Module]) -> torch.device:
    """Where the models are: another device than the host's, where any of their tensors is on one."""
    devices = {tensor.device for model in models for tensor in (*model.parameters(), *model.buffers())}
    return next((device for device in devices if device != _HOST), _HOST)
