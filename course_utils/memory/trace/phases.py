"""The phases of a training step: named by the user or found by hooks, so that a measurement can say in which its peak was."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from unittest.mock import patch

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from course_utils.errors import CourseError
from course_utils.units import format_counted

Build = Callable[[], tuple]
"""A function that returns a step's arguments: models, optimizers, and what else it takes."""
Step = Callable[..., object]
"""A training step, called as `step(*build())`."""
Observer = Callable[[str], AbstractContextManager]
_observers: list[Observer] = []


@contextmanager
def phase(name: str) -> Iterator[None]:
    """A context whose content belongs to the phase `name`; it costs about a microsecond when nothing is measured."""
    if not _observers:
        yield
        return
    with ExitStack() as stack:
        for observer in _observers:
            stack.enter_context(observer(name))
        yield


@contextmanager
def observe_phases(observer: Observer) -> Iterator[None]:
    """A context in which `observer(name)` is entered around every phase."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


@contextmanager
def announce_phases(
    begin: Callable[[str | None], None], models: Iterable[nn.Module], optimizers: Iterable[torch.optim.Optimizer]
) -> Iterator[None]:
    """A context in which `begin(name)` is called at the start of each phase: forward, backward, update, or a `phase`'s name.

    When a named phase ends, `begin` gets the name of the phase around it, or None outside of all. The hooks change no operator
    of the step.
    """
    marks: list[str] = []

    def begin_unless_marked(name: str) -> None:
        if not marks:
            begin(name)

    def announce_backward(function: Callable, *args, **kwargs) -> object:
        begin_unless_marked("backward")
        return function(*args, **kwargs)

    @contextmanager
    def mark(name: str) -> Iterator[None]:
        marks.append(name)
        begin(name)
        try:
            yield
        finally:
            marks.pop()
            begin(marks[-1] if marks else None)

    with ExitStack() as hooks:
        for model in models:
            hooks.callback(model.register_forward_pre_hook(lambda *_: begin_unless_marked("forward")).remove)
        for optimizer in optimizers:
            hooks.callback(optimizer.register_step_pre_hook(lambda *_: begin_unless_marked("update")).remove)
        for name in ("backward", "grad"):
            function = partial(announce_backward, getattr(torch.autograd, name))
            hooks.enter_context(patch.object(torch.autograd, name, function))
        hooks.enter_context(observe_phases(mark))
        yield


def bind_step(step: Step, arguments: tuple) -> Callable[[], object]:
    """The function that calls `step` with `arguments`, or without any if it has no parameters.

    Raises `CourseError` for a step that takes another number of arguments.
    """
    try:
        signature = inspect.signature(step)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return partial(step, *arguments)
    if not signature.parameters:
        return step
    try:
        signature.bind(*arguments)
    except TypeError as error:
        name = f"{getattr(step, '__name__', 'step')}({', '.join(signature.parameters)})"
        raise CourseError(
            f"build() returns {format_counted(len(arguments), 'thing')}, and {name} does not take that many ({error}): "
            "give the step a parameter for each of them, or none."
        ) from None
    return partial(step, *arguments)


@contextmanager
def record_optimizers() -> Iterator[list[torch.optim.Optimizer]]:
    """A context that lists the optimizers whose `step` is called in it, once per call."""
    optimizers: list[torch.optim.Optimizer] = []
    hook = register_optimizer_step_pre_hook(lambda optimizer, *_: optimizers.append(optimizer))
    try:
        yield optimizers
    finally:
        hook.remove()
