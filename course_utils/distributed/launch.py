"""Starting ranks from a notebook or a script: `launch(work, 2, …)` gives what `work(…)` returns on each rank.

Ranks are forked from a server that has imported torch and has never computed, because a fork of a process that has computed
with torch hangs; where there are no fork servers (Windows), and by default on macOS, each rank starts afresh. What a notebook or
a script defines crosses by value, so ranks do not run the script again: unlike for the rest of Python's `multiprocessing`, it
needs no `if __name__ == "__main__":`.
"""

import multiprocessing
import os
import pickle
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from math import inf
from multiprocessing import spawn
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest.mock import patch

import torch

from course_utils.distributed import worker
from course_utils.distributed.waiting import sign_of_life
from course_utils.errors import CourseError

SECONDS = 120.0
"""The time that ranks may take by default."""
METHOD = "forkserver" if sys.platform == "linux" else "spawn"
"""How `multiprocessing` starts ranks."""
# Modules that cost a rank seconds each.
_SLOW_IMPORTS = ("course_utils.models", "course_utils.training", "course_utils.script", "transformers.models.")
# Gloo's words.
_DISCONNECTION = "Connection closed by peer"
# The time in which ranks may report what they saw, or where they are.
_GRACE_SECONDS = 0.5

_LIKELY_CAUSES = {
    "SIGKILL": ", as the system does where memory runs out",
    "SIGABRT": ", as gloo does where ranks bring different shapes or types to one collective or message",
    "SIGSEGV": ", as happens where compiled code reads outside its memory, or a weight of FSDP is read while it is not gathered",
}


class RankError(CourseError):
    """A rank failed. `rank`; `kind` is the exception's name, empty where the process died; `text` its message.

    `place` is (file, line) of the deepest frame in code that came from the notebook or script, or None; `trace` the whole
    traceback as text.
    """

    def __init__(self, rank: int, world_size: int, report: dict):
        self.rank = rank
        self.kind, self.text, self.place, self.trace = (report[name] for name in ("kind", "text", "place", "trace"))
        text = self.text.rstrip(".")
        failure = f"stopped with {self.kind}: {text}" if self.kind else text
        place = f", at line {self.place[1]} of {self.place[0]}" if self.place else ""
        other_ranks = "; the other ranks were ended" if world_size > 1 else ""
        super().__init__(f"Rank {rank} of {world_size} {failure}{place}{other_ranks}.")


def launch(work: Callable, world_size: int, *arguments, seconds: float = SECONDS) -> list:
    """What `work(*arguments)` returns on each of `world_size` ranks, in their order.

    On every rank a gloo process group stands already, and torch has its share of this process's threads; `torch.distributed`
    tells the rank. Arguments and results are copied (pickled). Ranks have the environment variables that this process had when it
    first launched any. In a notebook a line says that they are at work.

    Raises `RankError` with the first failure of a rank, and `CourseError` if they are not done within `seconds`, saying where
    each of them was; no rank is left behind in any event.

    >>> import torch.distributed as dist
    >>> launch(lambda base: base + dist.get_rank(), 2, 10)
    [10, 11]
    """
    _check_arguments(world_size, seconds)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, sign_of_life(world_size):
        job = worker.write_job(Path(folder), work, arguments, seconds)
        reader, writer = multiprocessing.Pipe(duplex=False)
        with reader, writer:
            ranks: list[BaseProcess] = []
            try:
                for rank in range(world_size):
                    ranks.append(start(worker.main, job, rank, world_size, reader))
                _await(ranks, Path(folder), seconds, writer)
            finally:
                _kill_all(ranks)
        return [_read_result(Path(folder), rank, world_size) for rank in range(world_size)]


def fork_server() -> None:
    """Fork the server of ranks from this process, which has never computed, so that what is imported need not be imported again.

    Without it the first launch starts a server that imports for itself. Nothing happens where ranks are started by another
    method, nor from Python 3.14 on, where a server has a key.
    """
    if METHOD != "forkserver" or sys.version_info >= (3, 14):
        return
    from multiprocessing import connection, forkserver, resource_tracker

    server = forkserver._forkserver
    resource_tracker.ensure_running()
    server._forkserver_address = connection.arbitrary_address("AF_UNIX")
    alive, server._forkserver_alive_fd = os.pipe()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(server._forkserver_address)
        listener.listen()
        server._forkserver_pid = os.fork()
        if not server._forkserver_pid:
            os.close(server._forkserver_alive_fd)
            try:
                forkserver.main(listener.detach(), alive, ["course_utils.distributed.preload"])
            finally:
                os._exit(0)
    os.close(alive)


@cache
def wait_for_server() -> None:
    """Return when ranks can start at once: the server is there and has imported, which takes 10 s and more on a slow machine.

    For a caller whose clock should not count that.
    """
    if METHOD == "forkserver":
        start(int).join()  # starting comes back with a process's number, which the server gives when it has imported


def start(work: Callable, *arguments) -> BaseProcess:
    """A new process that runs `work(*arguments)`, started as ranks are; the caller must watch it and end it."""
    context = multiprocessing.get_context(METHOD)
    if METHOD == "forkserver":
        context.set_forkserver_preload(_list_preloads())
    process = context.Process(target=work, args=arguments, daemon=True)
    with _without_the_script():
        process.start()
    return process


