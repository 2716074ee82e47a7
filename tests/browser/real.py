"""A server started as a reader starts it, and a browser that looks at it."""

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from urllib.parse import urlsplit

import psutil
import pytest

from course_utils.settings import environment_for_child
from course_utils.store import NAME

ROOT = Path(__file__).parents[2]
START_TIMEOUT = 60
LAB = r"http://(?:localhost|127\.0\.0\.1):\d+/lab\S*token=\w+"
DEMO = r"http://127\.0\.0\.1:\d+/"


def kept_in(home: Path, section: str, key: str):
    """What the learner's store under `home` holds."""
    with closing(sqlite3.connect(home / NAME)) as store:
        row = store.execute("SELECT value FROM kept WHERE section = ? AND key = ?", (section, key))
        return json.loads(row.fetchone()[0])


def copy_course(into: Path, *folders: str) -> None:
    """These folders of the course."""
    for name in folders:
        shutil.copytree(ROOT / name, into / name, ignore=shutil.ignore_patterns("__pycache__"))


@contextmanager
def served(*command: str, address: str, home: Path, cwd: Path = ROOT, **environment: str) -> Iterator[str]:
    """`python command…` runs in `cwd`; gives what it prints that looks like `address`.

    After Ctrl-C the server and its kernels are gone, and it has said nothing besides that line.
    """
    child = environment_for_child(
        OMP_NUM_THREADS="1", CI="1", JUPYTER_CONFIG_DIR=str(home), COURSE_HOME=str(home / "home"), **environment
    )
    server = subprocess.Popen(
        [sys.executable, *command], cwd=cwd, env=child, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs are born deaf to it
    )  # fmt: skip
    lines, children = Queue(), []
    reader = Thread(target=lambda: [lines.put(line) for line in server.stdout], daemon=True)
    reader.start()
    try:
        first = _first(address, server, lines)
        _wait_until_open(first)
        yield first
        children = psutil.Process(server.pid).children(recursive=True)
    finally:
        _stop(server)
    assert psutil.wait_procs(children, timeout=20)[1] == [], "kernels were left running"
    assert server.returncode == 0, f"it ended with {server.returncode}"
    reader.join(timeout=20)
    later = list(lines.queue)
    assert not [line for line in later if "websocket_ping" in line], later


def _first(pattern: str, server: subprocess.Popen, lines: Queue) -> str:
    printed, deadline = [], time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and (server.poll() is None or not lines.empty()):
        try:
            printed.append(lines.get(timeout=0.2))
        except Empty:
            continue
        if match := re.search(pattern, printed[-1]):
            return match.group()
    return pytest.fail("no address was printed:\n" + "".join(printed))


def _wait_until_open(address: str) -> None:
    """JupyterLab prints its address a moment before it listens."""
    parts, deadline = urlsplit(address), time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        with suppress(ConnectionRefusedError), socket.create_connection((parts.hostname, parts.port), timeout=5):
            return
        time.sleep(0.1)
    pytest.fail(f"nobody listens at {address}")


def _stop(server: subprocess.Popen) -> None:
    server.send_signal(signal.SIGINT if os.name == "posix" else signal.SIGTERM)
    try:
        server.wait(timeout=30)
    except subprocess.TimeoutExpired:
        for process in [*psutil.Process(server.pid).children(recursive=True), server]:
            process.kill()


def save_picture(page, name: str) -> None:
    """What the page looks like now, in `build/browser`, to be looked at."""
    folder = ROOT / "build" / "browser"
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=folder / f"{name}.png")
