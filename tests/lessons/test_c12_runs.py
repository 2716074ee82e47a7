"""A run of which a node is lost: it goes on, ends as if nothing had been, and leaves no process behind; then runs are watched."""

import re
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

import pandas as pd
import psutil
import pytest
import torch

from course_utils.errors import CourseError
from course_utils.hardware import Machine
from course_utils.lessons import c12_runs as lesson
from course_utils.lessons.c12_engines import small_job
from course_utils.script.agents import torchrun_arguments
from course_utils.settings import environment_for_child, settings
from course_utils.training import History
from course_utils.training.profile import Trace


def test_what_a_run_says_of_what_it_makes_again_is_understood():
    sentences = {
        "Goes on after update 40; updates 41 to 43 are computed again.": (40, 3),
        "Goes on after update 40; update 41 is computed again.": (40, 1),
        "Goes on after update 40; none is computed again.": (40, 0),
    }
    for sentence, (after, repetitions) in sentences.items():
        assert lesson.resumption_in(f"…\n{sentence}\n") == (after, repetitions)
    assert lesson.resumption_in("…\n") is None


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_of_which_a_node_is_lost_ends_as_if_nothing_had_been(tmp_path):
    job = small_job(tmp_path, precision="fp64", strategy="ddp", steps=120, save_every=20, log_every=10)
    run = lesson.disturb(job, 50, seconds=240)
    assert run.difference < 1e-10
    assert 0 <= run.repeated_updates <= 2 * job.save_every
    events = list(run.events["what"][run.events["who"] == "agent 1"])
    assert events == ["starts", "is killed, and its rank", "starts again"]
    assert sorted(run.events["second"]) == list(run.events["second"])
    rows = pd.read_csv(job.out / "log.csv")
    assert list(rows["attempt"].unique()) == [1, 2]
    assert rows["step"].iloc[-1] == 120
    with pytest.raises(CourseError, match="has a run that would be taken up"):
        lesson.disturb(job, 50)


def processes_with(text: str) -> list[psutil.Process]:
    """The processes whose command line has `text`."""
    return [process for process in psutil.process_iter(["cmdline"]) if text in " ".join(process.info["cmdline"] or ())]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_that_is_given_up_leaves_no_process_and_no_folder(tmp_path):
    job = small_job(tmp_path, strategy="ddp", steps=100_000)
    logs = set(Path(tempfile.gettempdir()).glob("torchelastic_*"))
    with pytest.raises(CourseError, match="was not done after"):
        lesson.disturb(job, 10**6, seconds=20)
    assert not processes_with(str(tmp_path))
    assert set(Path(tempfile.gettempdir()).glob("torchelastic_*")) <= logs


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("has_config", "message"), [(True, "ended too early"), (False, "ended with code 1")])
def test_a_run_that_ends_by_itself_is_not_waited_for(tmp_path, has_config, message):
    job = small_job(tmp_path, strategy="ddp", steps=8)
    if not has_config:
        (tmp_path / "config.json").unlink()
    with pytest.raises(CourseError, match=message):
        lesson.disturb(job, 10**6, seconds=10_000)


def awaited(look):
    """What `look` gives, as soon as it gives something."""
    for _ in range(1200):
        if value := look():
            return value
        time.sleep(0.05)
    raise AssertionError("It never came.")


BEGINS = """
import sys, time
from pathlib import Path
from course_utils.script.agents import Agents
from course_utils.lessons.c12_engines import small_job
folder = Path(sys.argv[1])
with Agents(folder, 2, small_job(folder, strategy="ddp", steps=100_000).flags()) as agents:
    agents.start(0)
    agents.start(1)
    time.sleep(250)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_agents_and_ranks_end_with_the_process_that_began_them(tmp_path):
    """The ranks' command lines name the run's folder; that of an agent is its beginner's."""
    process = subprocess.Popen([sys.executable, "-c", BEGINS, str(tmp_path)], env=environment_for_child())
    awaited(lambda: [process for process in processes_with(str(tmp_path)) if "train" in process.info["cmdline"]])
    process.send_signal(signal.SIGKILL)
    process.wait()
    awaited(lambda: not processes_with(str(tmp_path)))


def test_an_agent_is_told_what_torchrun_takes_and_leaves_the_runs_own_flags_alone():
    from torch.distributed.run import parse_args

    parsed = parse_args(torchrun_arguments("127.0.0.1:1", 2, ["--logs", "csv", "tensorboard", "--standalone"]))
    assert (parsed.nnodes, parsed.rdzv_endpoint, parsed.standalone) == ("2", "127.0.0.1:1", False)
    assert parsed.training_script == "course_utils.cli"
    assert parsed.training_script_args == ["train", "--logs", "csv", "tensorboard", "--standalone"]


# Watching a run.


def traced(loading: float, elsewhere: float) -> Trace:
    """Ten steps of a second each, in which the loader, or Python between two of them, takes so many."""
    rows = []
    for step in range(10):
        computes = step + loading, step + 1 - elsewhere
        rows += [("step", "ProfilerStep*", step, step + 1, 0.0), ("phase", "forward", *computes, 0.0)]
        rows += [("data loader", "data loader", step, step + loading, 0.0)] * (loading > 0)
        rows += [("operator", "aten::mm", *computes, computes[1] - computes[0])]
    return Trace(pd.DataFrame(rows, columns=["kind", "name", "start", "end", "own"]))


def test_the_checklist_has_a_verdict_on_each_measured_figure():
    row = {"loss": 1.0, "learning_rate": 1.0, "tokens": 300, "flops": 6e6, "epoch": 1}
    history = History([{**row, "step": step, "seconds": float(step)} for step in range(1, 5)])
    machine = Machine("this", "a test", 1, 1.0, {"float32": 1e7}, 1.0, "", 1.0)
    waits, calls, runs = (lesson.checklist(traced(*costs), history, machine) for costs in ((0.3, 0), (0, 0.2), (0, 0)))
    assert list(waits["measured"]) == ["30% of the time", "0% of the time", "60.0%", "mm, 100%", "300"]
    assert list(calls["measured"][:2]) == ["0% of the time", "20% of the time"]
    first_words = [[verdict.partition(":")[0] for verdict in table["verdict"][:3]] for table in (waits, calls, runs)]
    assert first_words == [["look at", "fine", "fine"], ["fine", "look at", "fine"], ["fine"] * 3]
    assert waits["verdict"].iloc[4] == "at the best rate 500"


def test_a_short_run_is_profiled(tmp_path):
    job = small_job(tmp_path, steps=5, floor=1.0)
    trace, history = lesson.profile_job(job, steps=2)
    assert len(trace.spans_of("step")) == 2
    assert len(history.steps) == 4
    assert torch.isfinite(torch.tensor(history.losses)).all()


def test_nothing_is_shown_where_nobody_reads_along(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_STRICT", "1")
    settings.cache_clear()
    assert lesson.show_tensorboard(tmp_path) is False


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("tensorboard"), reason="needs tensorboard")
def test_tensorboard_answers_from_within_this_process(tmp_path, monkeypatch, capsys):
    for name, value in (("COURSE_STRICT", "0"), ("COURSE_READER", "1")):
        monkeypatch.setenv(name, value)
    settings.cache_clear()
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    assert lesson.show_tensorboard(tmp_path)
    port = re.search(r"localhost:(\d+)", capsys.readouterr().out)[1]  # outside of a notebook it says where to look
    assert "TensorBoard" in urlopen(f"http://127.0.0.1:{port}/", timeout=20).read().decode()
    assert {process.pid for process in psutil.Process().children(recursive=True)} == before
