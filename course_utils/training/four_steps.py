"""Who takes the four steps of an iteration: reset, forward, backward, update."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook


class Step(NamedTuple):
    """One step, by its `name`, and the `caller`: the first function outside of PyTorch that led to it."""

    name: str
    caller: str


@contextmanager
def four_steps(model: nn.Module) -> Iterator[list[Step]]:
    """A list that fills with the steps taken within: forward passes of `model`, and every backward, update and reset.

    It watches the calls of PyTorch into which any loop, Accelerate's and Trainer's too, must lead.
    """
    log: list[Step] = []

    def note(name: str) -> None:
        frame = sys._getframe(1)
        while _is_between(frame.f_globals.get("__name__", "")) and frame.f_back:
            frame = frame.f_back
        log.append(Step(name, f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_qualname}"))

    with ExitStack() as undo:
        undo.callback(model.register_forward_pre_hook(lambda *_: note("forward")).remove)
        undo.callback(register_optimizer_step_pre_hook(lambda *_: note("update")).remove)
        watched = [(torch.autograd, "backward", "backward"), (torch.optim.Optimizer, "zero_grad", "reset")]
        for owner, attribute, name in [*watched, (nn.Module, "zero_grad", "reset")]:
            function = getattr(owner, attribute)

            @wraps(function)
            def wrapper(*args, _function: Callable = function, _name: str = name, **kwargs) -> object:
                note(_name)
                return _function(*args, **kwargs)

            undo.enter_context(patch.object(owner, attribute, wrapper))
        yield log


def _is_between(module: str) -> bool:
    return module == __name__ or module.split(".")[0] in ("torch", "contextlib", "functools")
