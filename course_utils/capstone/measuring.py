"""A training measured where it runs: bytes at the peak, and operations; guarded against what would go uncounted.

What runs in the same process can only be guarded so far: numbers that leave torch for NumPy, threads and processes, whose work
nobody counts, and a counter that is switched off.
"""

import _thread
import multiprocessing.process
import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from math import inf
from unittest.mock import patch

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from course_utils.capstone.operations import Operations
from course_utils.errors import CourseError
from course_utils.memory.trace.meter import Meter

_STARTS = (
    (threading.Thread, "start"),
    (_thread, "start_new_thread"),
    (os, "fork"),
    (multiprocessing.process.BaseProcess, "start"),
    (subprocess.Popen, "__init__"),
    (os, "system"),
)
_LEAVES = (
    *((torch.Tensor, name) for name in ("numpy", "__array__", "__dlpack__")),
    *((torch, name) for name in ("from_numpy", "frombuffer", "compile")),
)


def measured(
    train: Callable[[], object], model: nn.Module, tensors: Iterable[torch.Tensor], limit: float = inf
) -> tuple[int, int]:
    """(bytes at the peak, operations) of `train()`, the model and `tensors` included; it ends once `limit` operations are passed.

    Raises `CourseError` for what cannot be counted.
    """
    with ExitStack() as stack:
        meter = stack.enter_context(Meter([model], tensors=tensors))
        operations = stack.enter_context(Operations(limit))
        stack.enter_context(_guard(model, operations))
        try:
            train()
        except CourseError:
            if operations.total <= limit:
                raise
    if not operations.total:
        raise CourseError("Nothing was computed; train the model that is given.")
    return meter.usage().peak, operations.total


@contextmanager
def _guard(model: nn.Module, operations: Operations) -> Iterator[None]:
    """A context that refuses the usual ways out of torch and into other threads and processes by name, and whoever switches the
    counter off is found out whenever a module, a gradient or an optimizer follows."""
    python = torch._C.DispatchKey.Python

    def look(*_) -> None:
        off = torch._C._dispatch_tls_is_dispatch_key_excluded(python)
        if off or operations not in _get_current_dispatch_mode_stack():
            raise CourseError("The operations are no longer counted; leave torch's dispatch modes as they are.")

    to_list = torch.Tensor.tolist

    def list_whole_numbers(tensor: torch.Tensor) -> object:  # a loader needs them to shuffle, and nobody to compute
        if tensor.is_floating_point():
            _refuse("tolist leads to work that is not counted")()
        return to_list(tensor)

    with ExitStack() as undo:
        for owner, name in _STARTS:
            undo.enter_context(patch.object(owner, name, _refuse(f"{name} starts work that is not counted")))
        for owner, name in _LEAVES:
            undo.enter_context(patch.object(owner, name, _refuse(f"{name} leads to work that is not counted")))
        undo.enter_context(patch.object(torch.Tensor, "tolist", list_whole_numbers))
        hooks = [register_module_forward_pre_hook(look), register_optimizer_step_pre_hook(look)]
        hooks += [parameter.register_hook(look) for parameter in model.parameters()]
        for hook in hooks:
            undo.callback(hook.remove)
        yield
        look()


def _refuse(problem: str) -> Callable:
    def refuse(*_, **__):
        raise CourseError(f"{problem}; train in this process, with torch's operators alone.")

    return refuse
