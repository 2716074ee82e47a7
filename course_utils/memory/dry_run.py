"""A step without its numbers: fake tensors have shape, dtype and device, and no memory.

The same operators are called in the same order, so the meter's log is that of a real step.
"""

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from course_utils.errors import CourseError
from course_utils.memory.as_cuda import cuda_operators, prefer_foreach
from course_utils.memory.meter import Meter
from course_utils.memory.phases import updates
from course_utils.memory.usage import Usage

_WITHOUT_VALUES = (
    "where that works with real tensors, it needs their values, and a dry run has none: "
    "leave the line out of the step, or decide by shapes"
)
_INNER = ("dry_run", "as_cuda", "meter", "seconds")
_TOLD_ONE = (
    "a dry run answers every number that is read with 1, so a question such as torch.isnan(loss) is answered with yes; "
    "leave the question out, or the optimizer out of what build() returns."
)
_WAYS_OUT = {  # by what PyTorch's refusal says
    "(?i)cuda.*(device|enabled|available|driver)|NVIDIA": (
        "there is no GPU that PyTorch could use here, and a dry run needs none: leave the device out of build and step, "
        'and ask dry_run(…, like="cuda") for what a GPU would do'
    ),
    "DeviceMismatch": "let everything lie on one device: leave device=… and .to(device) out of build and step",
}
_NOT_THE_CALLERS = (Path(torch.__file__).parents[1], *(Path(__file__).with_name(f"{name}.py") for name in _INNER))


def dry_run(build: Callable[[], tuple], step: Callable[..., object], like: str = "cpu") -> Usage:
    """Memory of the second `step(*build())`, without taking the step: in seconds and megabytes, whatever the model's size.

    `build` returns a tuple with the model and, if there is one, the optimizer; all that it makes is fake. With
    `like="cuda"` dropout, attention, the optimizer's defaults (`foreach`) and the allocator's grain (512 bytes) are CUDA's;
    no GPU is needed. Where a step reads one number (`loss.item()`) it is told 1. Raises `CourseError`, naming the line,
    where a step needs more of its values than that, where it never updates, where the model was not built inside, and
    where it goes to a GPU that is not there: with `like="cuda"` it needs no device of its own.
    """
    if like not in ("cpu", "cuda"):
        raise CourseError(f"like={like!r} is no device; use 'cpu' or 'cuda'.")
    with fake_tensors(), ExitStack() as entered:
        if like == "cuda":
            entered.enter_context(cuda_operators())
        with refusals_explained():
            built = built_inside(build)
            model, optimizer = _parts(built)
            if like == "cuda" and optimizer is not None:
                prefer_foreach(optimizer)
            with updates() as made:
                step(*built)
                with _meter(model, optimizer, like) as meter:
                    step(*built)
    if optimizer is not None and not made:
        raise CourseError(f"The step never called its optimizer: {_TOLD_ONE}")
    return meter.usage()


def _meter(model: nn.Module, optimizer: torch.optim.Optimizer | None, like: str) -> Meter:
    return Meter(model, optimizer, round_to=512, look_inside=False) if like == "cuda" else Meter(model, optimizer)


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Tensors made inside are fake, and a single number read from one is 1."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, _letting_convert(mode), ScalarAnswers():
        yield


@contextmanager
def _letting_convert(mode: FakeTensorMode) -> Iterator[None]:
    """Let a model be converted where it is (`.to(dtype)`, `.bfloat16()`): PyTorch then swaps its parameters for others.

    It refuses to swap what weak references point to, and some do from the mode's table of the fakes that it has made.
    """
    swap = torch.utils.swap_tensors

    def forgotten_first(one: torch.Tensor, other: torch.Tensor) -> None:
        mode.fake_tensor_converter.meta_converter.tensor_memo.clear()
        swap(one, other)

    with patch.object(torch.utils, "swap_tensors", forgotten_first):
        yield


class ScalarAnswers(TorchDispatchMode):
    """Answers a question for one number, which a fake tensor cannot, with 1 of its dtype.

    Only a `GradScaler`, which asks how many gradients were infinite, is told 0: else it would leave the update out.
    """

    def __init__(self):
        super().__init__()
        self._counts_of_infinite = WeakTensorKeyDictionary()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            return 0.0 if args[0] in self._counts_of_infinite else _one(args[0].dtype)
        if func is torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default:
            self._counts_of_infinite[args[1]] = True
        return func(*args, **(kwargs or {}))


def _one(dtype: torch.dtype) -> bool | int | float:
    if dtype is torch.bool:
        return True
    return 1.0 if dtype.is_floating_point else 1


def built_inside(build: Callable[[], tuple]) -> tuple:
    """What `build` returns, refused where it is no tuple, or holds a model whose tensors are real: a step would spoil them."""
    built = build()
    if not isinstance(built, tuple):
        raise CourseError(
            f"build() returned a {type(built).__name__}; let it return a tuple, the arguments of the step."
        )
    for model in (thing for thing in built if isinstance(thing, nn.Module)):
        if not all(isinstance(p, FakeTensor) for p in model.parameters()):
            raise CourseError("build() returned a model that was there before; build it, and its optimizer, inside.")
    return built


def _parts(built: tuple) -> tuple[nn.Module, torch.optim.Optimizer | None]:
    models = [thing for thing in built if isinstance(thing, nn.Module)]
    optimizers = [thing for thing in built if isinstance(getattr(thing, "optimizer", thing), torch.optim.Optimizer)]
    if len(models) != 1 or len(optimizers) > 1:
        raise CourseError(
            f"build() returned {len(models)} models and {len(optimizers)} optimizers; "
            "return a tuple with one model and at most one optimizer, which the step then takes."
        )
    return models[0], optimizers[0] if optimizers else None


@contextmanager
def refusals_explained() -> Iterator[None]:
    """Turn what fake tensors refuse into a `CourseError` that names the caller's line."""
    try:
        yield
    except CourseError:
        raise
    except Exception as error:  # fake tensors refuse with kinds of their own, and numpy with others
        raise CourseError(
            f"The dry run stopped at {_place(error)} ({_first_line(error)}): {_way_out(error)}."
        ) from error


def _way_out(error: Exception) -> str:
    said = f"{type(error).__name__}: {error}"
    return next((way_out for sign, way_out in _WAYS_OUT.items() if re.search(sign, said)), _WITHOUT_VALUES)


def _place(error: Exception) -> str:
    """The last line of the caller's own code on the way to `error`."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not any(Path(f.filename).is_relative_to(place) for place in _NOT_THE_CALLERS)]
    frame = (own or frames)[-1]
    return f"line {frame.lineno} of {Path(frame.filename).name} (`{frame.line}`)"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:120]}" if lines else type(error).__name__
