"""Process memory, as the operating system sees it: a witness that knows nothing of tensors."""

import json
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import cloudpickle
import torch

from course_utils.errors import CourseError

_CHILD = "course_utils.memory.rss_child"


@dataclass(frozen=True)
class Rss:
    """Bytes of a process in main memory: `resident` just before a step, `peak` the most within it.

    `witness` says in words who counted and how; `weak` is True where the figures are only rough.
    """

    resident: int
    peak: int
    witness: str
    weak: bool

    @property
    def rise(self) -> int:
        """How far the step went above what was resident before it."""
        return self.peak - self.resident


def peak_rss(build: Callable[[], tuple], step: Callable[..., object], *, timeout: float = 300) -> Rss:
    """Main memory that one `step(*build())` needs, seen by the operating system, in a process of its own.

    The step runs twice, as in `measure`: once so that optimizer state, thread pools and the libraries' caches are
    born, once measured. Both functions may be written in a notebook; what they refer to is copied to the other process,
    which has as many torch threads as this one, so large things are better made within `build`. Memory of a GPU is not
    counted.

    On Linux the process hands freed memory back at once (`mallopt(3)`: M_MMAP_THRESHOLD, M_TRIM_THRESHOLD), resets its
    high-water mark before the measured step (`proc_pid_clear_refs(5)`: 5) and reads VmRSS and VmHWM. That counts whole
    pages that were touched, and steps are slower. Elsewhere, and where the allocator keeps freed memory all the same, the
    result is `weak` and says why.

    Raises `CourseError` when the functions cannot be copied, when one of them fails or the process is killed, and when it
    takes more than `timeout` seconds.
    """
    message = _message(build, step)
    try:
        done = subprocess.run(_command(), input=message, capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise CourseError(
            f"The step was not measured within {timeout:g} seconds; give peak_rss a longer timeout, or a smaller step."
        ) from None
    return _answer(done)


def _command() -> list[str]:
    # Hosted notebooks preload an allocator that keeps freed memory; the measured process does without it.
    without_preloads = ["env", "-u", "LD_PRELOAD"] if sys.platform == "linux" else []
    return [*without_preloads, sys.executable, "-m", _CHILD]


def _message(build: Callable, step: Callable) -> bytes:
    """Two pickles: what the other process must know before it can read the second, and the two functions."""
    try:
        functions = cloudpickle.dumps((build, step))
    except Exception as error:  # every kind of object refuses to be copied in its own way
        raise CourseError(
            f"build and step cannot be copied to another process ({type(error).__name__}: {error}); "
            "create what cannot be copied (open files, locks, generators, connections) inside build."
        ) from error
    return pickle.dumps({"path": sys.path, "threads": torch.get_num_threads()}) + functions


def _answer(done: subprocess.CompletedProcess) -> Rss:
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise CourseError(_what_ended(done)) from None
    if "error" in answer:
        raise CourseError(answer["error"])
    return Rss(**answer)


def _what_ended(done: subprocess.CompletedProcess) -> str:
    if done.returncode == -getattr(signal, "SIGKILL", 0):
        return (
            "The system killed the process in which the step ran, most likely because memory ran out; "
            "use a smaller model or batch, or close other programs."
        )
    said = (done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
    return f"The process in which the step ran ended with code {done.returncode} ({said}); run step(*build()) by itself first."
