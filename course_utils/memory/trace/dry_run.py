"""A training step on fake tensors, which have a shape, a dtype and a device, but no memory and no numbers.

The same operators are called in the same order as in a real step, so the meter's log is the same.
"""

import gc
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import islice
from textwrap import shorten
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

from course_utils.errors import CourseError
from course_utils.hardware import MACHINES, Machine, Operator, OperatorWatch, Prediction
from course_utils.hardware.operators import list_tensors
from course_utils.memory.trace.as_cuda import GPU, HOST, as_on_cuda, prefer_foreach
from course_utils.memory.trace.fake import device_of, fake_tensors, is_fake, let_masks_have_values
from course_utils.memory.trace.location import describe_location, is_of_a_library
from course_utils.memory.trace.log import Usage
from course_utils.memory.trace.meter import Meter
from course_utils.memory.trace.phases import Build, Step, bind_step, record_optimizers
from course_utils.memory.trace.state import distinct_optimizers, parts_of, unwrap

NO_COMPILING_INSIDE = "A dry run follows PyTorch's own operators, not torch.compile's; leave it out of build and step."
_ADVICE = {  # by a pattern in the exception's class or message
    "DataDependent|DynamicOutput|Cannot access data pointer|numpy": (
        "where that works with real tensors, it needs their values, and a dry run has none: "
        "leave the line out of the step, or decide by shapes"
    ),
    "(?i)cuda.*(device|enabled|available|driver)|NVIDIA": (
        "there is no GPU that PyTorch could use here, and a dry run needs none: leave the device out of build and step, "
        'and ask dry_run(…, device="cuda") for what a GPU would do'
    ),
    "multi-target|[Tt]arget size|Expected input batch_size": (
        "where the model wants other examples, give batch=lambda b, s: …, what it is called with (for course plan a function "
        "batch(b, s) beside it)"
    ),
    "DeviceMismatch": "let everything lie on one device: leave device=… and .to(device) out of build and step",
}


def dry_run(
    build: Build,
    step: Step,
    device: str = "cpu",
    *,
    ranks: int = 1,
    rank: int = 0,
    timeout: float = 600.0,
    prime: Step | None = None,
    watch: Callable[[], AbstractContextManager] = nullcontext,
) -> Usage:
    """Memory of the second `step(*build())`, without taking the step: in seconds and megabytes, whatever the model's size.

    - `build` returns a tuple with the model or models, the optimizers, and what else the step takes; all that it makes is fake.
    - `device="cuda"`: dropout, attention, autocast, the optimizer's defaults (`foreach`) and the allocator's grain (512 bytes)
      are CUDA's, `cuda` may be named as a device, and the host is a device of its own (`usage.host`). No GPU is needed.
    - `ranks`: the step is that of one `rank` among them, in a process group whose other ranks are pretended.
    - `timeout` is in seconds.
    - `prime` is called in place of the first step, to create the optimizer's state.
    - `watch()` is a context around the second step.

    A step that reads a number from a floating tensor (`loss.item()`) gets 1. Raises `CourseError`, which names the line, if a
    step needs values that a dry run does not have, never updates, or is not done in time, and if the model was not built inside.
    """
    if device not in ("cpu", "cuda"):
        raise CourseError(f"device={device!r} is no device; use 'cpu' or 'cuda'.")
    on_gpu = device == "cuda"
    with _pretend_tensors(device, ranks, rank, timeout):
        arguments = build()
        models, optimizers = parts_of(arguments)
        _check_parts(models, optimizers, on_gpu=on_gpu and prime is None)
        if on_gpu:
            for optimizer in optimizers:
                prefer_foreach(optimizer)
        tensors = list_tensors(arguments)
        with let_masks_have_values():  # entered again, since build may have been the first to import Transformers
            with record_optimizers() as used_in_first:
                bind_step(prime or step, arguments)()
            metered = distinct_optimizers([*optimizers, *used_in_first])
            device, grain = (GPU, 512) if on_gpu else (None, None)
            meter = Meter(models, metered, tensors=tensors, device=device, round_to=grain)
            with meter, record_optimizers() as used_in_second, watch():
                bind_step(step, arguments)()
    if optimizers and not used_in_first and not used_in_second:
        raise CourseError(
            "The step never called its optimizer: a dry run answers every number that is read with 1, so a question such as "
            "loss > 0.5 is answered with yes; leave the question out, or the optimizer out of what build() returns."
        )
    usage = meter.usage()
    if on_gpu and usage.events and usage.peak == 0:
        advice = "leave device='cpu' out of build, or ask dry_run(…, device='cpu')."
        raise CourseError(f"Everything lay on the host: {advice}")
    return usage


def count_operators(build: Build, step: Step, device: str = "cpu") -> tuple[Operator, ...]:
    """Every operator call of the second `step(*build())`, in order, as `dry_run` runs it."""
    watch = OperatorWatch(HOST if device == "cuda" else None)
    dry_run(build, step, device, watch=lambda: watch)
    return tuple(watch.operators)


