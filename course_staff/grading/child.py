"""The process in which learners' code runs. It gets inputs and sends values back; expected values never reach it.

`python -m course_staff.grading.child once` runs one question and talks over stdin and stdout. `… serve FD KIND` (Linux) imports
once, computes nothing, and forks for each question that comes over the socket `FD`, with three file descriptors: one to read
from, one to write to, and a lifeline whose closing at the other end ends the question. It runs no learner's code itself, watches
the question's processes, and ends them when they grow beyond their limits.

Conversation: the job and the question, then the answer `{"notes", "outcome"}` after the cells have run, and for each case the
inputs, answered by an outcome. A job that has only `sources` is answered by what each is parsed as, and the
conversation ends. The grader sends pickles; what goes back has the form of `encoding`, which cannot run code.
"""

import contextlib
import functools
import gc
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from importlib import import_module
from typing import NoReturn

from course_staff.grading import limits
from course_staff.grading.encoding import LONGEST_TEXT, EncodingError, TornError, dump, receive, send
from course_staff.grading.sandbox import SAFE
from course_staff.grading.submission import parse_cell
from course_utils.distributed.launch import fork_server
from course_utils.grading import run
from course_utils.grading.foreign import disable
from course_utils.grading.judge import Outcome
from course_utils.grading.question import Case, Question
from course_utils.grading.shell import NotebookShell, notebook_shell
from course_utils.grading.time_limit import OutOfTime, time_limit

_LONGEST_JOB = 2**40
# The value of a name that the cell above did not define.
_UNDEFINED = object()
# What nearly every notebook loads, the last two by its first optimizer and tensor; a fork finds it there.
_OFTEN_IMPORTED = ("numpy", "psutil", "course_utils.viz", "torch._dynamo", "torch.utils.serialization")


def main() -> None:
    """Serve, or run one question, as the command line says."""
    if sys.argv[1] == "serve":
        serve(socket.socket(fileno=int(sys.argv[2])), kind=sys.argv[3])
        return
    preload()
    read, write = map(os.dup, (0, 1))
    silence()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.chdir(folder)
        converse(read, write)


def preload() -> None:
    """Import what every question needs; nothing is computed, because a process that has computed with torch cannot be forked."""
    import cloudpickle  # noqa: F401
    import torch  # noqa: F401

    for room in ("check", "kinds", "run", "streams", "subjects"):
        import_module(f"course_utils.grading.{room}")
    for name in _OFTEN_IMPORTED:
        with contextlib.suppress(ImportError):
            import_module(name)
    _quiet_shell()


def silence() -> None:
    """Connect stdin, stdout and stderr to the null device, so that a flood of output fills nothing."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)


# ---- one process that forks for each question


def serve(control: socket.socket, kind: str) -> None:
    """Run a question for each message on `control`, until it is closed; reply with 0 or the code of the limit that ended it."""
    limits.keep_no_keys()
    if kind in SAFE:
        limits.refuse_uncounted_memory()
    preload()
    limits.adopt_orphans()
    silence()
    gc.collect()
    gc.freeze()  # a fork need not look through, and so copy, what was imported
    control.send(b"r")
    while True:
        message, pipes, *_ = socket.recv_fds(control, 1, 3)
        if not message:
            return
        control.send(bytes([run_watched(control, *pipes, kind)]))


def run_watched(control: socket.socket, read: int, write: int, lifeline: int, kind: str) -> int:
    """Run one question in a child; returns 0, or the code of the limit that ended it, when nothing of it is left."""
    with empty_folder(kind) as folder:
        child = os.fork()
        if not child:
            control.close()
            os.close(lifeline)
            limits.end_with_parent()
            _run_question_process(read, write, folder)
        os.close(read)
        os.close(write)
        code = _watch(child, lifeline, kind)
        os.close(lifeline)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        limits.kill_descendants()
    return code


@contextlib.contextmanager
def empty_folder(kind: str) -> Iterator[str]:
    """A folder for one question; when the block ends, all that was written there or to other writable folders is deleted."""
    if kind not in SAFE:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            yield folder
        return
    yield limits.BOX
    # By a program, since Python's own cannot follow folders as deep as some are.
    if any(map(os.listdir, limits.FOLDERS)):
        subprocess.run(["find", *limits.FOLDERS, "-mindepth", "1", "-delete"], check=False)


def _run_question_process(read: int, write: int, folder: str) -> NoReturn:
    """The forked process of one question, from its limits to its end, which closes nothing that its parent had opened."""
    code = 1
    try:
        os.chdir(folder)
        os.setsid()
        limits.die_first()
        converse(read, write)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _watch(child: int, lifeline: int, kind: str) -> int:
    """Wait until process `child` has ended, the lifeline is closed or a limit is exceeded; 0 or that limit's code."""
    process = os.pidfd_open(child)
    family = limits.Family(os.getpid(), limits.FOLDERS if kind in SAFE else ())
    seconds = 0.1 if kind in SAFE else 1.0  # outside of a sandbox it looks through all processes of the machine
    try:
        while not select.select([process, lifeline], [], [], seconds)[0]:
            if code := family.excess(limits.LIMITS):
                return code
        return 0
    finally:
        os.close(process)


