"""The store as a process: where it is, and when it ends."""

import re
import signal
import subprocess
import sys

import pytest
import torch.distributed as dist

from course_utils.errors import CourseError
from course_utils.script.store import serve


def test_a_port_that_is_taken_is_named():
    memory = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    sentence = f"No store can listen at 127.0.0.1:{memory.port} .*; give another host or port"
    with pytest.raises(CourseError, match=sentence):
        serve(port=memory.port)


@pytest.fixture
def process():
    command = [sys.executable, "-m", "course_utils.script.store", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as store:
        yield store
        store.kill()


@pytest.mark.slow
def test_as_a_process_it_says_where_it_is_and_ends_when_asked(process):
    assert re.fullmatch(r"The store is at 127\.0\.0\.1:\d+\.\n", process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 0
