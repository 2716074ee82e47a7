"""Chapter 12: the same updates by every engine, what they are silent about, and a run of which a node is lost."""

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

import pandas as pd
import psutil
import pytest
import torch
from figures import title

from course_utils import models
from course_utils.distributed import launch
from course_utils.errors import CourseError
from course_utils.hardware import Machine
from course_utils.lessons import c12_engines as lesson
from course_utils.script.agents import words
from course_utils.script.loggers import CsvLogger
from course_utils.settings import environment_for_child, settings
from course_utils.training import History
from course_utils.training.profile import Trace

MICRO_BATCHES = 2
# Of bytes that a gradient has, on two ranks: an all-reduce sends 1, a gather or a reduce-scatter 1/2.
SENT = {
    "DDP": 1,
    "ZeroRedundancyOptimizer": 1 + 1 / 2,
    "DeepSpeed 1": 1 + 1 / 2,
    "DeepSpeed 2": MICRO_BATCHES * 1 + 1 / 2,
    "DeepSpeed 3": MICRO_BATCHES * (1 / 2 + 1 / 2),
    "Accelerate": 1,
    "Lightning Fabric": 1,
    "Lightning Trainer": 1,
}
RESIDENT = {"FSDP2": (0.5, 1), "DeepSpeed 3": (0.5, 1), "ZeroRedundancyOptimizer": (1, 1)}
RESIDENT |= {f"DeepSpeed {stage}": (1.5, 1) for stage in (1, 2)}  # a copy of its share, also where nothing is rounded


def needs(package):
    return [pytest.mark.skipif(not find_spec(package), reason=f"needs {package}"), pytest.mark.slow]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return lesson.small_job(tmp_path_factory.mktemp("job"), steps=5, floor=1.0)


@pytest.fixture(scope="module")
def expected(job):
    return launch(lesson.truth_on_rank, 1, job)[0]


@pytest.fixture(scope="module")
def seen(job):
    return lesson.train_all(job)


def check(table, job, name):
    model = lesson.load(job)[0].make()
    blocks = sum(map(models.parameter_count, model.model.layers)) / models.parameter_count(model)
    # FSDP2 gathers for forward, and again for backward what is not its root; then it scatters, for each micro-batch.
    sent = SENT | {"FSDP2": MICRO_BATCHES * (1 / 2 + blocks / 2 + 1 / 2)}
    row = table.loc[name]
    assert row["off by"] < 1e-5
    assert row["sent"] == pytest.approx(sent[name], rel=1e-3)
    assert (row["parameters"], row["state"]) == pytest.approx(RESIDENT.get(name, (1, 2)), rel=1e-3)


@pytest.mark.parametrize("name", lesson.ENGINES)
def test_an_engine_trains_as_one_process_does_and_sends_what_its_definition_says(job, expected, seen, name):
    if name not in seen:
        pytest.skip(f"needs {lesson.ENGINES[name][0]}")
    check(lesson.compare(seen, expected), job, name)


def test_the_updates_move_the_parameters_by_more_than_the_engines_differ(job, expected, seen):
    begun = dict(lesson.load(job)[0].make().named_parameters())
    assert lesson.largest_difference(begun, expected) > 1e-3
    other = {name: tensor + 1 for name, tensor in expected.items()}
    assert lesson.compare(seen, other)["off by"].min() > 0.5


def test_an_engine_that_is_not_here_has_its_roles_and_no_figures(expected, seen):
    table = lesson.compare({"DDP": seen["DDP"]}, expected)
    assert list(table.index) == list(lesson.ENGINES) == list(lesson.ROLES)
    assert table["sent"].count() == 1
    assert table["wraps"].count() == len(table)


def test_accelerate_repeats_a_row_and_steps_the_schedule_once_for_each_rank():
    ranks = launch(lesson.accelerate_alone_on_rank, 2)
    assert Counter(row for seen, _ in ranks for row in seen) == Counter([0, *range(7)])
    assert ranks[0][1] == pytest.approx([1 - 2 * update / 8 for update in range(1, 5)])


@pytest.mark.parametrize("stage", [pytest.param(stage, marks=needs("deepspeed")) for stage in (1, 3)])
def test_deepspeed_clips_by_its_own_configuration_alone(stage):
    free = launch(partial(lesson.deepspeed_alone_on_rank, gradient_clipping=0.0), 2, stage, seconds=200)
    tried = launch(partial(lesson.deepspeed_alone_on_rank, gradient_clipping=0.0), 2, stage, True, seconds=200)
    report = launch(partial(lesson.deepspeed_alone_on_rank, gradient_clipping=0.5), 2, stage, seconds=200)
    assert [moved for moved, _ in (*free, *tried)] == pytest.approx([4] * 4)
    assert [norm for _, norm in tried] == [0, 0]
    assert [moved for moved, _ in report] == pytest.approx([0.5] * 2, rel=1e-3)


# A node is lost.


def test_what_a_run_says_of_what_it_makes_again_is_understood():
    sentences = {
        "Goes on after update 40; updates 41 to 43 are computed again.": (40, 3),
        "Goes on after update 40; update 41 is computed again.": (40, 1),
        "Goes on after update 40; none is computed again.": (40, 0),
    }
    for sentence, (after, again) in sentences.items():
        assert lesson.resumption_in(f"…\n{sentence}\n") == (after, again)
    assert lesson.resumption_in("…\n") is None


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_of_which_a_node_is_lost_ends_as_if_nothing_had_been(tmp_path):
    job = lesson.small_job(tmp_path, precision="fp64", strategy="ddp", steps=120, save_every=20, log_every=10)
    run = lesson.disturb(job, 50, seconds=240)
    assert run.apart < 1e-10
    assert 0 <= run.again <= 2 * job.save_every
    assert list(run.events["what"][run.events["who"] == "agent 1"]) == [
        "starts",
        "is killed, and its rank",
        "starts again",
    ]
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
    job = lesson.small_job(tmp_path, strategy="ddp", steps=100_000)
    logs = set(Path(tempfile.gettempdir()).glob("torchelastic_*"))
    with pytest.raises(CourseError, match="was not done after"):
        lesson.disturb(job, 10**6, seconds=20)
    assert not processes_with(str(tmp_path))
    assert set(Path(tempfile.gettempdir()).glob("torchelastic_*")) <= logs


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("there", "message"), [(True, "ended too early"), (False, "ended with code 1")])
def test_a_run_that_ends_by_itself_is_not_waited_for(tmp_path, there, message):
    job = lesson.small_job(tmp_path, strategy="ddp", steps=8)
    if not there:
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

    parsed = parse_args(words("127.0.0.1:1", 2, ["--logs", "csv", "tensorboard", "--standalone"]))
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


def test_the_log_is_drawn_attempt_by_attempt(tmp_path):
    logger = CsvLogger(tmp_path)
    for attempt, step, loss in ((1, 10, 3.0), (1, 20, 2.5), (2, 20, 3.0), (2, 30, 2.0)):
        logger.log(step, {"attempt": attempt, "loss": loss, "tokens_per_second": 100.0 * step})
    logger.close()
    figure, alt = lesson.log_figure(tmp_path)
    assert [list(line.get_ydata()) for line in figure.axes[0].lines] == [[3.0, 2.5], [3.0, 2.0]]
    assert list(figure.axes[1].lines[1].get_ydata()) == [2000.0, 3000.0]
    assert figure.get_suptitle() == "Update 20 is logged twice, with losses that differ by 0.5"
    assert alt.endswith(
        "log.csv has 4 rows: attempt 1, updates 10 to 20, loss 2.50; attempt 2, updates 20 to 30, loss 2.00."
    )


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


def test_a_short_run_is_profiled(job):
    trace, history = lesson.profile_job(job, steps=2)
    assert len(trace.of("step")) == 2
    assert len(history.steps) == 4
    assert torch.isfinite(torch.tensor(history.losses)).all()


def test_nothing_is_shown_where_nobody_reads_along(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_STRICT", "1")
    settings.cache_clear()
    assert lesson.show_tensorboard(tmp_path) is False


@pytest.mark.parametrize("package", [pytest.param("tensorboard", marks=needs("tensorboard"))])
def test_tensorboard_answers_from_within_this_process(tmp_path, monkeypatch, capsys, package):
    for name, value in (("COURSE_STRICT", "0"), ("COURSE_READER", "1")):
        monkeypatch.setenv(name, value)
    settings.cache_clear()
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    assert lesson.show_tensorboard(tmp_path)
    port = re.search(r"localhost:(\d+)", capsys.readouterr().out)[1]  # outside of a notebook it says where to look
    assert "TensorBoard" in urlopen(f"http://127.0.0.1:{port}/", timeout=20).read().decode()
    assert {process.pid for process in psutil.Process().children(recursive=True)} == before