def predict_seconds(build: Build, step: Step, machine: Machine, *, device: str = "") -> Prediction:
    """The steady-state step `step(*build())` on `machine`: the sum over its operators of `machine.seconds`.

    Nothing is computed and no memory is taken. `device` is that of `dry_run`; by default `cuda` for a card in `hardware.MACHINES`
    and for a machine on which `calibrate()` found a GPU, else `cpu`. For a machine known by its data sheet only, the sum is a
    lower bound for these operators: at full rates, and without the cost of a call. Raises `CourseError` if the machine has no
    rate for a dtype.
    """
    if not isinstance(machine, Machine):
        raise CourseError(f"{machine!r} is no machine; give hardware.machine('H100'), or hardware.calibrate().")
    is_gpu = machine.asynchronous or machine.name in MACHINES
    return Prediction(machine, count_operators(build, step, device or ("cuda" if is_gpu else "cpu")))


@contextmanager
def _pretend_tensors(device: str, ranks: int, rank: int, timeout: float) -> Iterator[None]:
    """A context in which tensors are fake and on `device`, other ranks are pretended, and PyTorch's refusals are explained."""
    with ExitStack() as stack:
        stack.enter_context(_collect_rarely())
        stack.enter_context(_pretend_ranks(ranks, device, rank))
        stack.enter_context(fake_tensors(timeout))
        stack.enter_context(patch("torch.compile", partial(_compile_or_refuse, torch.compile)))
        if device == "cuda":
            stack.enter_context(as_on_cuda())
        stack.enter_context(_explain_refusals())
        yield


@contextmanager
def _pretend_ranks(ranks: int, device: str, rank: int) -> Iterator[None]:
    """A context in which this process is one `rank` of `ranks`; collectives return at once, with tensors of the right shape.

    Raises `CourseError` inside a real group.
    """
    if ranks == 1:
        yield
        return
    if dist.is_initialized():
        raise CourseError("This process is a rank already; pretend others in a process that is none.")
    from torch.distributed.fsdp._fully_shard import _fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    # FSDP2 takes its device from the mesh, in which the pretended GPU, a second CPU, has no name.
    mesh_device = patch.object(_fully_shard, "_get_device_from_mesh", lambda mesh: GPU if device == "cuda" else HOST)
    gathering = patch.object(dist, "all_gather_object", _gather_same)
    try:
        with mesh_device, gathering:
            yield
    finally:
        dist.destroy_process_group()


def _gather_same(gathered: list, tensor: object, group: dist.ProcessGroup | None = None) -> None:
    gathered[:] = [tensor] * len(gathered)


@contextmanager
def _collect_rarely() -> Iterator[None]:
    """A context in which garbage is collected rarely: fake tensors make so many objects that cycles would be freed too early."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _compile_or_refuse(compile_really: Callable, *args, **kwargs) -> object:
    """Refuse `torch.compile` in the caller's own code. Libraries may call it, for functions that may never run."""
    if not is_of_a_library(sys._getframe(1)):
        raise CourseError(NO_COMPILING_INSIDE)
    return compile_really(*args, **kwargs)


def _check_parts(models: list[nn.Module], optimizers: list[torch.optim.Optimizer], on_gpu: bool) -> None:
    """Raise `CourseError` for a model with real tensors, which a step would change, and for what a dry run cannot follow."""
    for model in models:
        if isinstance(model, torch._dynamo.OptimizedModule) or model._compiled_call_impl is not None:
            raise CourseError(NO_COMPILING_INSIDE)
        if not all(map(is_fake, model.parameters())):
            raise CourseError(
                "build() returned a model with real weights; make it and its optimizer inside build, with fresh weights "
                "(of Transformers: AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(…)), not from_pretrained)."
            )
    if any(isinstance(unwrap(optimizer), torch.optim.LBFGS) for optimizer in optimizers):
        raise CourseError("How often LBFGS calls its closure depends on the loss, whose value a dry run has not.")
    parameters = [parameter for model in models for parameter in model.parameters()]
    # Shards of FSDP2 (`_local_tensor`) may be on the host, so they are no reason to refuse.
    if on_gpu and parameters and all(device_of(p) == HOST and not hasattr(p, "_local_tensor") for p in parameters):
        raise CourseError(
            "The model lies on the host, since build says device 'cpu' (torch.cuda.is_available() is False here): "
            "write device='cuda' in build, or leave the device out, or ask dry_run(…, device='cpu')."
        )


@contextmanager
def _explain_refusals() -> Iterator[None]:
    """A context in which any other exception becomes a `CourseError` that names the caller's line."""
    try:
        yield
    except CourseError:
        raise
    except Exception as error:  # fake tensors raise many classes, and NumPy others
        kind = type(error).__name__
        message = str(error).strip()
        inner = list(traceback.walk_tb(error.__traceback__))
        location = describe_location([*reversed(inner), *traceback.walk_stack(None)])
        reason = f"{kind}: {shorten(message.splitlines()[0], 300, placeholder=' …')}" if message else kind
        matches = (text for pattern, text in _ADVICE.items() if re.search(pattern, f"{kind}: {message}"))
        advice = "".join(f": {text}" for text in islice(matches, 1))
        raise CourseError(f"The dry run stopped {location} ({reason}){advice}.") from error
