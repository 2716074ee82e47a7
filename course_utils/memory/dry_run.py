"""A step without its numbers: fake tensors have shape, dtype and device, and no memory.

The same operators are called in the same order, so the meter's log is that of a real step.
"""

import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils.errors import CourseError
from course_utils.memory.as_cuda import cuda_operators, prefer_foreach
from course_utils.memory.meter import Meter
from course_utils.memory.usage import Usage

_BY_SHAPES = "leave the line out of the step, or decide by shapes"
_INNER = ("dry_run", "as_cuda", "meter")
_IN_DTYPE = "build the model in its dtype, under torch.set_default_dtype(…), instead of converting it"
_NOT_THE_CALLERS = (Path(torch.__file__).parents[1], *(Path(__file__).with_name(f"{name}.py") for name in _INNER))


def dry_run(build: Callable[[], tuple], step: Callable[..., object], like: str = "cpu") -> Usage:
    """Memory of the second `step(*build())`, without computing anything: seconds and megabytes, whatever the model's size.

    `build` returns a tuple with the model and, if there is one, the optimizer; all that it makes is fake. With
    `like="cuda"` the operators, the optimizer's defaults (`foreach`) and the allocator's grain (512 bytes) are CUDA's; no GPU
    is needed. Where a step reads one number (`loss.item()`) it is told 1. Raises `CourseError`, naming the line, where a
    step needs more of its values than that.
    """
    if like not in ("cpu", "cuda"):
        raise CourseError(f"like={like!r} is no device; use 'cpu' or 'cuda'.")
    with fake_tensors(), ExitStack() as entered:
        if like == "cuda":
            entered.enter_context(cuda_operators())
        with refusals_explained():
            built = build()
            model, optimizer = _parts(built)
            if like == "cuda" and optimizer is not None:
                prefer_foreach(optimizer)
            step(*built)
            with _meter(model, optimizer, like) as meter:
                step(*built)
    return meter.usage()


def _meter(model: nn.Module, optimizer: torch.optim.Optimizer | None, like: str) -> Meter:
    return Meter(model, optimizer, round_to=512, look_inside=False) if like == "cuda" else Meter(model, optimizer)


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Tensors made inside are fake, and a single number read from one is 1."""
    with FakeTensorMode(allow_non_fake_inputs=True), ScalarAnswers():
        yield


class ScalarAnswers(TorchDispatchMode):
    """Answers a question for one number, which a fake tensor cannot, with 1 of its dtype."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            return _one(args[0].dtype)
        return func(*args, **(kwargs or {}))


def _one(dtype: torch.dtype) -> bool | int | float:
    if dtype is torch.bool:
        return True
    return 1.0 if dtype.is_floating_point else 1


def _parts(built: tuple) -> tuple[nn.Module, torch.optim.Optimizer | None]:
    things = built if isinstance(built, tuple) else (built,)
    models = [thing for thing in things if isinstance(thing, nn.Module)]
    optimizers = [thing for thing in things if isinstance(getattr(thing, "optimizer", thing), torch.optim.Optimizer)]
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
        way_out = _IN_DTYPE if "_apply()" in str(error) else _BY_SHAPES
        raise CourseError(
            f"A dry run has shapes but no values, and {_place(error)} does not work without ({_first_line(error)}); "
            f"{way_out}."
        ) from error


def _place(error: Exception) -> str:
    """The last line of the caller's own code on the way to `error`."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not any(Path(f.filename).is_relative_to(place) for place in _NOT_THE_CALLERS)]
    frame = (own or frames)[-1]
    return f"line {frame.lineno} of {Path(frame.filename).name} (`{frame.line}`)"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:120]}" if lines else type(error).__name__
