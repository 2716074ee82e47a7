"""The seconds of a training step, predicted: its operators counted under fake tensors, and timed by a machine's rates."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod, sqrt

import pandas as pd
import torch
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_utils.errors import CourseError
from course_utils.hardware import CHANNELS_LAST, MIXED, ON_HOST, STRIDED, UNEVEN, Machine, Work
from course_utils.memory.as_cuda import HOST
from course_utils.memory.dry_run import run_dry
from course_utils.memory.fake import wraps
from course_utils.units import MiB

_aten = torch.ops.aten


@dataclass(frozen=True)
class Operator:
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
        return sum(self.machine.seconds(operator.work) for operator in self.operators)

    @property
    def opaque(self) -> tuple[str, ...]:
        """Operators of other libraries, of which only the bytes that go in and come out can be counted."""
        return tuple(sorted({o.name for o in self.operators if not o.name.startswith("aten.")}))

    def frame(self) -> pd.DataFrame:
        """A row per operator, the slowest first: calls, FLOPs, bytes, seconds."""
        rows = [
            {
                "operator": o.name,
                "calls": 1,
                "flops": o.work.flops,
                "bytes": o.work.bytes,
                "seconds": self.machine.seconds(o.work),
            }
            for o in self.operators
        ]
        frame = pd.DataFrame(rows, columns=["operator", "calls", "flops", "bytes", "seconds"])
        return frame.groupby("operator").sum().sort_values("seconds", ascending=False)


def predict_seconds(
    build: Callable[[], tuple], step: Callable[..., object], machine: Machine, *, like: str = "cpu"
) -> Prediction:
    """The steady-state step `step(*build())` on `machine`: the sum over its operators of `machine.seconds`.

    Nothing is computed and no memory is taken. `like` as for `dry_run`: whose operators these are. On a machine known by its
    data sheet only, the sum is a lower bound for these operators: full rates and no cost of calling. Raises `CourseError`
    where the machine has no rate for a dtype.
    """
    if not isinstance(machine, Machine):
        raise CourseError(
            f"{machine!r} is no machine; give hardware.machine('H100'), or hardware.calibrate() for this one."
        )
    return Prediction(machine, count_operators(build, step, like))


def count_operators(build: Callable[[], tuple], step: Callable[..., object], like: str = "cpu") -> tuple[Operator, ...]:
    """Every operator call of the second `step(*build())`, in order; by then the optimizer has its state.

    Runs under fake tensors, and refuses what `dry_run` refuses.
    """
    watch = OperatorWatch(like)
    run_dry(build, step, like, watch=lambda: watch)
    return tuple(watch.operators)


# Marks for a profiler, and questions that only a fake tensor asks.
_NO_OPERATORS = ("profiler.", "prim.")


class OperatorWatch(TorchDispatchMode):
    """Counts the work of every operator within it; `like` CUDA, what touches the host's memory is told apart."""

    def __init__(self, like: str = "cpu"):
        super().__init__()
        self.operators: list[Operator] = []
        self._moved, self._touched = 0, {}  # bytes so far, and by storage how many there were when it was last touched
        self._host = HOST if like == "cuda" else None

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(map(wraps, types)):
            return NotImplemented
        kwargs = kwargs or {}
        answer = function(*args, **kwargs)
        if not _name(function).startswith(_NO_OPERATORS):
            work = work_of(function, args, kwargs, answer)
            if any(t.device == self._host and t.dim() for t in _tensors((args, kwargs, answer))):
                work = replace(work, kernel=ON_HOST, flops=0)
            self.operators.append(
                Operator(_name(function), replace(work, reach=self._reach(work, args, kwargs, answer)))
            )
        return answer

    def _reach(self, work: Work, args: tuple, kwargs: dict, answer) -> int:
        """Bytes moved since the inputs were touched, their mean by size; what was last touched in another step is far away."""
        inputs = _tensors((args, kwargs))
        known = ((t.nbytes, min(_FAR, self._moved - self._touched.get(_storage(t), -_FAR))) for t in inputs)
        sizes = [(size, far) for size, far in known if size]
        self._moved += work.bytes
        self._touched.update((_storage(t), self._moved) for t in (*inputs, *_tensors(answer)))
        return sum(size * far for size, far in sizes) // max(1, sum(size for size, _ in sizes))


_FAR = 256 * MiB  # beyond any cache


def _name(function) -> str:
    return str(function._overloadpacket)


# What allocates and leaves the memory as it is; what writes its target without reading it; what reads only those rows of
# its first tensor that it is asked for.
_NEVER_TOUCHED = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
_ONLY_WRITTEN = {"fill_", "zero_", "copy_", "bernoulli_", "normal_", "uniform_"}
_SHAPE_ONLY = {"nll_loss_backward", "nll_loss2d_backward", "_adaptive_avg_pool2d_backward"}  # of their second argument
_GATHERING = {"embedding", "index_select", "gather", "index", "nll_loss_forward"}


def work_of(function, args: tuple, kwargs: dict, answer) -> Work:
    """FLOPs, bytes and kind of one call of an operator, from the shapes of what goes in and comes out."""
    inputs, outputs = _tensors((args, kwargs)), _tensors(answer)
    short = _name(function).split(".")[-1]
    fresh, changed = _new(outputs, inputs), _changed(function, args, kwargs)
    moves = bool(fresh or changed) and short not in _NEVER_TOUCHED
    return Work(
        kernel=_kernel(short, args),
        dtype=_dtype(inputs),
        flops=_flops(function, args, kwargs, answer),
        bytes=_bytes(short, inputs[:1] + inputs[2:] if short in _SHAPE_ONLY else inputs, fresh, changed)
        if moves
        else 0,
        elements=_elements(short, args, inputs + outputs) if moves else 0,
        new=_distinct(fresh) if moves else 0,
        pieces=max(1, len(fresh)),
        side=_side(short, args),
        rows=_rows(short, args),
    )


def _elements(short: str, args: tuple, tensors: list[torch.Tensor]) -> int:
    if short.startswith(_FOREACH):
        return sum(t.numel() for t in args[0])
    return max((t.numel() for t in tensors), default=0)


