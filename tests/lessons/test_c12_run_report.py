"""What a run says of itself: its log drawn, its time in a checklist, TensorBoard below a cell."""

import re
from importlib.util import find_spec
from urllib.request import urlopen

import pandas as pd
import psutil
import pytest
import torch

from course_utils.hardware import Machine
from course_utils.lessons import c12_run_report as lesson
from course_utils.lessons.c12_engines import small_job
from course_utils.script.loggers import CsvLogger
from course_utils.settings import settings
from course_utils.training import History
from course_utils.training.profile import Trace


def test_the_log_is_drawn_attempt_by_attempt(tmp_path):
    logger = CsvLogger(tmp_path)
    for attempt, step, loss in ((1, 10, 3.0), (1, 20, 2.5), (2, 20, 3.0), (2, 30, 2.0)):
        logger.log(step, {"attempt": attempt, "loss": loss, "tokens_per_second": 100.0 * step})
    logger.close()
    figure, alt = lesson.log_figure(tmp_path)
    assert [list(line.get_ydata()) for line in figure.axes[0].lines] == [[3.0, 2.5], [3.0, 2.0]]
    assert list(figure.axes[1].lines[1].get_ydata()) == [2000.0, 3000.0]
    assert figure.get_suptitle() == "Update 20 is logged twice, with losses that differ by 0.5"
    attempts = "attempt 1, updates 10 to 20, loss 2.50; attempt 2, updates 20 to 30, loss 2.00"
    assert alt.endswith(f"log.csv has 4 rows: {attempts}.")


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
