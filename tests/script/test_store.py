"""The store as a process: where it is, when it ends, and that torchrun's agents meet there."""

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
    with pytest.raises(
        CourseError, match=f"No store can listen at 127.0.0.1:{memory.port} .*; give another host or port"
    ):
        serve(port=memory.port)


@pytest.fixture
def process():
    command = [sys.executable, "-m", "course_utils.script.store", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        yield started
        started.kill()


@pytest.mark.slow
def test_as_a_process_it_says_where_it_is_and_ends_when_asked(process):
    assert re.fullmatch(r"The store is at 127\.0\.0\.1:\d+\.\n", process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 0


@pytest.mark.slow
def test_torchruns_agents_meet_there(process, tmp_path):
    address = process.stdout.readline().split()[-1].rstrip(".")
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "one = torch.ones(1)\n"
        "dist.all_reduce(one)\n"
        "print('sum', one.item(), flush=True)\n"
        "dist.destroy_process_group()\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", address, "--rdzv-conf", "is_host=0", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert sorted(re.findall(r"sum|2\.0", done.stdout)) == ["2.0", "2.0", "sum", "sum"]  # two write at once
