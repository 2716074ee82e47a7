"""Who takes the four steps of an iteration: reset, forward, backward, update."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from unittest.mock import patch

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

_BETWEEN = ("torch", "contextlib", "functools")


@dataclass(frozen=True)
class Taken:
    """One step, by its `name`, and the `caller`: the first function outside of PyTorch that led to it."""

    name: str
    caller: str


@contextmanager
def four_steps(model: nn.Module) -> Iterator[list[Taken]]:
    """A list that fills with the steps taken within: forward passes of `model`, and every backward, update and reset.

    It watches the calls of PyTorch into which any loop, Accelerate's and Trainer's too, must lead.
    """
    log: list[Taken] = []

    def note(name: str) -> None:
        log.append(Taken(name, _caller()))

    forward = model.register_forward_pre_hook(lambda *_: note("forward"))
    update = register_optimizer_step_pre_hook(lambda *_: note("update"))
    try:
        with (
            _noted(torch.autograd, "backward", "backward", note),
            _noted(torch.optim.Optimizer, "zero_grad", "reset", note),
            _noted(nn.Module, "zero_grad", "reset", note),
        ):
            yield log
    finally:
        forward.remove()
        update.remove()


def _noted(owner: object, attribute: str, name: str, note: Callable[[str], None]):
    function = getattr(owner, attribute)

    @wraps(function)
    def noted(*args, **kwargs):
        note(name)
        return function(*args, **kwargs)

    return patch.object(owner, attribute, noted)


def _caller() -> str:
    """`'transformers.trainer.Trainer.training_step'`."""
    frame = sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _BETWEEN or _is_here(frame):
        frame = frame.f_back
    return f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_qualname}"


def _is_here(frame) -> bool:
    return frame.f_globals.get("__name__") == __name__
