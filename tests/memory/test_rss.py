import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn

from course_utils.errors import CourseError
from course_utils.memory import measure
from course_utils.memory.rss import peak_rss

MIB = 2**20
# What the figures may be wrong by: each core adds to the kernel's two counters (file and anonymous pages) 32 pages at a time,
# before and at the peak; a step of one thread runs on two cores or so.
BATCHES = 2 * 2 * 2 * 32 * 4096
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux resets a process's high-water mark")


def mib(count):
    return torch.ones(count * MIB, dtype=torch.uint8)


@linux_only
def test_the_rise_is_what_the_second_step_needs_whatever_was_there_before():
    def build():
        freed = [mib(1) for _ in range(100)]
        between = [torch.ones(16) for _ in freed]  # blocks that keep a heap from shrinking
        return between, []

    def step(between, state):
        if not state:
            state.append(mib(50))
        pieces = [torch.ones(100 * 1024, dtype=torch.uint8) for _ in range(200)]
        del pieces[::2]
        mib(30)

    rss = peak_rss(build, step)
    assert not rss.weak
    assert rss.rise == pytest.approx(100 * 100 * 1024 + 30 * MIB, abs=BATCHES)


def build_layers():
    model = nn.Sequential(*[layer for _ in range(5) for layer in (nn.Linear(256, 256), nn.GELU())])
    return model, torch.optim.AdamW(model.parameters(), foreach=False), torch.randn(8192, 256)


def train_layers(model, optimizer, x):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@linux_only
@pytest.mark.slow
def test_the_operating_system_and_the_allocator_agree_on_a_training_step():
    model, optimizer, x = build_layers()
    allocated = measure(lambda: train_layers(model, optimizer, x), model, optimizer)
    rise = allocated.peak - allocated.resident
    assert rise > 60 * MIB
    assert peak_rss(build_layers, train_layers).rise == pytest.approx(rise, abs=BATCHES)


@linux_only
def test_the_measured_process_has_the_threads_and_neither_preloads_nor_huge_pages(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/nowhere/to/be/found.so")
    threads = torch.get_num_threads() + 1

    def step():
        with open("/proc/self/status") as status:
            huge = [line for line in status if line.startswith("THP_enabled")]
        raise RuntimeError(f"{torch.get_num_threads()} {os.environ.get('LD_PRELOAD')} {huge}")

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with pytest.raises(CourseError, match=rf"RuntimeError: {threads} None \['THP_enabled:\\t0"):
            peak_rss(tuple, step)
    finally:
        torch.set_num_threads(before)


WITHOUT_THE_SYSTEMS_HELP = """
import json, pathlib
from course_utils.memory import rss_child
rss_child._CLEAR_REFS = rss_child._STATUS = pathlib.Path("/nowhere/at/all")
rss_child.hand_back_freed_memory = lambda: None
print(json.dumps(rss_child.measured(tuple, lambda: bytearray(50 * 2**20))))
"""


@linux_only
def test_without_a_reset_and_with_an_allocator_that_keeps_freed_memory_the_figure_is_called_weak():
    program = [sys.executable, "-c", WITHOUT_THE_SYSTEMS_HELP]
    answer = json.loads(subprocess.run(program, capture_output=True, text=True, timeout=100, check=True).stdout)
    assert answer["weak"]
    assert "since its start" in answer["witness"]
    assert "keeps freed memory" in answer["witness"]
    assert answer["peak"] - answer["resident"] >= 50 * MIB - BATCHES


def test_what_a_step_prints_does_not_disturb_the_answer():
    def step():
        print('{"peak": 1}', flush=True)
        os.write(1, b"and past Python")

    assert peak_rss(tuple, step).peak > MIB


@pytest.mark.parametrize(
    ("build", "step", "says"),
    [
        (tuple, lambda: 1 // 0, "ZeroDivisionError: .*run step"),
        (lambda: torch.ones(2), lambda x: x, "must return a tuple.*Tensor"),
        (tuple, lambda: os._exit(7), "code 7"),
    ],
)
def test_a_failure_is_told_in_one_sentence(build, step, says):
    with pytest.raises(CourseError, match=says):
        peak_rss(build, step)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no SIGKILL")
def test_a_process_killed_for_want_of_memory_is_told_apart():
    with pytest.raises(CourseError, match="memory ran out; use a smaller"):
        peak_rss(tuple, lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_a_step_that_takes_too_long_is_stopped():
    with pytest.raises(CourseError, match="within 0.1 seconds; give peak_rss a longer timeout"):
        peak_rss(tuple, lambda: None, timeout=0.1)


def test_what_cannot_be_copied_is_refused(tmp_path):
    with (tmp_path / "open").open("w") as file, pytest.raises(CourseError, match="inside build"):
        peak_rss(tuple, lambda: file.buffer)