def _tensors(tree) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _new(outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    known = set(map(_storage, inputs))
    return [t for t in outputs if _storage(t) not in known]


def _changed(function, args: tuple, kwargs: dict) -> list[torch.Tensor]:
    """Arguments that the operator's schema says it writes to."""
    schema = function._schema.arguments
    named = [*zip(schema, args, strict=False), *((a, kwargs[a.name]) for a in schema if a.name in kwargs)]
    return _tensors([value for argument, value in named if argument.alias_info and argument.alias_info.is_write])


def _bytes(short: str, inputs: list, fresh: list, changed: list) -> int:
    written = _distinct(fresh) + _distinct(changed)
    if short in _ONLY_WRITTEN:
        unread = {id(t) for t in changed}
        return written + _distinct(t for t in inputs if id(t) not in unread)
    if short in _GATHERING:
        rest = _distinct(inputs[1:])
        return written + rest + min(_distinct(inputs[:1]), written + rest)
    return written + _distinct(inputs)


def _distinct(tensors) -> int:
    """Bytes of `tensors`, the same one given twice counted once, and what is only expanded no larger than it is in memory."""
    sizes = {(_storage(t), t.storage_offset(), t.shape): min(t.nbytes, t.untyped_storage().nbytes()) for t in tensors}
    return sum(sizes.values())


def _dtype(inputs: list[torch.Tensor]) -> str:
    """Of the factors: attention's statistics come last, and are wider."""
    floating = [t.dtype for t in inputs if t.dtype.is_floating_point]
    return str(floating[0] if floating else torch.float32).removeprefix("torch.")


_FOREACH = "_foreach_"
_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
_OTHER_NAMES = {"baddbmm": "bmm", _ATTENTION: "attention", f"{_ATTENTION}_backward": "attention_backward"}


_RECURRENT = {"mkldnn_rnn_layer": 2, "mkldnn_rnn_layer_backward": 4}


def _flops(function, args: tuple, kwargs: dict, answer) -> int:
    """By torch's own counter, which knows every product but the CPU's attention, recurrent layers and grouped products."""
    packet, short = function._overloadpacket, _name(function).split(".")[-1]
    if short in _RECURRENT:
        rows = args[0].numel() // args[0].shape[-1]
        return _RECURRENT[short] * rows * (args[1].numel() + args[2].numel())
    if short == "_grouped_mm":
        first, second = args[:2]
        return 2 * (
            answer.numel() * first.shape[-1] if second.dim() == 2 < first.dim() else first.numel() * second.shape[-1]
        )
    if packet is getattr(_aten, _ATTENTION):
        return flop_counter.sdpa_flop_count(*(t.shape for t in args[:3]))
    if packet is getattr(_aten, f"{_ATTENTION}_backward"):
        return flop_counter.sdpa_backward_flop_count(*(t.shape for t in args[:4]))
    counter = flop_counter.flop_registry.get(packet)
    return int(counter(*args, **kwargs, out_val=answer)) if counter else 0


_FILTERS = {"convolution": 1, "convolution_backward": 2}
_OF_CHANNELS = (*_FILTERS, "native_batch_norm", "native_batch_norm_backward")


def _factors(short: str, args: tuple) -> tuple[torch.Tensor, torch.Tensor] | None:
    first = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}.get(short)
    return None if first is None else (args[first], args[first + 1])


def _kernel(short: str, args: tuple) -> str:
    factors = _factors(short, args)
    if factors and factors[0].dim() == 2:
        return "mm " + "".join("N" if f.stride(-1) == 1 else "T" for f in factors)
    plain = short.removeprefix(_FOREACH).removesuffix("_")
    return _OTHER_NAMES.get(plain, plain) + _layout(short, args)


def _layout(short: str, args: tuple) -> str:
    """What a kernel's name ends in where the order of its arguments in memory sets its pace."""
    if short == _NORM:
        steps = [step for step, size in _normed(args) if size > 1]
        return STRIDED if steps and min(steps) > 1 else ""
    pictures = [t for t in args if isinstance(t, torch.Tensor) and t.dim() == 4]
    if not pictures or args[0] is not pictures[0]:
        return ""
    last = [t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous() for t in pictures]
    first = [t.is_contiguous() for t in pictures if t.shape == pictures[0].shape]
    if any(last) and any(first) and short not in _FILTERS:
        return MIXED
    channels = pictures[_FILTERS[short]].shape[:2] if short in _FILTERS else pictures[0].shape[1:2]
    uneven = any(count % 16 for count in channels) and short in _OF_CHANNELS
    return (CHANNELS_LAST if last[0] else "") + (UNEVEN if uneven else "")


def _rows(short: str, args: tuple) -> int:
    factors = _factors(short, args)
    return factors[0].shape[-2] if factors else Work.rows


_NORM = "linalg_vector_norm"


def _normed(args: tuple) -> list[tuple[int, int]]:
    """Step and size of each dimension that a norm is taken over, where it is not over all."""
    dims = args[2] if len(args) > 2 and args[2] else ()
    return [(args[0].stride(dim), args[0].shape[dim]) for dim in dims]


def _side(short: str, args: tuple) -> float:
    if short in _FILTERS:
        return sqrt(args[_FILTERS[short]].numel())
    if short == _NORM:
        return float(prod(size for _, size in _normed(args)))
    factors = _factors(short, args)
    return sqrt(prod(factors[1].shape[-2:])) if factors else 1.0
