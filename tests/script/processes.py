"""`course train` as processes of their own: started, ended on purpose, and looked after."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import torch

from course_utils.script import Job, checkpoints
from course_utils.settings import environment_for_child

COURSE = [sys.executable, "-W", "ignore", "-m", "course_utils.cli", "train"]
TORCHRUN = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run"]
PATIENCE = 240


@contextmanager
def background_process(command, log: Path, **environment):
    """The process, with what it says in `log`; whatever is left of it is ended in the end."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment_for_child(OMP_NUM_THREADS="1", **environment),
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def store(log: Path):
    """A store, and its address."""
    with background_process([sys.executable, "-m", "course_utils.script.store", "--port", 0], log):
        yield wait_for(lambda: re.search(r"The store is at (\S+)\.", log.read_text(encoding="utf-8")))[1]


def wait_for(look, patience=PATIENCE):
    """Call `look` until it returns something, which is returned."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if value := look():
            return value
        time.sleep(0.02)
    raise AssertionError("It never came.")


def workers(agent: int) -> list[psutil.Process]:
    """The ranks that an agent has started, and that live."""
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(agent).children()
        return [child for child in children if is_alive(child.pid) and "train" in child.cmdline()]
    return []


def is_alive(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def parameters_in(out: Path, step: int) -> dict[str, torch.Tensor]:
    """The parameters of the newest checkpoint, which must be that of `step`."""
    assert max((out / "checkpoints").iterdir()).name == f"step-{step:08d}"
    return checkpoints.parameters_in(out)


def flags(fields: dict, out: Path) -> list[str]:
    return Job(**fields, out=out).flags()