def _check_arguments(world_size: int, seconds: float) -> None:
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise CourseError(f"{world_size!r} ranks cannot be started; give a world size from 1 on.")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < inf:
        raise CourseError(f"Ranks cannot be given {seconds!r} seconds; give a number above 0.")
    if multiprocessing.current_process().daemon:
        raise CourseError("A rank cannot start ranks of its own; call `launch` outside of the work.")


@contextmanager
def _without_the_script() -> Iterator[None]:
    """Processes started within do not import what `__main__` is here: it would run again, and launch ranks of its own."""
    prepare = spawn.get_preparation_data

    def prepare_without_main(name: str) -> dict:
        return {key: value for key, value in prepare(name).items() if not key.startswith("init_main_from")}

    with patch.object(spawn, "get_preparation_data", prepare_without_main):
        yield


def _list_preloads() -> list[str]:
    """The modules that the server imports: those of every rank, and those that this process works with."""
    # Where there is a GPU, models' modules may ask its driver, and that does not survive a fork.
    slow = () if torch.cuda.is_available() else _SLOW_IMPORTS
    return ["course_utils.distributed.preload", *(name for name in list(sys.modules) if name.startswith(slow))]


def _await(ranks: Sequence[BaseProcess], folder: Path, seconds: float, writer: Connection) -> None:
    """Return when every rank has ended well; raises as `launch` does."""
    deadline = time.monotonic() + seconds
    running = list(ranks)
    while running:
        ended = wait([rank.sentinel for rank in running], max(0.0, deadline - time.monotonic()))
        if not ended:
            writer.send_bytes(b"where?")
            raise CourseError(
                f"The {len(ranks)} ranks were not done after {seconds:g} s and were ended: "
                f"{_ask_whereabouts(ranks, folder)}; look for a collective that one rank calls and another does not, or give "
                "`launch` more `seconds`."
            )
        for rank in running:
            if rank.sentinel in ended:
                rank.join()  # a spawned rank closes its sentinel a moment before its exit code can be had
        running = [rank for rank in running if rank.sentinel not in ended]
        if any(rank.exitcode for rank in ranks if rank not in running):
            raise _explain_failure(ranks, running, folder)


def _ask_whereabouts(ranks: Sequence[BaseProcess], folder: Path) -> str:
    """Where each rank says that it is; one that holds on to the interpreter, or is stopped, says nothing."""
    deadline = time.monotonic() + _GRACE_SECONDS
    places = {}
    while len(places) < len(ranks) and time.monotonic() < deadline:
        for number, rank in enumerate(ranks):
            with suppress(OSError):
                places[number] = worker.read_whereabouts(folder, number) if rank.is_alive() else "had ended"
        time.sleep(_GRACE_SECONDS / 50)
    sentences = [f"rank {number} {places.get(number, 'gives no answer')}" for number in range(len(ranks))]
    return ", ".join(sentences)


def _explain_failure(ranks: Sequence[BaseProcess], running: list[BaseProcess], folder: Path) -> RankError:
    """The failure that came first: the others then fail for want of it."""
    wait([rank.sentinel for rank in running], _GRACE_SECONDS)
    reports = [_read_report(rank, folder, number) for number, rank in enumerate(ranks) if rank.exitcode]
    number, report = min(reports, key=lambda numbered: numbered[1]["time"])
    ended = [str(other) for other, rank in enumerate(ranks) if rank.exitcode == 0]
    if "gloo" in report["text"] and ended:
        report["text"] = (
            f"it still waited in a collective when another rank had ended (rank {' and '.join(ended)}), which called fewer of "
            "them or brought fewer elements"
        )
    elif _DISCONNECTION in report["text"]:
        report["text"] = "it lost the connection to another rank, which had ended or got what it did not wait for"
    return RankError(number, len(ranks), report)


def _read_report(rank: BaseProcess, folder: Path, number: int) -> tuple[int, dict]:
    try:
        return number, worker.read_report(folder, number)
    except (OSError, pickle.UnpicklingError, EOFError):
        return number, _report_without_file(_describe_death(rank.exitcode))


def _describe_death(code: int) -> str:
    if code == 1:  # with a report where it came as far as the work
        return "ended before its work began (exit code 1)"
    if code >= 0:
        return f"died without a word (exit code {code})"
    names = {member.value: member.name for member in signal.Signals}  # real-time signals have no names
    name = names.get(-code, f"signal {-code}")
    return f"was killed by {name}{_LIKELY_CAUSES.get(name, '')}"


def _read_result(folder: Path, number: int, world_size: int):
    try:
        return worker.read_result(folder, number)
    except FileNotFoundError:
        raise RankError(
            number, world_size, _report_without_file("ended before its work was done (exit code 0)")
        ) from None
    except Exception as error:
        raise RankError(
            number, world_size, _report_without_file(f"gave a result that cannot be read here ({error})")
        ) from error


def _report_without_file(text: str) -> dict:
    """The report of a rank that left none."""
    return {"kind": "", "text": text, "place": None, "trace": "", "time": 0.0}


def _kill_all(ranks: Sequence[BaseProcess]) -> None:
    for rank in ranks:
        if rank.is_alive():
            rank.kill()
    for rank in ranks:
        rank.join()
        rank.close()
