"""An event log of memory: when each piece is born and when it dies, for what, and where.

It only logs; `Usage` analyses afterwards. A piece is a storage, the memory behind one tensor and all its views.
"""

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_iter

from course_utils.memory.phases import observed_by
from course_utils.memory.scratch import peak_inside
from course_utils.memory.usage import Piece, Usage

_BORN_FOR = {"forward": "activations", "backward": "backward temporaries", "update": "optimizer temporaries"}


class Meter(TorchDispatchMode):
    """A context that logs every birth and death of device memory inside it; `usage()` tells, during and afterwards.

    What is known at once: parameters and buffers of `model`, gradients, the state of `optimizer`; what is passed to
    `model`'s forward is an input. All else is named after the phase of its birth: activations (forward), recomputed (a
    forward inside backward, as checkpointing has it), backward temporaries, optimizer temporaries (the update, clipping
    included). The phases are told apart by what PyTorch is doing; inside `memory.phase(name)` they have that name.
    `round_to` is the allocator's grain in bytes, each piece being rounded up to it. With `look_inside` the few operators
    that hide memory on a CPU (convolution, products in half precision, bitsandbytes' steps) are tried out once apart from
    the step, to learn how much (`scratch.peak_inside`); it shows as a piece that was born "inside" the operator.
    Works on fake tensors; a step that raises leaves a usable log and the model without hooks.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        round_to: int | None = None,
        look_inside: bool = True,
    ):
        super().__init__()
        self.model, self.optimizer = model, getattr(optimizer, "optimizer", optimizer)  # Accelerate wraps it
        self.device = next(model.parameters()).device
        self._looks_inside = look_inside
        self._grain = round_to or (512 if self.device.type == "cuda" else 1)
        self._pieces: list[Piece] = []
        self._sizes: list[int] = []  # of the pieces, now
        self._events: list[tuple[int, int, str]] = []  # (change in bytes, piece, phase)
        self._alive: dict[int, tuple[int, weakref.ref]] = {}  # by the address of the storage: its piece
        self._modules: list[str] = []
        self._births_of_nodes: list[tuple[int, str]] = []  # (autograd's sequence number, module at work from then on)
        self._marks: list[str] = []
        self._phase, self._updating, self._after_backward = "forward", False, False

    def usage(self) -> Usage:
        """What has been logged so far."""
        return Usage(tuple(replace(piece) for piece in self._pieces), tuple(self._events))

    def __enter__(self):
        self._hooks = ExitStack()
        self._register_what_is_there()
        self._hook_modules()
        self._hook_optimizer()
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

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        # A profiler's marks are operators too, but no part of the step; a number that is read (`loss.item()`) takes nothing.
        if func.namespace != "profiler" and not isinstance(result, int | float):
            self._enter(self._phase_now())
            self._look_inside(func, args, kwargs)
            for tensor in (result,) if isinstance(result, torch.Tensor) else tree_iter(result):
                if isinstance(tensor, torch.Tensor):
                    self._see(tensor, func)
        return result

    def _look_inside(self, func, args: tuple, kwargs: dict) -> None:
        size = self._rounded(peak_inside(func, args, kwargs)) if self._looks_inside else 0
        if size:
            piece = Piece(size, self._kind_of_birth(), self._module_now(), f"inside {func}", (size,), torch.uint8)
            self._events.append((-size, self._booked(piece), self._phase))

    def _phase_now(self) -> str:
        if self._marks:
            return self._marks[-1]
        phase = self._work_now()
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

    def _enter(self, phase: str) -> None:
        if phase != self._phase or not self._events:
            self._phase = phase
            self._events.append((0, -1, phase))

    def _seeing(self, function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def seen(*args, **kwargs) -> torch.Tensor:
            result = function(*args, **kwargs)
            self._see(result, function.__name__)
            return result

        return seen

    def _seeing_resize(self) -> Callable[[torch.UntypedStorage, int], object]:
        resize = torch.UntypedStorage.resize_

        def seen(storage: torch.UntypedStorage, size: int) -> object:
            result = resize(storage, size)
            if known := self._alive.get(storage._cdata):
                self._enter(self._phase_now())
                self._resized(known[0], storage)
            return result

        return seen

    def _see(self, tensor: torch.Tensor, operator) -> None:
        if is_traceable_wrapper_subclass(tensor):
            for name in tensor.__tensor_flatten__()[0]:
                self._see(getattr(tensor, name), operator)
            return
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        known = self._alive.get(storage._cdata)
        if known is None:
            if tensor.device == self.device:
                self._be_born(storage, tensor, self._kind_of_birth(), str(operator), self._module_now())
        elif operator is _RESIZE:
            self._resized(known[0], storage)

    def _be_born(self, storage, tensor: torch.Tensor, kind: str, operator: str, module: str, was_there=False) -> None:
        size = self._rounded(storage.nbytes())
        index = self._booked(Piece(size, kind, module, operator, tuple(tensor.shape), tensor.dtype, was_there))
        reference = weakref.ref(storage, partial(self._die, storage._cdata, index))
        self._alive[storage._cdata] = index, reference

    def _booked(self, piece: Piece) -> int:
        """The index of a piece that begins now."""
        index = len(self._pieces)
        self._pieces.append(piece)
        self._sizes.append(piece.bytes)
        if not piece.was_there:
            self._events.append((piece.bytes, index, self._phase))
        return index

    def _die(self, address: int, index: int, _) -> None:
        if self._alive.get(address, (None,))[0] == index:  # an address may already have a new tenant
            del self._alive[address]
            self._events.append((-self._sizes[index], index, self._phase))

    def _resized(self, index: int, storage) -> None:
        size = self._rounded(storage.nbytes())
        self._events.append((size - self._sizes[index], index, self._phase))
        self._sizes[index] = size

    def _rounded(self, size: int) -> int:
        return -(-size // self._grain) * self._grain

    def _kind_of_birth(self) -> str:
        work = self._work_now()
        # Autograd runs without recording, so recording inside it is a forward pass run again.
        return "recomputed" if work == "backward" and torch.is_grad_enabled() else _BORN_FOR[work]

    def _module_now(self) -> str:
        """The module at work, in backward the one whose forward made the node that is differentiated."""
        if self._modules or torch._C._current_graph_task_id() == -1:
            return self._modules[-1] if self._modules else ""
        node = torch._C._current_autograd_node()
        return "" if node is None else self._module_of(node._sequence_nr())

    def _module_of(self, number: int) -> str:
        before = bisect_right(self._births_of_nodes, number, key=lambda birth: birth[0])
        accumulates = number >= 2**63  # the sum into .grad has the largest number there is, and no forward
        return self._births_of_nodes[before - 1][1] if before and not accumulates else ""

    def _register_what_is_there(self) -> None:
        for name, parameter in self.model.named_parameters():
            module, _, leaf = name.rpartition(".")
            self._mark_as("parameters", [parameter], leaf, module)
            if parameter.grad is not None:
                self._mark_as("gradients", [parameter.grad], leaf, module)
            if parameter.requires_grad:
                self._hooks.callback(parameter.register_post_accumulate_grad_hook(partial(self._graded, module)).remove)
        for name, buffer in self.model.named_buffers():
            self._mark_as("buffers", [buffer], "", name.rpartition(".")[0])
        self._note_state()

    def _mark_as(self, kind: str, tensors: Iterable, operator: str = "", module: str = "") -> None:
        """Give the pieces of `tensors` this kind; those unseen so far were there before the log began."""
        for tensor in tensors:
            if tensor.device != self.device or tensor.layout is not torch.strided:
                continue
            storage = tensor.untyped_storage()
            known = self._alive.get(storage._cdata)
            if known is None:
                self._be_born(storage, tensor, kind, operator, module, was_there=True)
            elif not (kind == "inputs" and self._pieces[known[0]].was_there):
                self._pieces[known[0]].kind = kind

    def _graded(self, module: str, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:  # of a shard it comes later, when the ranks have summed it
            self._mark_as("gradients", [parameter.grad], module=module)

    def _note_state(self, *_) -> None:
        if self.optimizer is not None:
            state = (value for value in tree_iter(dict(self.optimizer.state)) if isinstance(value, torch.Tensor))
            self._mark_as("optimizer state", state)

    def _hook_modules(self) -> None:
        for name, module in self.model.named_modules():
            before = module.register_forward_pre_hook(partial(self._begin, name), with_kwargs=True)
            after = module.register_forward_hook(self._end, always_call=True)
            self._hooks.callback(before.remove)
            self._hooks.callback(after.remove)

    def _begin(self, name: str, module: nn.Module, args, kwargs) -> None:
        if module is self.model:
            self._modules.clear()  # a forward that failed may have left its modules here
            self._mark_as("inputs", (x for x in tree_iter((args, kwargs)) if isinstance(x, torch.Tensor)))
        self._modules.append(name)
        self._births_of_nodes.append((torch.autograd._get_sequence_nr(), name))

    def _end(self, *_) -> None:
        if self._modules:
            self._modules.pop()
        self._births_of_nodes.append((torch.autograd._get_sequence_nr(), self._modules[-1] if self._modules else ""))

    def _hook_optimizer(self) -> None:
        if self.optimizer is None:
            return
        self._hooks.callback(self.optimizer.register_step_pre_hook(self._begin_update).remove)
        self._hooks.callback(self.optimizer.register_step_post_hook(self._end_update).remove)

    def _begin_update(self, *_) -> None:
        self._updating = True
        for name, parameter in self.model.named_parameters():
            self._graded(name.rpartition(".")[0], parameter)

    def _end_update(self, *_) -> None:
        self._updating = False
        self._note_state()

    @contextmanager
    def _marked(self, name: str) -> Iterator[None]:
        self._marks.append(name)
        self._enter(name)
        try:
            yield
        finally:
            self._marks.pop()


_RESIZE = torch.ops.aten.resize_.default
