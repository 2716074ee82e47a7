"""Where figures go: a row is in the file when `log` returns, and a logger of your own gets the same figures."""

import csv
from importlib.util import find_spec
from math import cos, pi
from types import SimpleNamespace

import pytest
import torch
from small_job import SIZES, write_small_model

from course_utils.script import Job, expectation, train
from course_utils.script.loggers import CsvLogger, TensorBoardLogger
from course_utils.script.loop import prepare


class RowsByStep:
    def __init__(self):
        self.rows, self.is_closed = {}, False

    def log(self, step, values):
        self.rows[step] = values

    def close(self):
        self.is_closed = True


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    return write_small_model(folder, steps=6, micro_batch=3, clipping=True, log_every=4, save_every=3)


@pytest.fixture(scope="module")
def run(job, tmp_path_factory):
    """A run, its folder, and what a logger of our own was given."""
    folder = tmp_path_factory.mktemp("run")
    logger = RowsByStep()
    return train(Job(**job, out=folder), loggers=[logger], say=len), folder, logger


def rows_in(folder):
    return list(csv.DictReader((folder / "log.csv").read_text(encoding="utf-8").splitlines()))


def test_a_row_has_the_mean_of_its_updates(run):
    result, folder, logger = run
    first, last = rows_in(folder)
    assert (first["step"], last["step"]) == ("4", "6")
    assert float(first["loss"]) == pytest.approx(sum(result.losses[step] for step in range(1, 5)) / 4, rel=1e-6)
    assert float(last["lr"]) == pytest.approx(1e-3 * (1 + cos(pi * 5 / 6)) / 2)
    assert (int(first["tokens"]), int(last["tokens"])) == (4 * 12 * 24, 2 * 12 * 24)
    assert logger.rows[4]["loss"] == float(first["loss"])
    assert logger.is_closed


def test_flops_are_those_of_the_operators(run):
    """Two for a multiply-add, three products for each weight and position, and those of attention."""
    result, folder, _ = run
    weights = sum(
        p.numel() for name, p in result.engine.plain.named_parameters() if p.dim() == 2 and "embed" not in name
    )
    attention = 2 * SIZES["num_hidden_layers"] * 24 * SIZES["hidden_size"]  # scores and values, for each position
    row = rows_in(folder)[1]
    flops = float(row["flops_per_second"]) / float(row["tokens_per_second"])
    assert 6 * weights < flops < 6 * weights + 2 * 4 * 3 * attention
    assert 0 < float(row["utilization"]) < 1


def test_a_rate_is_of_its_precision_and_its_device(job, tmp_path, monkeypatch):
    """The file in the run's folder is read only for what it was measured for."""
    measured = iter(range(1, 9))
    monkeypatch.setattr(
        expectation, "calibrate", lambda names, **_: SimpleNamespace(flop_rates={names[0]: next(measured)})
    )

    def rate(precision, device):
        settings = Job(**{**job, "precision": precision, "compiled": True}, out=tmp_path)  # Nothing predicts this.
        split, source, _ = prepare(settings, 1)
        return expectation.Expectation.load_or_compute(split, source, torch.device(device)).flops_per_second

    assert [rate("fp32", "cpu"), rate("fp32", "cpu")] == [1, 1]
    assert [rate("autocast", "cpu"), rate("autocast", "cuda"), rate("fp32", "cuda")] == [2, 3, 4]


def test_rows_of_a_run_that_goes_on_stand_below_those_before(job, tmp_path):
    train(Job(**{**job, "steps": 3, "quick": True}, out=tmp_path), say=len)
    train(Job(**{**job, "quick": True}, out=tmp_path), say=len)
    assert [row["step"] for row in rows_in(tmp_path)] == ["3", "4", "6"]
    assert {"gradient_norm", "utilization"} <= set(rows_in(tmp_path)[0])


def test_a_row_is_there_at_once(tmp_path):
    logger = CsvLogger(tmp_path)
    logger.log(7, {"loss": 0.5, "lr": None})
    [row] = rows_in(tmp_path)
    logger.close()
    assert (row["step"], row["loss"], row["lr"]) == ("7", "0.5", "")


@pytest.mark.skipif(not find_spec("tensorboard"), reason="TensorBoard is not installed")
def test_tensorboard_reads_its_own(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path)
    for step in (10, 20):
        logger.log(step, {"loss": 1 / step, "lr": 0.1})
    logger.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [
        (10, pytest.approx(0.1)),
        (20, pytest.approx(0.05)),
    ]
