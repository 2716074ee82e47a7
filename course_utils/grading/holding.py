"""What an answer keeps: memory allocated in a block, whatever refers to it; values reachable from it; graphs not yet used."""

import gc
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from types import CodeType, ModuleType
from weakref import WeakSet

import numpy
import torch
from torch._ops import OpOverload
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_utils.grading.run import imported_from

_FLOAT_BYTES = 8
_PRODUCTS = {getattr(torch.ops.aten, name) for name in ("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot")}


class Born(TorchDispatchMode):
    """Notes the memory of each tensor made in the block, even if only a closure or a cache of the learner's refers to it."""

    def __init__(self):
        super().__init__()
        self._storage_bytes: dict[StorageWeakRef, int] = {}  # when it was made

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # torch's own name; else each operator goes through the compiler's guard, which is large to import

    def __torch_dispatch__(
        self, func: OpOverload, types: Collection[type], args: tuple = (), kwargs: dict | None = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        inputs = {_storage_of(tensor) for tensor in _tensors((args, kwargs or {}))}
        for tensor in _tensors(result):
            if _storage_of(tensor) not in inputs:
                memory = tensor.untyped_storage()
                self._storage_bytes[StorageWeakRef(memory)] = memory.nbytes()
                self._note_birth(tensor)
        self._note_operator(func, args, result)
        return result

    def _note_birth(self, tensor: torch.Tensor) -> None:
        pass

    def _note_operator(self, func: OpOverload, args: tuple, result: object) -> None:
        pass

    def alive(self) -> list[int]:
        """The present bytes of each storage that was made in the block and is not freed."""
        gc.collect(1)  # reference cycles of the last calls; a full collection would take long
        storages = (torch.UntypedStorage._new_with_weak_ptr(memory.cdata) for memory in self._storage_bytes)
        return [storage.nbytes() for storage in storages if storage is not None and storage.nbytes()]


class Peak(Born):
    """Measures a block: `most`, the peak of the bytes made in it; `largest`, the elements of the largest tensor; `products`, the
    multiplications in all products of matrices and vectors.
    """

    def __init__(self):
        super().__init__()
        self.most = self.largest = self.products = 0

    def _note_birth(self, tensor: torch.Tensor) -> None:
        self.largest = max(self.largest, tensor.untyped_storage().nbytes() // tensor.itemsize)

    def _note_operator(self, func: OpOverload, args: tuple, result: torch.Tensor) -> None:
        if func.overloadpacket in _PRODUCTS:
            left = [argument for argument in args if isinstance(argument, torch.Tensor)][-2]
            self.products += result.numel() * left.shape[-1]
        self._storage_bytes = {memory: size for memory, size in self._storage_bytes.items() if not memory.expired()}
        self.most = max(self.most, sum(self._storage_bytes.values()))


def is_freed(make: Callable[[], torch.Tensor]) -> bool:
    """Whether the tensor that `make` returns is freed once it is dropped: nothing else refers to it, and it is in no cycle."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return StorageWeakRef(make().untyped_storage()).expired()
    finally:
        if was_on:
            gc.enable()


def _storage_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _tensors(tree: object) -> list[torch.Tensor]:
    """The strided tensors in a tree that have memory: none on the device `meta`."""
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return [tensor for tensor in tensors if tensor.layout is torch.strided and not tensor.is_meta]


def reachable(root: object) -> Iterator[object]:
    """All that `root` refers to, except through modules, installed classes, a notebook's namespace, a tensor's gradient."""
    pending, seen = [root], {}
    while pending:
        value = pending.pop()
        if id(value) in seen or _is_outside(value):
            continue
        seen[id(value)] = value  # a reference, so that no new object gets its id
        yield value
        pending += gc.get_referents(value)


def tensors_held(root: object) -> list[torch.Tensor]:
    """The floating-point tensors that `root` refers to, through closures and objects of any class too."""
    return [value for value in reachable(root) if isinstance(value, torch.Tensor) and value.is_floating_point()]


def numbers_held(root: object) -> int:
    """Bytes of the numbers that `root` refers to outside of tensors: 8 for a float, arrays and bytes as they are."""
    return sum(map(_bytes_of, reachable(root)))


def elements_kept(tensors: Iterable[torch.Tensor]) -> int:
    """Elements in the memory behind `tensors`, with shared memory counted once; the device `meta` has none."""
    real = [tensor for tensor in tensors if not tensor.is_meta]
    return sum({address_of(tensor): capacity_of(tensor) for tensor in real}.values())


def address_of(tensor: torch.Tensor) -> int:
    """The address of the memory behind `tensor`."""
    return tensor.untyped_storage().data_ptr()


def capacity_of(tensor: torch.Tensor) -> int:
    """How many elements the memory behind `tensor` has room for."""
    return tensor.untyped_storage().nbytes() // tensor.element_size()


def _is_outside(value: object) -> bool:
    """Whether a value belongs to Python, a library or a notebook's namespace; also if it raises when asked."""
    with suppress(Exception):
        if isinstance(value, type):
            return value.__module__ in ("builtins", "typing", "abc") or bool(imported_from(value))
        names = type(value) is dict and ("__builtins__" in value or "__build_class__" in value)
        return names or isinstance(value, ModuleType | CodeType)
    return True


def _bytes_of(value: object) -> int:
    if type(value) is float:
        return _FLOAT_BYTES
    if isinstance(value, numpy.ndarray):
        return value.nbytes
    if isinstance(value, array):
        return len(value) * value.itemsize
    return len(value) if type(value) in (bytes, bytearray) else 0


class Waiting:
    """A context that counts, after each forward pass of a model, the rows that wait for their backward pass because their graph
    still exists (`most`, the largest number), and those whose output is not freed (`outputs`)."""

    def __init__(self, model: torch.nn.Module):
        self.most = self.outputs = 0
        # Of each pass its rows, and what its graph has saved; and its rows, and the memory of its output.
        self._passes: list[tuple[int, WeakSet]] = []
        self._output_storages: list[tuple[int, StorageWeakRef]] = []
        model.register_forward_pre_hook(lambda _, inputs: self._passes.append((len(inputs[0]), WeakSet())))
        model.register_forward_hook(self._count)
        self._hooks = saved_tensors_hooks(self._pack, lambda saved: saved.tensor)

    def __enter__(self):
        self._hooks.__enter__()
        return self

    def __exit__(self, *error):
        self._hooks.__exit__(*error)

    def _pack(self, tensor: torch.Tensor) -> "_SavedTensor":
        saved = _SavedTensor(tensor)
        if self._passes:
            self._passes[-1][1].add(saved)
        return saved

    def _count(self, model: torch.nn.Module, _inputs: tuple, output: torch.Tensor) -> None:
        self._output_storages.append((len(output), StorageWeakRef(output.untyped_storage())))
        self.most = max(self.most, sum(rows for rows, saved in self._passes if saved))
        self.outputs = max(self.outputs, sum(rows for rows, memory in self._output_storages if not memory.expired()))


class _SavedTensor:
    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor
