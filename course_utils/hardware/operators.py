"""What the operators of a step ask of a machine, counted from shapes; and the seconds in which a machine does it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod, sqrt
from typing import NamedTuple

import pandas as pd
import torch
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_leaves

from course_utils.hardware.kernels import CHANNELS_LAST, MIXED, STRIDED, UNEVEN
from course_utils.hardware.machine import ON_HOST, Machine, Work
from course_utils.units import MiB


class Operator(NamedTuple):
    """One call of an operator: its name (`"aten.mm"`) and what it asks of a machine."""

    name: str
    work: Work


@dataclass(frozen=True)
class Prediction:
    """A step's operators on a machine."""

    machine: Machine
    operators: tuple[Operator, ...]

    @property
    def seconds(self) -> float:
        """Of the whole step, one operator after the other."""
        return sum(self.machine.seconds(work) for _, work in self.operators)

    @property
    def opaque(self) -> tuple[str, ...]:
        """Operators of other libraries, of which only the bytes that go in and come out can be counted."""
        return tuple(sorted({name for name, _ in self.operators if not name.startswith("aten.")}))

    def frame(self) -> pd.DataFrame:
        """A row per operator, the slowest first: calls, FLOPs, bytes, seconds."""
        rows = [(name, 1, work.flops, work.bytes, self.machine.seconds(work)) for name, work in self.operators]
        frame = pd.DataFrame(rows, columns=["operator", "calls", "flops", "bytes", "seconds"])
        return frame.groupby("operator").sum().sort_values("seconds", ascending=False)


_NO_OPERATORS = ("profiler.", "prim.")  # marks for a profiler, and questions that only a fake tensor asks
_FAR = 256 * MiB  # beyond any cache


class OperatorWatch(TorchDispatchMode):
    """Counts the work of every operator within it; what touches a tensor on `host` goes at the pace of the link to it."""

    def __init__(self, host: torch.device | None = None):
        super().__init__()
        self.operators: list[Operator] = []
        self._moved, self._touched = 0, {}  # bytes so far, and by storage how many there were when it was last touched
        self._host = host

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented
        kwargs = kwargs or {}
        answer, name = function(*args, **kwargs), str(function.overloadpacket)
        if not name.startswith(_NO_OPERATORS):
            inputs, outputs = _tensors((args, kwargs)), _tensors(answer)
            work = work_of(function, args, kwargs, answer)
            if any(t.device == self._host and t.dim() for t in (*inputs, *outputs)):
                work = replace(work, kernel=ON_HOST, flops=0)
            self.operators.append(Operator(name, replace(work, reach=self._reach(work, inputs, outputs))))
        return answer

    def _reach(self, work: Work, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> int:
        """Bytes moved since the inputs were touched, their mean by size; what was last touched in another step is far away."""
        sizes = [t.nbytes for t in inputs]
        far = [min(_FAR, self._moved - self._touched.get(_storage(t), -_FAR)) for t in inputs]
        self._moved += work.bytes
        self._touched.update((_storage(t), self._moved) for t in (*inputs, *outputs))
        return sum(map(prod, zip(sizes, far, strict=True))) // max(1, sum(sizes))


_ATTENTION, _NORM = "_scaled_dot_product_flash_attention_for_cpu", "linalg_vector_norm"
_IN_4_BITS = {"gemm_4bit", "gemv_4bit"}  # bitsandbytes', of the input, the codes and the shape of the weight
_OTHER_NAMES = {"baddbmm": "bmm", _ATTENTION: "attention", f"{_ATTENTION}_backward": "attention_backward"}
# They allocate and leave the memory as it is.
_NEVER_TOUCHED = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
# They write their target without reading it.
_ONLY_WRITTEN = {"fill_", "zero_", "copy_", "bernoulli_", "normal_", "uniform_"}
# They read only the shape of their second argument.
_SHAPE_ONLY = {"nll_loss_backward", "nll_loss2d_backward", "_adaptive_avg_pool2d_backward"}
# They read only those rows of their first tensor that the others name.
_GATHERING = {"embedding", "index_select", "gather", "index", "nll_loss_forward"}
# Products, and the place of their first factor; convolutions, and the place of their filters.
_FACTORS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
_FILTERS = {"convolution": 1, "convolution_backward": 2}
# FLOPs for each input row and each weight.
_RECURRENT = {"mkldnn_rnn_layer": 2, "mkldnn_rnn_layer_backward": 4}


def work_of(function, args: tuple, kwargs: dict, answer) -> Work:
    """FLOPs, bytes and kind of one call of an operator, from the shapes of what goes in and comes out."""
    inputs, outputs = _tensors((args, kwargs)), _tensors(answer)
    short = str(function.overloadpacket).split(".")[-1]
    known = set(map(_storage, inputs))
    fresh = [t for t in outputs if _storage(t) not in known]
    changed = _find_changed(function, args, kwargs)
    floating = [t.dtype for t in inputs if t.dtype.is_floating_point]  # attention's statistics come last, and are wider
    kernel, side, rows = _kernel(short, args)
    work = Work(
        kernel=kernel,
        dtype=str(floating[0] if floating else torch.float32).removeprefix("torch."),
        flops=_flops(function, short, args, kwargs, answer),
        pieces=max(1, len(fresh)),
        side=side,
        rows=rows,
    )
    if short in _NEVER_TOUCHED or not (fresh or changed):
        return work
    sizes = [t.numel() for t in (*inputs, *outputs)]
    elements = sum(t.numel() for t in args[0]) if short.startswith("_foreach_") else max(sizes)
    return replace(work, bytes=_bytes(short, inputs, fresh, changed), elements=elements, new=_distinct_bytes(fresh))


def _tensors(tree) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _find_changed(function, args: tuple, kwargs: dict) -> list[torch.Tensor]:
    """Arguments that the operator's schema says it writes to."""
    schema = function._schema.arguments
    named = [*zip(schema, args, strict=False), *((a, kwargs[a.name]) for a in schema if a.name in kwargs)]
    return _tensors([value for argument, value in named if argument.alias_info and argument.alias_info.is_write])


def _bytes(short: str, inputs: list, fresh: list, changed: list) -> int:
    written = _distinct_bytes(fresh) + _distinct_bytes(changed)
    if short in _SHAPE_ONLY:
        inputs = inputs[:1] + inputs[2:]
    if short in _ONLY_WRITTEN:
        unread = {id(t) for t in changed}
        return written + _distinct_bytes(t for t in inputs if id(t) not in unread)
    if short == "index_put_" and all(
        t.dtype is not torch.bool for t in inputs[1:-1]
    ):  # a mask is gone through as a whole
        return _distinct_bytes(inputs[1:]) + min(_distinct_bytes(changed), inputs[-1].nbytes)
    if short in _GATHERING:
        rest = _distinct_bytes(inputs[1:])
        return written + rest + min(_distinct_bytes(inputs[:1]), written + rest)
    return written + _distinct_bytes(inputs)


def _distinct_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of `tensors`, the same one given twice counted once, and what is only expanded no larger than it is in memory."""
    sizes = {(_storage(t), t.storage_offset(), t.shape): min(t.nbytes, t.untyped_storage().nbytes()) for t in tensors}
    return sum(sizes.values())


def _flops(function, short: str, args: tuple, kwargs: dict, answer) -> int:
    """By torch's own counter, which knows every product but recurrent layers, grouped products, and attention in which several
    heads share a key (from PyTorch 2.13 on it does).
    """
    if short in _RECURRENT:
        rows = args[0].numel() // args[0].shape[-1]
        return _RECURRENT[short] * rows * (args[1].numel() + args[2].numel())
    if short in _IN_4_BITS:
        return 2 * args[0].numel() * answer.shape[-1]
    if short == "_grouped_mm":
        first, second = args[:2]
        of_groups = second.dim() == 2 < first.dim()
        return 2 * (answer.numel() * first.shape[-1] if of_groups else first.numel() * second.shape[-1])
    if short.startswith("_scaled_dot_product_"):
        backward = short.endswith("_backward")
        return _attention_flops(*args[backward : backward + 3], backward)
    counter = flop_counter.flop_registry.get(function.overloadpacket)
    return int(counter(*args, **kwargs, out_val=answer)) if counter else 0


def _attention_flops(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, backward: bool) -> int:
    """Two products forward, five backward: scores once more, and the gradients of probabilities, values, queries and keys."""
    of_scores, of_values = (3, 2) if backward else (1, 1)
    return 2 * query.shape[:-1].numel() * key.shape[-2] * (of_scores * query.shape[-1] + of_values * value.shape[-1])


def _kernel(short: str, args: tuple) -> tuple[str, float, int]:
    """Kind, side and rows of the work; the kind ends in the order of the arguments in memory where that sets the pace."""
    plain = short.removeprefix("_foreach_").removesuffix("_")
    plain = _OTHER_NAMES.get(plain, plain)
    if short in _FACTORS:
        left, right = args[_FACTORS[short] : _FACTORS[short] + 2]
        if left.dim() == 2:
            plain = "mm " + "".join("N" if factor.stride(-1) == 1 else "T" for factor in (left, right))
        return plain, sqrt(prod(right.shape[-2:])), left.shape[-2]
    if short == _NORM:
        dims = args[2] if len(args) > 2 and args[2] else ()  # none: over all
        strides = [args[0].stride(dim) for dim in dims if args[0].shape[dim] > 1]
        is_strided = min(strides, default=1) > 1
        return plain + STRIDED * is_strided, float(prod(args[0].shape[dim] for dim in dims)), Work.rows
    side = sqrt(args[_FILTERS[short]].numel()) if short in _FILTERS else 1.0
    pictures = [t for t in args if isinstance(t, torch.Tensor) and t.dim() == 4]
    if not pictures or args[0] is not pictures[0]:
        return plain, side, Work.rows
    last = [t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous() for t in pictures]
    first = [t.is_contiguous() for t in pictures if t.shape == pictures[0].shape]
    if any(last) and any(first) and short not in _FILTERS:
        return plain + MIXED, side, Work.rows
    channels = pictures[_FILTERS[short]].shape[:2] if short in _FILTERS else pictures[0].shape[1:2]
    by_channels = short in (*_FILTERS, "native_batch_norm", "native_batch_norm_backward")
    uneven = by_channels and any(count % 16 for count in channels)
    return plain + CHANNELS_LAST * last[0] + UNEVEN * uneven, side, Work.rows
