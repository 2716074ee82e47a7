"""Names for the stretches of a training step, so that a measurement can say where its peak was."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

Observer = Callable[[str], AbstractContextManager]
_observers: list[Observer] = []


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Everything inside belongs to the phase `name`; costs about a microsecond when nothing is being measured."""
    if not _observers:
        yield
        return
    with ExitStack() as entered:
        for observer in _observers:
            entered.enter_context(observer(name))
        yield


@contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
    """Have `observer(name)` entered around every phase within."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)
