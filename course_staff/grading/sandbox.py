"""Where learners' code runs, seen from outside: processes that cannot reach the network, the answers or the results.

| kind | where | a question is |
|---|---|---|
| `bwrap` | Linux with `bwrap` | a fork, in a sandbox that its submission has for itself |
| `fork` | Linux without `bwrap`: not safe from strangers | a fork |
| `fresh` | elsewhere: not safe from strangers | a new process |
"""

import contextlib
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import course_utils
from course_staff.grading import encoding, limits
from course_staff.grading.bwrap import bwrap_command
from course_utils.errors import HOW_TO_INSTALL, CourseError
from course_utils.settings import environment_for_child

SANDBOX_KINDS = ("bwrap", "fork", "fresh")
"""The kinds of the table above, the safest first; a machine that has one has those after it too."""

SAFE = SANDBOX_KINDS[:1]
"""The kinds that strangers' code can be run in."""

UNSAFE = "These grades were made without a sandbox and assume honest students."
_NO_SANDBOX = (
    "There is no sandbox on this machine: {}. A submission could read the solutions, change results or delete files; "
    "add --trust if you know the authors."
)
_NO_BWRAP = "bubblewrap is not installed; install it (on Debian and Ubuntu the package `bubblewrap`)"
_NO_LINUX = "bubblewrap needs Linux; docs/instructors.md has a container for other systems"
_PACKAGES_SEEN = (
    "It sees the packages that lie in this Python's own environment, and none that PYTHONPATH or a `.pth` file leads to; "
    f"so {HOW_TO_INSTALL}."
)
_SEE_DOCTOR = "`course doctor` reports what is missing."
END_SECONDS = 10.0
"""How long a process gets to end."""
_START_SECONDS = 120.0
_CHILD = "course_staff.grading.child"
# Characters of the last line that a process wrote when it could not start.
_LONGEST_LAST_WORDS = 300


class SandboxError(Exception):
    """A sandbox ended too early, or did not end when it should."""


class NotStartedError(SandboxError):
    """A sandbox failed to start, which is not the fault of the code that was to run there."""


def best_kind(trust: bool) -> str:
    """The safest kind that this machine can have; raises `CourseError` if that is not safe and `trust` is False."""
    kind, reason = _find_kind() if sys.platform == "linux" else ("fresh", _NO_LINUX)
    if kind not in SAFE and not trust:
        raise CourseError(_NO_SANDBOX.format(reason))
    return kind


def _find_kind() -> tuple[str, str]:
    """The best kind that works here, and the reason if it is not safe: a machine may have `bwrap` and not allow it."""
    if not shutil.which("bwrap"):
        return "fork", _NO_BWRAP
    command = bwrap_command([sys.executable, "-c", ""])
    with tempfile.TemporaryFile() as errors:
        try:
            environment = _environment(is_safe=True)
            process = subprocess.run(command, stderr=errors, timeout=_START_SECONDS, env=environment, check=False)
        except (subprocess.TimeoutExpired, OSError) as error:
            return "fork", f"bubblewrap fails ({error})"
        return ("fork", f"bubblewrap fails{_last_words(errors)}") if process.returncode else ("bwrap", "")


@dataclass
class Conversation:
    """A conversation with the process of one question. `timed_out` is True when it was ended because its time was up.

    `starved` says that by then it had computed for less than half of the time: other processes were busy, or it waited.
    `pid` is the process's own, or an ancestor's. child.py has the other side, and the protocol.
    """

    read: int
    write: int
    end: Callable[[], None]
    pid: int
    last_words: Callable[[], str] = lambda: ""
    timed_out: bool = False
    starved: bool = False
    start: float = field(default_factory=limits.uptime)

    def measure_starvation(self) -> None:
        """Set `starved`, on Linux; elsewhere the system does not tell."""
        if sys.platform == "linux":
            self.starved = limits.seconds_computed(self.pid, self.start) < (limits.uptime() - self.start) / 2

    @contextmanager
    def time_limit(self, seconds: float) -> Iterator[None]:
        """End the process when `seconds` have passed; the block's `ask` then raises `TornError`."""
        timer = threading.Timer(seconds, self._time_out)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def ask(self, *messages: bytes) -> bytes:
        """Send messages and wait for one; raises `TornError`."""
        for message in messages:
            encoding.send(self.write, message)
        return encoding.receive(self.read)

    def _time_out(self) -> None:
        self.timed_out = True
        try:
            self.measure_starvation()
        finally:
            self.end()


class Lane:
    """A place where one question runs after the other; only `stop` may be called meanwhile, from another thread.

    `kind` is one of the module's table. In a safe kind no existing folder in `private` is visible.
    `excess` says which limit ended the last question's process, if any did.
    """

    def __init__(self, kind: str, private: Iterable[Path] = ()):
        self.kind = kind
        self.private = tuple(private)
        self.excess = ""
        self.is_stopped = False
        self._server: _Server | None = None
        self._process: subprocess.Popen | None = None

    @contextmanager
    def open_process(self) -> Iterator[Conversation]:
        """A process for one question; nothing is left of it when the block ends. Raises `SandboxError`."""
        self.excess = ""
        if self.kind != "fresh" and not self.is_stopped:
            self._server = self._server or _Server(self.kind, self.private)
        if self.is_stopped:
            raise SandboxError("The grading was stopped.")
        if self.kind == "fresh":
            with _start_process() as (conversation, self._process):
                yield conversation
            return
        try:
            with self._server.fork_process() as conversation:
                yield conversation
            self.excess = limits.REASONS.get(self._server.last_code, "")
        except SandboxError:
            self.close()
            raise

    def clear(self) -> None:
        """After a submission: in a safe kind each one gets a new sandbox."""
        if self.kind in SAFE:
            self.close()

    def try_out(self) -> None:
        """Start a process as a submission gets it; raises `CourseError` with the cause if that fails."""
        try:
            with self.open_process() as conversation, conversation.time_limit(_START_SECONDS):
                try:
                    conversation.ask(pickle.dumps({"sources": []}))
                except encoding.TornError:
                    raise NotStartedError(
                        f"A process of the grader could not be started{conversation.last_words()}."
                    ) from None
        except SandboxError as error:
            imports = "ModuleNotFoundError" in str(error) or "ImportError" in str(error)
            raise CourseError(f"{error} {_PACKAGES_SEEN if imports else _SEE_DOCTOR}") from None

    def stop(self) -> None:
        """End what runs, and start nothing more; may be called from any thread."""
        self.is_stopped = True
        for process in (self._process, self._server and self._server.process):
            if process:
                _kill(process)

    def close(self) -> None:
        """End the sandbox and everything in it."""
        if self._server:
            self._server.close()
            self._server = None


