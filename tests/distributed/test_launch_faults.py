"""What goes wrong among ranks: told within the time, with the rank and the cause, and nothing is left running."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from course_utils.distributed import RankError, launch, ring
from course_utils.distributed import launch as launching
from course_utils.errors import CourseError


def killed():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def leaving():
    if dist.get_rank() == 1:
        sys.exit(3)
    dist.barrier()


def vanishing():
    if dist.get_rank() == 1:
        os._exit(7)
    dist.barrier()


def done_early():
    if dist.get_rank() == 0:
        dist.barrier()


def gone():
    os._exit(0)


def lists_of_other_sizes():
    dist.all_gather([torch.empty(3) for _ in range(2)], torch.ones(3 + dist.get_rank()))


def sums_of_other_sizes():
    dist.all_reduce(torch.ones(3 + dist.get_rank()))


def ranks_of_its_own():
    launch(dist.get_rank, 2)


class SpeechlessError(Exception):
    def __str__(self):
        raise ValueError


def without_a_word():
    raise SpeechlessError


def at_length():
    raise ValueError("x" * 5000)


def at_a_taken_port(port):
    dist.TCPStore("127.0.0.1", port, 1, is_master=True)


FAULTS = {
    killed: "Rank 1 of 2 was killed by SIGKILL, as the system does where memory runs out",
    leaving: r"Rank 1 of 2 stopped with SystemExit: 3, at line \d+",
    vanishing: r"Rank 1 of 2 died without a word \(exit code 7\)",
    done_early: r"Rank 0 of 2 .* still waited in a collective when another rank had ended \(rank 1\), which called fewer",
    gone: r"Rank 0 of 2 ended before its work was done \(exit code 0\)",
    lists_of_other_sizes: r"Rank \d of 2 stopped with RuntimeError: .*invalid tensor size",
    sums_of_other_sizes: r"Rank \d of 2 (stopped with \w+: .*fewer elements|was killed by SIGABRT, .*different shapes or types)",
    ranks_of_its_own: "A rank cannot start ranks of its own",
    without_a_word: "stopped with SpeechlessError: an error that cannot say what it is",
    at_length: r"stopped with ValueError: x{1000} …, at line",
}


def descendants() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


@pytest.fixture
def leaves_nothing():
    launch(dist.get_rank, 1)  # the fork server stays
    before = descendants()
    yield
    wait_for(lambda: descendants() <= before)


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize(("work", "message"), FAULTS.items(), ids=[work.__name__ for work in FAULTS])
def test_a_fault_is_told_with_its_rank_and_cause(work, message):
    with pytest.raises(RankError, match=message):
        launch(work, 2, seconds=60)


def hang():
    """Rank 0 waits for a sum, rank 1 computes for ever, rank 2 has been stopped."""
    if dist.get_rank() == 0:
        ring.all_reduce(torch.ones(1))
    if dist.get_rank() == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        torch.ones(10).sum()


@pytest.mark.usefixtures("leaves_nothing")
def test_ranks_that_hang_are_told_with_the_line_of_each():
    sums = hang.__code__.co_firstlineno + 3
    places = rf"rank 0 in all_reduce at line {sums} of .*, rank 1 at line \d+ of .*, rank 2 gives no answer; "
    message = rf"The 3 ranks were not done after 4 s and were ended: {places}look for a collective"
    with pytest.raises(CourseError, match=message):
        launch(hang, 3, seconds=4)


@pytest.fixture
def taken_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.usefixtures("leaves_nothing")
def test_ranks_meet_at_a_port_that_nobody_has_and_that_of_a_users_own_is_told(monkeypatch, taken_port):
    with pytest.raises(RankError, match=rf"Rank 0 of 1 stopped with DistNetworkError: .*{taken_port}.*EADDRINUSE"):
        launch(at_a_taken_port, 1, taken_port, seconds=60)
    # A fork server has an older environment; and so where there is none, ranks that start afresh are tried, too.
    monkeypatch.setattr(sys.modules[launching.__module__], "METHOD", "spawn")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(taken_port))
    assert launch(lambda: (dist.get_rank(), os.environ["MASTER_PORT"]), 2) == [(i, str(taken_port)) for i in range(2)]


SCRIPT = """
import sys
from dataclasses import dataclass
from course_utils import distributed
import torch.distributed as dist

@dataclass
class Answer:
    rank: int

def work(before):
    return Answer(before.rank + dist.get_rank())

sys.modules["course_utils.distributed.launch"].METHOD = sys.argv[1]
print([type(answer) is Answer and answer.rank for answer in distributed.launch(work, 2, Answer(5))])
"""


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_script_needs_no_guard_and_runs_once(tmp_path, method):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), method]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.stdout, result.stderr) == ("[5, 6]\n", "")


def write_pid_and_sleep(folder):
    (folder / f"{dist.get_rank()}").write_text(str(os.getpid()))
    time.sleep(60)


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize(
    ("send", "sent"),
    [
        pytest.param("kill", signal.SIGINT, id="an interrupt of the process", marks=pytest.mark.slow),
        pytest.param("killpg", signal.SIGINT, id="an interrupt of all of a terminal", marks=pytest.mark.slow),
        pytest.param("kill", getattr(signal, "SIGKILL", None), id="its end"),
    ],
)
def test_ranks_end_with_the_process_that_asked_for_them(tmp_path, send, sent):
    """Jupyter interrupts the kernel, Ctrl-C in a terminal all processes at once."""
    code = (
        "import signal, sys; from pathlib import Path; sys.path[:0] = [sys.argv[2]]; import test_launch_faults as here\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs are born deaf to it
        "if __name__ == '__main__': here.launch(here.write_pid_and_sleep, 2, Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path), os.path.dirname(__file__)]
    asking = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        wait_for(lambda: len(pids(tmp_path)) == 2)
        processes = psutil.Process(asking.pid).children(recursive=True)
        getattr(os, send)(asking.pid, sent)
        errors = asking.communicate(timeout=30)[1]
    finally:
        asking.kill()
        asking.wait()
    assert sent != signal.SIGINT or "KeyboardInterrupt" in errors.splitlines()[-1]
    assert set(pids(tmp_path)) <= {process.pid for process in processes}
    wait_for(lambda: not any(process.is_running() for process in processes))


def pids(folder: Path) -> list[int]:
    return [int(text) for path in folder.iterdir() if (text := path.read_text())]


def wait_for(condition) -> None:
    deadline = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