# ---- one question


def converse(read: int, write: int) -> None:
    """Parse the job's sources; or run its cells, then each case as it comes, until the pipe is closed."""
    job = pickle.loads(receive(read, _LONGEST_JOB))
    if "sources" in job:
        limits.limit_process(limits.LIMITS)
        send(write, dump(_parse_cells(job["sources"])))
        return
    question = pickle.loads(receive(read, _LONGEST_JOB))
    limits.limit_process(limits.LIMITS)
    if question.ranks:
        fork_server()
    with disable(question.replaces):  # in its cells, too
        _answer_cases(NotebookRun(job, question), read, write)


def _answer_cases(notebook: "NotebookRun", read: int, write: int) -> None:
    own_process = os.getpid()
    notebook.run()
    _end_if_forked(own_process)
    send(write, dump({"notes": notebook.notes, "outcome": notebook.outcome and _to_plain(notebook.outcome)}))
    with contextlib.suppress(TornError):
        while True:
            outcome = notebook.run_case(pickle.loads(receive(read, _LONGEST_JOB)))
            _end_if_forked(own_process)
            try:
                message = dump(_to_plain(outcome))
            except EncodingError as error:
                message = dump(_to_plain(Outcome("unsafe", text=str(error))))
            send(write, message)


def _parse_cells(sources: list[str]) -> list[dict]:
    """What `parse_cell` says of each source, as plain values."""
    cells = map(parse_cell, sources)
    return [{k: v if type(v) is bool else sorted(v) for k, v in vars(cell).items()} for cell in cells]


def _end_if_forked(process: int) -> None:
    """End this process if an answer has forked it: only the process that was asked may reply."""
    if os.getpid() != process:
        os._exit(1)


def _to_plain(outcome: Outcome) -> dict:
    texts = {"kind": outcome.kind, "text": outcome.text[:LONGEST_TEXT], "line": outcome.line[:LONGEST_TEXT]}
    return texts | {"values": outcome.values, "mutated": list(outcome.mutated)}


class NotebookRun:
    """A learner's notebook in a shell of its own. After `run`, `outcome` says why there is no answer, or is None.

    `notes` are pairs of a cell's number and what stopped it, empty where it was not run.
    """

    def __init__(self, job: dict, question: Question):
        self.job, self.question = job, question
        self.notes: list[list] = []
        self.outcome: Outcome | None = Outcome("missing")
        self.answer = None
        self.shell = _quiet_shell()
        sys.modules["__main__"] = self.shell.user_module

    def run(self) -> None:
        """Run every cell in its order. An answer that raised runs once more at the end, since it may use a name defined below it.

        The answer has a cell's time for itself, whatever the others took of theirs; one that no time is left for is not run.
        """
        seconds_left = self.job["cells_seconds"]
        for number, source, is_answer in self.job["cells"]:
            start = time.monotonic()
            if is_answer:
                self._run_answer(source)
                continue
            failure = self._run_cell(source, min(seconds_left, self.job["cell_seconds"])) if seconds_left > 0 else None
            if failure or seconds_left <= 0:
                self.notes.append([number, failure.text[:LONGEST_TEXT] if failure else ""])
            seconds_left -= time.monotonic() - start
        if self.outcome and self.outcome.kind == "exception":
            self._run_answer(next(source for _, source, is_answer in self.job["cells"] if is_answer))

    def run_case(self, inputs: dict) -> Outcome:
        """The outcome of the answer on one case."""
        return run.run_case(self.question, self.answer, Case("case", inputs), self.job["seconds"])

    def _run_answer(self, source: str) -> None:
        name, names = self.question.answer, self.shell.user_ns
        before = names.get(name, _UNDEFINED)
        python = ""
        with contextlib.suppress(SyntaxError):  # running it says so
            python = self.shell.transform_cell(source)
        if foreign := run.foreign_outcome(self.question, python):
            self.outcome = foreign
            return
        failure = self._run_cell(source, self.job["cell_seconds"])
        after = names.get(name, _UNDEFINED)
        if after is _UNDEFINED or (failure and after is before):
            self.outcome = failure or Outcome("missing")
        else:
            self.outcome, self.answer = None, after

    def _run_cell(self, source: str, seconds: float) -> Outcome | None:
        """The failure that stopped the cell, or None."""
        try:
            with time_limit(seconds):
                execution = self.shell.run_cell(source, store_history=False)
        except OutOfTime as error:
            return run.outcome_of(error, seconds)
        error = execution.error_before_exec or execution.error_in_exec
        return run.outcome_of(error, seconds) if error else None


@functools.cache
def _quiet_shell() -> NotebookShell:
    """An IPython shell in which the notebook's own `check(...)` prints nothing: there is no set in the sandbox."""
    import course_utils.grading.check

    for room in (course_utils.grading, course_utils.grading.check):
        room.exercise = lambda *_, **__: _say_nothing
    shell = notebook_shell()
    shell.showtraceback = shell.showsyntaxerror = _say_nothing
    shell.user_ns["check"] = _say_nothing
    return shell


def _say_nothing(*_, **__) -> None:
    pass


if __name__ == "__main__":
    main()
