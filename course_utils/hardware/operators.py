"""The work of a step's operators, counted from shapes, and the seconds that a machine needs for it."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod, sqrt
from typing import NamedTuple

import pandas as pd
import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_leaves

from course_utils.hardware.flops import flop_formula
from course_utils.hardware.kernels import CHANNELS_LAST_SUFFIX, MIXED_SUFFIX, STRIDED_SUFFIX, UNEVEN_SUFFIX
from course_utils.hardware.machine import HOST_KERNEL, Machine, Work
from course_utils.units import MiB


class Operator(NamedTuple):
    """One call of an operator: its name (`"aten.mm"`) and its work."""

    name: str
    work: Work


@dataclass(frozen=True)
class Prediction:
    """A step's operators on a machine."""

    machine: Machine
    operators: tuple[Operator, ...]

    @property
    def seconds(self) -> float:
        """Seconds of the whole step, one operator after the other."""
        return sum(self.machine.seconds(work) for _, work in self.operators)

    @property
    def opaque(self) -> tuple[str, ...]:
        """Names of other libraries' operators, for which only the bytes of inputs and outputs can be counted."""
        return tuple(sorted({name for name, _ in self.operators if not name.startswith("aten.")}))

    def frame(self) -> pd.DataFrame:
        """A table with a row per operator, the slowest first: calls, FLOPs, bytes, seconds."""
        rows = [(name, 1, work.flops, work.bytes, self.machine.seconds(work)) for name, work in self.operators]
        frame = pd.DataFrame(rows, columns=["operator", "calls", "flops", "bytes", "seconds"])
        return frame.groupby("operator").sum().sort_values("seconds", ascending=False)


_ATTENTION, _NORM = "_scaled_dot_product_flash_attention_for_cpu", "linalg_vector_norm"
_KERNEL_NAMES = {"baddbmm": "bmm", _ATTENTION: "attention", f"{_ATTENTION}_backward": "attention_backward"}
_ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
_OVERWRITES = {"fill_", "zero_", "copy_", "bernoulli_", "normal_", "uniform_"}
# Operators that read only the shape of their second argument.
_SHAPE_READERS = {"nll_loss_backward", "nll_loss2d_backward", "_adaptive_avg_pool2d_backward"}
# Operators that read only those rows of their first tensor that the other tensors select.
_GATHERS = {"embedding", "index_select", "gather", "index", "nll_loss_forward"}
# The index of a product's first factor, and of a convolution's filters, among the arguments.
_FACTOR_INDICES = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
_FILTER_INDICES = {"convolution": 1, "convolution_backward": 2}
# Operators that do no work: marks for a profiler, and questions about fake tensors.
_NO_OPERATORS = ("profiler.", "prim.")
# Bytes, more than any cache holds.
_MAX_REACH = 256 * MiB


class EagerMode(TorchDispatchMode):
    """A dispatch mode in which nothing is compiled, and which leaves out torch's guard against that."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class Watch(EagerMode):
    """A context that passes every operator call inside it, after it has run, to `note`, which a subclass defines."""

    def note(self, function: OpOverload, args: tuple, kwargs: dict, result: object) -> None:
        """Called with each call of `function` and its `result`."""
        raise NotImplementedError

    def __torch_dispatch__(self, function: OpOverload, types: Collection, args: tuple = (), kwargs: dict | None = None):
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # it comes again with the tensors inside
        result = function(*args, **(kwargs or {}))
        self.note(function, args, kwargs or {}, result)
        return result


class OperatorWatch(Watch):
    """A context that lists the work of every operator call inside it; a call with a tensor on `host` is work `HOST_KERNEL`."""

    def __init__(self, host: torch.device | None = None):
        super().__init__()
        self.operators: list[Operator] = []
        self._host = host
        self._bytes_moved = 0
        self._last_touched: dict[int, int] = {}  # by storage, the bytes that had been moved until then

    def note(self, function: OpOverload, args: tuple, kwargs: dict, result: object) -> None:
        """List the operator, unless it does no work."""
        name = str(function.overloadpacket)
        if name.startswith(_NO_OPERATORS):
            return
        inputs = list_tensors((args, kwargs))
        outputs = list_tensors(result)
        work = _count_work(function, args, kwargs, result, inputs, outputs)
        if any(t.device == self._host and t.dim() for t in (*inputs, *outputs)):
            work = replace(work, kernel=HOST_KERNEL, flops=0)
        self.operators.append(Operator(name, replace(work, reach=self._reach(work, inputs, outputs))))

    def _reach(self, work: Work, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> int:
        """Bytes moved since the inputs were last used, averaged over their bytes; far more for inputs not yet used."""
        last = (self._last_touched.get(_storage(t), -_MAX_REACH) for t in inputs)
        reaches = [min(_MAX_REACH, self._bytes_moved - position) for position in last]
        self._bytes_moved += work.bytes
        self._last_touched.update((_storage(t), self._bytes_moved) for t in (*inputs, *outputs))
        weighted = sum(t.nbytes * reach for t, reach in zip(inputs, reaches, strict=True))
        return weighted // max(1, sum(t.nbytes for t in inputs))


def _count_work(function: OpOverload, args: tuple, kwargs: dict, result: object, inputs: list, outputs: list) -> Work:
    """The work of one call of an operator, from the shapes of its inputs and outputs."""
    name = str(function.overloadpacket).split(".")[-1]
    storages = set(map(_storage, inputs))
    new = [t for t in outputs if _storage(t) not in storages]
    modified = _find_modified(function, args, kwargs)
    # The first is the dtype: attention's statistics, which come last, are wider.
    floating = [t.dtype for t in inputs if t.dtype.is_floating_point]
    formula = flop_formula(function.overloadpacket)
    work = replace(
        _classify(name, args),
        dtype=str(floating[0] if floating else torch.float32).removeprefix("torch."),
        flops=int(formula(*args, **kwargs, out_val=result)) if formula else 0,
        new_tensors=max(1, len(new)),
    )
    if name in _ALLOCATIONS or not (new or modified):
        return work
    sizes = [t.numel() for t in (*inputs, *outputs)]
    elements = sum(t.numel() for t in args[0]) if name.startswith("_foreach_") else max(sizes)
    size = _count_bytes(name, inputs, new, modified)
    return replace(work, bytes=size, elements=elements, new_bytes=_bytes_of_views(new))


def list_tensors(tree: object) -> list[torch.Tensor]:
    """The tensors among the leaves of nested containers, in order."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


@cache
def written_arguments(function: OpOverload) -> tuple[int, ...]:
    """Indices of the arguments that an operator writes to, by its schema."""
    aliases = [argument.alias_info for argument in function._schema.arguments]
    return tuple(index for index, alias in enumerate(aliases) if alias is not None and alias.is_write)


def _find_modified(function: OpOverload, args: tuple, kwargs: dict) -> list[torch.Tensor]:
    names = [argument.name for argument in function._schema.arguments]
    indices = written_arguments(function)
    return list_tensors([args[index] if index < len(args) else kwargs.get(names[index]) for index in indices])


def _count_bytes(name: str, inputs: list, new: list, modified: list) -> int:
    bytes_written = _bytes_of_views(new) + _bytes_of_views(modified)
    if name in _SHAPE_READERS:
        inputs = inputs[:1] + inputs[2:]
    if name in _OVERWRITES:
        unread = {id(t) for t in modified}
        return bytes_written + _bytes_of_views(t for t in inputs if id(t) not in unread)
    # With a mask as index, all elements are read, so only indices by number are counted here.
    if name == "index_put_" and all(t.dtype is not torch.bool for t in inputs[1:-1]):
        return _bytes_of_views(inputs[1:]) + min(_bytes_of_views(modified), inputs[-1].nbytes)
    if name in _GATHERS:
        rest = _bytes_of_views(inputs[1:])
        return bytes_written + rest + min(_bytes_of_views(inputs[:1]), bytes_written + rest)
    return bytes_written + _bytes_of_views(inputs)


def _bytes_of_views(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of `tensors`, in which a repeated view counts once, and an expanded one as much as its storage."""
    sizes = {(_storage(t), t.storage_offset(), t.shape): min(t.nbytes, t.untyped_storage().nbytes()) for t in tensors}
    return sum(sizes.values())


def _classify(operator: str, args: tuple) -> Work:
    """The work's kernel, size and rows. The kernel's name ends in the layout of the arguments if its rate depends on that."""
    name = operator.removeprefix("_foreach_").removesuffix("_")
    name = _KERNEL_NAMES.get(name, name)
    if operator in _FACTOR_INDICES:
        return _classify_product(name, *args[_FACTOR_INDICES[operator] : _FACTOR_INDICES[operator] + 2])
    if operator == _NORM:
        return _classify_norm(*args)
    pictures = [t for t in args if isinstance(t, torch.Tensor) and t.dim() == 4]
    if pictures and args[0] is pictures[0]:
        name += _suffix_for_pictures(operator, pictures)
    return Work(name, size=sqrt(args[_FILTER_INDICES[operator]].numel()) if operator in _FILTER_INDICES else 1.0)


def _classify_product(name: str, left: torch.Tensor, right: torch.Tensor) -> Work:
    if left.dim() == 2:
        name = "mm " + "".join("N" if factor.stride(-1) == 1 else "T" for factor in (left, right))
    return Work(name, size=sqrt(prod(right.shape[-2:])), rows=left.shape[-2])


def _classify_norm(x: torch.Tensor, order: float = 2, dims: Sequence[int] | None = None, *_) -> Work:
    dims = dims or ()  # none: over all
    is_strided = min((x.stride(dim) for dim in dims if x.shape[dim] > 1), default=1) > 1
    return Work(_NORM + (STRIDED_SUFFIX if is_strided else ""), size=float(prod(x.shape[dim] for dim in dims)))


def _suffix_for_pictures(operator: str, pictures: list[torch.Tensor]) -> str:
    channels_last = [t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous() for t in pictures]
    channels_first = [t.is_contiguous() for t in pictures if t.shape == pictures[0].shape]
    if any(channels_last) and any(channels_first) and operator not in _FILTER_INDICES:
        return MIXED_SUFFIX
    channels = pictures[_FILTER_INDICES[operator]].shape[:2] if operator in _FILTER_INDICES else pictures[0].shape[1:2]
    by_channels = operator in (*_FILTER_INDICES, "native_batch_norm", "native_batch_norm_backward")
    is_uneven = by_channels and any(count % 16 for count in channels)
    return (CHANNELS_LAST_SUFFIX if channels_last[0] else "") + (UNEVEN_SUFFIX if is_uneven else "")
