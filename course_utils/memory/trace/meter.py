"""A record of what each piece of memory is for, and where and when in a step it is allocated and freed.

A `Meter` only records; `Usage` analyzes the record. A piece is a storage, the memory behind one tensor and all its views.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from unittest.mock import patch

import torch
from torch import nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_iter, tree_leaves

from course_utils.errors import CourseError
from course_utils.hardware.operators import EagerMode
from course_utils.memory.trace.as_cuda import HOST
from course_utils.memory.trace.fake import DEVICE_QUESTION, device_of
from course_utils.memory.trace.log import Event, Piece, Usage
from course_utils.memory.trace.modules import ModuleStack
from course_utils.memory.trace.phases import observe_phases
from course_utils.memory.trace.scratch import may_hide, peak_inside
from course_utils.memory.trace.state import unwrap
from course_utils.memory.trace.storages import LivePiece, StorageLog

_KIND_BY_ACTIVITY = {"forward": "activations", "backward": "backward temporaries", "update": "optimizer temporaries"}
_aten = torch.ops.aten
_RESIZE = _aten.resize_.default
_ADDITIONS = (_aten.add.Tensor, _aten.index_put.default, _aten.scatter.src, _aten.scatter_add.default)
_ADDITION_IDS = set(map(id, _ADDITIONS))  # hashing an operator takes longer than all else here
_TRAITS: dict[int, tuple[bool, bool, bool]] = {}  # by `id` too: operators are never given back
_LASTING_KINDS = ("gradients", "parameters", "optimizer state")
_REGISTERED_ATTRIBUTES = dict.fromkeys(("_parameters", "_buffers", "_modules"))
_COLLECTIVE_NAMESPACES = ("c10d", "_c10d_functional", "fsdp")


class Meter(EagerMode):
    """A context that records every allocation and free of device memory; `usage()` returns the record so far, at any time.

    `model` is a module or several, `optimizer` one or several, and `tensors` are those that exist besides (a batch, a data set).
    Parameters, buffers, gradients and optimizer state are recognized; what is passed to a model's forward is an input. All else
    is named after the phase that allocates it: activations (forward), recomputed (a forward inside backward: checkpointing),
    communication (what collectives fill and send), backward temporaries, optimizer temporaries (the update, clipping
    included). The phase is what PyTorch is doing; inside `memory.phase(name)` it has that name. `device` is by default the
    models' own; memory on the host is recorded separately. `round_to` is the allocator's grain in bytes (512 on CUDA). With
    `look_inside` the few operators that hide memory on a CPU are each run once outside the step, to measure how much
    (`scratch`); the record shows it as a piece allocated "inside" the operator. Fake tensors are recorded too. After a step that
    raises, the record can be used and the model has no hooks.
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
        if optimizer is None:
            optimizer = []
        self.optimizers = list(map(unwrap, optimizer if isinstance(optimizer, list | tuple) else [optimizer]))
        self._tensors = list(tensors)
        self.device = device or device_of_models(self.models)
        self._look_inside = look_inside and self.device == HOST
        self._grain = round_to or (512 if self.device.type == "cuda" else 1)
        self._log = StorageLog()
        self._modules = ModuleStack()
        self._marks: list[str] = []
        self._activity = "forward"
        self._updating = False
        self._after_backward = False

    def usage(self) -> Usage:
        """The record so far, of the models' device; its `host` is that of the host, if the models are elsewhere."""
        has_host = any(piece.device == HOST != self.device for piece in self._log.pieces)
        return self._usage_on(self.device, self._grain, self._usage_on(HOST, 1) if has_host else None)

    def _usage_on(self, device: torch.device, grain: int, host: Usage | None = None) -> Usage:
        pieces: list[Piece] = []
        new_index = {-1: -1}
        for index, live in enumerate(self._log.pieces):
            if live.device != device:
                continue
            new_index[index] = len(pieces)
            module = live.module if live.node is None else self._modules.module_of(live.node)
            was_there = live.bytes_before is not None
            size = live.bytes_before if was_there else live.bytes
            pieces.append(Piece(size, live.kind, module, str(live.operator), tuple(live.shape), live.dtype, was_there))
        events = (Event(e.change, new_index[e.piece], e.phase) for e in self._log.events if e.piece in new_index)
        return Usage(tuple(pieces), tuple(events), grain, host)

    def __enter__(self):
        self._hooks = ExitStack()
        self._register_what_is_there()
        for name, module in self._iterate_named("named_modules"):
            before = module.register_forward_pre_hook(partial(self._begin_module, name), with_kwargs=True)
            self._hooks.callback(before.remove)
            self._hooks.callback(module.register_forward_hook(self._modules.end, always_call=True).remove)
        for optimizer in self.optimizers:
            self._hooks.callback(optimizer.register_step_pre_hook(self._begin_update).remove)
            self._hooks.callback(optimizer.register_step_post_hook(self._end_update).remove)
        self._hooks.enter_context(observe_phases(self._mark))
        # Checkpointing saves the random generator's state for each block, and no operator makes that tensor.
        states = partial(self._see_random_state, torch.get_rng_state)
        self._hooks.enter_context(patch.object(torch, "get_rng_state", states))
        # Sharding frees gathered parameters while their tensors stay, also without an operator.
        resize = torch.UntypedStorage.resize_
        self._hooks.enter_context(patch.object(torch.UntypedStorage, "resize_", self._see_resize(resize)))
        return super().__enter__()

    def __exit__(self, *error):
        try:
            return super().__exit__(*error)
        finally:
            self._hooks.close()
            self._modules.names.clear()

    def __torch_dispatch__(self, func: OpOverload, types: Collection, args: tuple = (), kwargs: dict | None = None):
        if func is DEVICE_QUESTION and type(args[0]) is FakeTensor:
            return args[0].fake_device
        if types and any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # the call comes again with the tensors inside
        result = func(*args, **kwargs) if kwargs else func(*args)
        makes, hides, sends = _TRAITS.get(id(func)) or _find_traits(func)
        if makes:
            self._update_phase()
            if hides and self._look_inside and (size := peak_inside(func, args, kwargs or {}, result)):
                self._log_inside(func, size, self._kind_of_birth())
            for tensor in [result] if type(result) is torch.Tensor else tree_iter(result):
                if isinstance(tensor, torch.Tensor):
                    self._log_tensor(tensor, func, args)
        if sends:
            self._note_communication(func, args, kwargs or {})
        return result

    def _log_inside(self, func: OpOverload, size: int, kind: str) -> None:
        module, node = self._modules.current()
        piece = LivePiece(size, kind, module, node, f"inside {func}", (size,), torch.uint8, self.device)
        self._log.add_passing(piece)

    def _note_communication(self, func: OpOverload, args: tuple, kwargs: dict) -> None:
        if self._look_inside and func.overloadpacket.__name__ == "_reduce_scatter_base_":
            # gloo copies the whole input, sums the copies, and keeps its own part.
            self._log_inside(func, args[1].untyped_storage().nbytes(), "communication")
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor) and not is_traceable_wrapper_subclass(tensor):
                piece = self._log.piece_of(tensor.untyped_storage())
                if piece and piece.bytes_before is None and piece.kind not in _LASTING_KINDS:
                    piece.kind = "communication"

    def _update_phase(self) -> None:
        """Note what PyTorch is doing now, and log the phase if it is a new one. Marks name phases whatever PyTorch does."""
        if self._updating:
            self._activity = "update"
        elif torch._C._current_graph_task_id() != -1:
            self._activity = "backward"
        else:  # clipping comes after backward and before the step, outside of modules and without recording for autograd
            between = not self._modules.names and not torch.is_grad_enabled()
            self._activity = "update" if between and (self._after_backward or "update" in self._marks) else "forward"
        if self._marks:
            phase = self._marks[-1]
        else:
            phase = self._activity
            self._after_backward = phase == "backward" or (self._after_backward and phase == "update")
        self._log.begin_phase(phase)

    def _see_random_state(self, function: Callable[..., torch.Tensor], *args, **kwargs) -> torch.Tensor:
        result = function(*args, **kwargs)
        self._update_phase()
        self._log_tensor(result, function.__name__)
        return result

    def _see_resize(self, resize: Callable) -> Callable[[torch.UntypedStorage, int], object]:
        def resize_and_log(storage: torch.UntypedStorage, size: int) -> object:
            result = resize(storage, size)
            if self._log.piece_of(storage) is not None:
                self._update_phase()
                self._log.resize(storage)
            return result

        return resize_and_log

    def _log_tensor(self, tensor: torch.Tensor, operator: OpOverload | str, args: tuple = ()) -> None:
        if type(tensor) is not torch.Tensor and is_traceable_wrapper_subclass(tensor):
            for inner in _inner_tensors(tensor):
                self._log_tensor(inner, operator)
            return
        if tensor.layout is not torch.strided:
            if type(tensor) is FakeTensor:
                raise CourseError(
                    "The memory of sparse tensors depends on their values, and a dry run has none: leave sparse=True out, "
                    "or run the step itself in memory.measure(build, step)."
                )
            return
        storage = tensor.untyped_storage()
        if self._log.piece_of(storage) is not None:
            if operator is _RESIZE:
                self._log.resize(storage)
            return
        device = device_of(tensor)
        if device != self.device and device != HOST:
            return
        module, node = self._modules.current()
        kind = self._kind_of_birth()
        piece = LivePiece(storage.nbytes(), kind, module, node, operator, tensor.shape, tensor.dtype, device)
        self._log.add(piece, storage)
        in_backward = self._activity == "backward" and not torch.is_grad_enabled()
        if in_backward and id(operator) in _ADDITION_IDS:
            self._log.note_sum(tensor, args[0], only_by_engine=operator is _aten.add.Tensor)

    def _kind_of_birth(self) -> str:
        # Backward records no graph, so where one is recorded inside it, a forward pass is run again.
        is_recomputed = self._activity == "backward" and torch.is_grad_enabled()
        return "recomputed" if is_recomputed else _KIND_BY_ACTIVITY[self._activity]

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
            self._set_kind("buffers", _tensors_in({**vars(module), **_REGISTERED_ATTRIBUTES}), "", name)
            for parameter in module.parameters(recurse=False):  # such as the statistics of quantized weights
                self._set_kind("buffers", _tensors_in(vars(parameter)), "", name)
        self._set_kind_of_state()
        self._set_kind("inputs", self._tensors)

    def _iterate_named(self, method: str) -> Iterator[tuple[str, object]]:
        """Parameters, buffers or modules of all models by name; with several models a name begins with the model's number."""
        for number, model in enumerate(self.models):
            prefix = f"{number}" if len(self.models) > 1 else ""
            yield from getattr(model, method)(prefix=prefix)

    def _set_kind(self, kind: str, tensors: Iterable, operator: str = "", module: str = "") -> None:
        """Give the pieces of `tensors` this kind. A piece that is not in the log yet was allocated before the log began."""
        for tensor in chain.from_iterable(map(_inner_tensors, tensors)):
            device = device_of(tensor)
            # A wrapper of torch.func's; its memory is that of the tensor inside.
            wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
            if wrapped or device not in (self.device, HOST) or tensor.layout is not torch.strided:
                continue
            storage = tensor.untyped_storage()
            piece = self._log.piece_of(storage)
            if piece is None:
                size = storage.nbytes()
                piece = LivePiece(size, kind, module, None, operator, tensor.shape, tensor.dtype, device, size)
                self._log.add(piece, storage)
            elif kind not in ("inputs", "buffers") or piece.bytes_before is None:
                piece.kind = kind

    def _set_kind_of_gradient(self, module: str, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:  # a shard's gradient comes later, when the ranks have summed it
            self._set_kind("gradients", [parameter.grad], module=module)

    def _set_kind_of_state(self) -> None:
        modules = {id(p): name.rpartition(".")[0] for name, p in self._iterate_named("named_parameters")}
        for optimizer in self.optimizers:
            inner = getattr(optimizer, "optim", None)  # in which ZeroRedundancyOptimizer has its part of the state
            for holder in (optimizer, inner):
                for parameter, state in holder.state.items() if isinstance(holder, torch.optim.Optimizer) else ():
                    tensors = (value for value in tree_iter(state) if isinstance(value, torch.Tensor))
                    self._set_kind("optimizer state", tensors, module=modules.get(id(parameter), ""))

    def _begin_module(self, name: str, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if any(module is model for model in self.models):
            self._modules.names.clear()  # a forward that failed may have left its modules here
            self._set_kind("inputs", (x for x in tree_iter((args, kwargs)) if isinstance(x, torch.Tensor)))
        self._modules.begin(name)

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


def _find_traits(func: OpOverload) -> tuple[bool, bool, bool]:
    """Whether an operator can allocate memory, whether it may hide some, and whether it communicates; found once for each.

    Views, operators in place and a number that is read (`loss.item()`) allocate none; a profiler's mark is no part of a step.
    """
    returns = func._schema.returns
    returns_new = any(r.alias_info is None and "Tensor" in str(r.type) for r in returns)
    makes = (returns_new or func is _RESIZE) and func.namespace != "profiler"
    hides = may_hide(func)
    _TRAITS[id(func)] = traits = makes or hides, hides, func.namespace in _COLLECTIVE_NAMESPACES
    return traits


def _inner_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors inside a wrapper such as `DTensor`; for a plain tensor itself."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _inner_tensors(getattr(tensor, name))
    elif isinstance(tensor, torch.Tensor):  # else: a DTensor lists its mesh too
        yield tensor


def _tensors_in(containers: object, depth: int = 3) -> Iterator[torch.Tensor]:
    """The tensors in containers, and in the attributes of plain objects inside them down to `depth`."""
    for leaf in tree_leaves(containers):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif depth and hasattr(leaf, "__dict__") and not isinstance(leaf, nn.Module | type) and not callable(leaf):
            yield from _tensors_in(vars(leaf), depth - 1)


def device_of_models(models: list[nn.Module]) -> torch.device:
    """The device of the models' tensors; if they are on several, one that is not the host."""
    devices = {tensor.device for model in models for tensor in (*model.parameters(), *model.buffers())}
    return next((device for device in devices if device != HOST), HOST)