class _Server:
    """The process that has imported everything and forks for each question."""

    def __init__(self, kind: str, private: Iterable[Path] = ()):
        self.control, server_end = socket.socketpair()
        program = [sys.executable, "-m", _CHILD, "serve", str(server_end.fileno()), kind]
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self.process = subprocess.Popen(
            bwrap_command(program, private) if kind in SAFE else program,
            env=_environment(kind in SAFE),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            pass_fds=[server_end.fileno()],
            start_new_session=True,
        )
        server_end.close()
        self.last_code = 0
        self._receive_code(_START_SECONDS, "could not be started", NotStartedError)

    @contextmanager
    def fork_process(self) -> Iterator[Conversation]:
        """A fork of the server for one question; raises `SandboxError` if it does not start, or does not end with the block."""
        (job_end, write), (read, outcome_end), (watched_end, lifeline) = os.pipe(), os.pipe(), os.pipe()
        own_ends = _Pipes([write, read, lifeline])
        has_ended = threading.Event()

        def end() -> None:
            own_ends.close(lifeline)
            if not has_ended.wait(END_SECONDS):  # a question may have stopped the process that watches it
                _kill(self.process)

        try:
            socket.send_fds(self.control, [b"q"], [job_end, outcome_end, watched_end])
        except OSError as error:
            own_ends.close()
            raise SandboxError(str(error)) from None
        finally:
            for pipe in (job_end, outcome_end, watched_end):
                os.close(pipe)
        try:
            yield Conversation(read, write, end, self.process.pid)
        finally:
            has_ended.set()
            own_ends.close()
            self.last_code = self._receive_code(END_SECONDS, "did not end")

    def _receive_code(self, seconds: float, problem: str, kind: type[SandboxError] = SandboxError) -> int:
        self.control.settimeout(seconds)
        try:
            answer = self.control.recv(1)
        except OSError:
            answer = b""
        if not answer:
            last_words = _last_words(self._stderr)
            self.close()
            raise kind(f"A process of the grader {problem}{last_words}.")
        return answer[0]

    def close(self) -> None:
        self.control.close()
        _kill(self.process)
        self._stderr.close()


class _Pipes:
    """File descriptors that two threads may close, each once."""

    def __init__(self, pipes: list[int]):
        self._open = set(pipes)
        self._lock = threading.Lock()

    def close(self, *pipes: int) -> None:
        """Close those of `pipes` (by default all) that are still open."""
        with self._lock:
            for pipe in set(pipes or self._open) & self._open:
                self._open.discard(pipe)
                os.close(pipe)


@contextmanager
def _start_process() -> Iterator[tuple[Conversation, subprocess.Popen]]:
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", _CHILD, "once"],
            env=_environment(is_safe=False),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        pipes = process.stdout.fileno(), process.stdin.fileno()
        try:
            yield Conversation(*pipes, lambda: _kill(process), process.pid, lambda: _last_words(errors)), process
        finally:
            _kill(process)
            process.stdout.close()
            with contextlib.suppress(OSError):
                process.stdin.close()


def _last_words(errors: IO[bytes]) -> str:
    """` (the last line)` of what a process wrote before it was silenced, or nothing."""
    errors.seek(0)
    lines = errors.read().decode("utf-8", "replace").strip().splitlines()
    return f" ({lines[-1].strip()[:_LONGEST_LAST_WORDS]})" if lines else ""


def _kill(process: subprocess.Popen) -> None:
    """End a process, its descendants and its group, and wait for it."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)


def _environment(is_safe: bool) -> dict[str, str]:
    """Few environment variables: one thread, one order of sets, this checkout's course; no home in a safe kind."""
    homes = ("HOME", "USERPROFILE", "TEMP", "TMP", "TMPDIR", "COURSE_HOME")
    names = ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH", *(() if is_safe else homes))
    variables = {name: value for name, value in environment_for_child().items() if name in names}
    return {
        **variables,
        **(dict.fromkeys(("HOME", "TMPDIR", "COURSE_HOME"), limits.BOX) if is_safe else {}),
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
        "PYTHONPATH": str(Path(course_utils.__file__).resolve().parents[1]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONUTF8": "1",
        "LANG": "C.UTF-8",
        "MPLBACKEND": "Agg",
        "USER": "learner",
        "COURSE_SCALE": "smoke",
        "COURSE_DEVICE": "cpu",
        "COURSE_SEED": "0",
        "HF_HUB_OFFLINE": "1",
    }


def _main() -> None:
    """What `course doctor` runs: whether a submission could be graded here, and if not the reason on stderr."""
    try:
        with contextlib.closing(Lane(best_kind(trust=False))) as lane:
            lane.try_out()
    except CourseError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _main()
