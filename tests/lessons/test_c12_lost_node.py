"""A run of which a node is lost: it goes on, ends as if nothing had been, and leaves no process behind."""

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest
from figures import title

from course_utils.errors import CourseError
from course_utils.lessons import c12_lost_node as lesson
from course_utils.lessons.c12_engines import small_job
from course_utils.script.agents import torchrun_arguments
from course_utils.settings import environment_for_child


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


def test_the_figure_says_what_a_lost_node_cost():
    events = [
        (0.0, "agent 0", "starts"),
        (9.0, "agent 1", "is killed, and its rank"),
        (20.0, "ranks", "go on after update 40"),
    ]
    progress = [(5.0, 1), (8.9, 47), (21.0, 41), (25.0, 90)]
    run = lesson.DisturbedRun(pd.DataFrame(events, columns=["second", "who", "what"]), progress, 7, 0.0)
    figure, alt = lesson.disturbed_figure(run)
    assert title(figure.axes[0]) == "A killed agent costs 12 s and 7 repeated updates"
    lines = [line.get_xydata().tolist() for line in figure.axes[0].lines]
    assert lines == [[[5.0, 1.0], [8.9, 47.0]], [[21.0, 41.0], [25.0, 90.0]]]
    assert "9.0 s: agent 1 is killed" in alt
