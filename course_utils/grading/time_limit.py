"""A time limit for a learner's code: an exception is raised in it, once more each second until it ends."""

import ctypes
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_RAISE_INTERVAL = 1.0  # seconds


class OutOfTime(BaseException):
    """The time is up. Not an `Exception`, so that `except Exception` in an answer lets it pass."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises `OutOfTime` in the block when `seconds` have passed, and every second after that until it ends.

    A call that never returns to Python, such as one huge matrix product, is seen only when it returns.
    """
    can_alarm = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    with _alarm(seconds) if can_alarm else _timer(seconds):
        yield


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def ring(*_):
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, _RAISE_INTERVAL)
    try:
        yield
    finally:
        is_armed = True
        while is_armed:  # it may ring in this very moment
            with suppress(OutOfTime):
                signal.setitimer(signal.ITIMER_REAL, 0)
                is_armed = False
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _timer(seconds: float) -> Iterator[None]:
    """A time limit for Windows and for other threads: a second thread raises the exception in this one."""
    has_ended = threading.Event()
    caller = threading.get_ident()

    def watch():
        wait = seconds
        while not has_ended.wait(wait):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(caller), ctypes.py_object(OutOfTime))
            wait = _RAISE_INTERVAL

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        has_ended.set()
        watcher.join()
