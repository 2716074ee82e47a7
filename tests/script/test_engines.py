"""Every strategy trains the same model to the same parameters as one process, dropout included."""

import json

import pytest
import torch
from small_job import largest_difference, run_job, run_jobs, write_small_model
from torch import nn

from course_utils import models
from course_utils.distributed import launch
from course_utils.optim import schedules
from course_utils.script import Job
from course_utils.script.examples import Order, load_examples


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    return write_small_model(
        folder, precision="fp64", steps=5, micro_batch=3, clipping=True, warmup=2, quick=True, optimizer="torch.AdamW"
    )


@pytest.fixture(scope="module")
def reference(job, tmp_path_factory):
    return run_job({**job, "out": tmp_path_factory.mktemp("reference")})


# With adapters most parameters are frozen.
ADAPTERS = {"lora": 2, "steps": 3}


@pytest.fixture(scope="module")
def on_two_ranks(job, tmp_path_factory):
    """Results of each of two ranks, by strategy and with adapters; the ranks are started once."""
    jobs = {name: {**job, "strategy": name} for name in ("ddp", "zero1", "fsdp2")}
    jobs["adapters"] = jobs["fsdp2"] | ADAPTERS
    return launch(run_jobs, 2, {name: {**job, "out": tmp_path_factory.mktemp(name)} for name, job in jobs.items()})


def check(ranks, expected):
    for state, _, _ in ranks:
        assert largest_difference(state, expected[0]) < 1e-10
    totals = {step: sum(losses[step] for _, losses, _ in ranks) for step in expected[1]}
    assert totals == pytest.approx(expected[1], rel=1e-6)  # Transformers computes the loss in float32


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp2"])
def test_ranks_train_as_one_process_does(reference, on_two_ranks, strategy):
    check([rank[strategy] for rank in on_two_ranks], reference)


def test_two_groups_of_two_ranks_train_as_one_process_does(job, reference, tmp_path):
    check(launch(run_job, 4, {**job, "strategy": "hsdp", "replicas": 2, "out": tmp_path}), reference)


def test_adapters_train_on_ranks_too(job, on_two_ranks, tmp_path):
    check([rank["adapters"] for rank in on_two_ranks], run_job({**job, **ADAPTERS, "out": tmp_path}))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_the_courses_own_task_trains_on_ranks_too(strategy, tmp_path):
    """It has a mask, labels of its own and another schedule."""
    task = {"precision": "fp64", "steps": 3, "batch": 8, "sequence": 16, "quick": True, "micro_batch": 2}
    ranks = launch(run_job, 2, {**task, "strategy": strategy, "out": tmp_path / "two"})
    check(ranks, run_job({**task, "out": tmp_path / "one"}))


def test_one_process_trains_as_a_plain_loop_does(job, tmp_path):
    """The loop written out, without micro-batches, on a model without dropout."""
    fields = without_dropout(job, tmp_path) | {"micro_batch": 0}
    state, losses, _ = run_job({**fields, "out": tmp_path / "run"})
    source, examples = load_examples(Job(**fields, out=tmp_path))
    model = source.make().double()
    order = Order(len(examples), fields["batch"], 0)
    optimizer = torch.optim.AdamW(model.parameters())
    falling = [schedules.cosine(step, 3, floor=Job.floor) for step in range(3)]
    factors = [0.5, 1.0, *falling]  # a warm-up of 2 of the 5 steps
    for step in range(fields["steps"]):
        loss = model(**examples[order[step]]).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = 1e-3 * factors[step]
        optimizer.step()
        optimizer.zero_grad()
        assert losses[step + 1] == pytest.approx(loss.item(), rel=1e-12)
    assert largest_difference(state, model.state_dict()) < 1e-12


def without_dropout(job, folder):
    config = json.loads((job["data"].parent / "config.json").read_text(encoding="utf-8")) | {"attention_dropout": 0.0}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return {**job, "model": str(folder / "config.json")}


@pytest.mark.slow
def test_zero1_has_the_options_of_the_optimizer(job, tmp_path):
    """Adam's decoupled decay, which AdamW keeps and does not take."""
    adam = {**job, "optimizer": "torch.Adam", "options": {"weight_decay": 0.1, "decoupled_weight_decay": True}}
    single, _, _ = run_job({**adam, "out": tmp_path / "one"})
    [(state, _, _), _] = launch(run_job, 2, {**adam, "strategy": "zero1", "out": tmp_path / "two"})
    assert largest_difference(state, single) < 1e-10


def test_the_command_line_of_a_job_asks_for_that_job(job, tmp_path):
    import argparse

    from course_utils.cli import train as command

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    settings = {**job, "strategy": "hsdp", "replicas": 2, "options": {"weight_decay": 0.1, "foreach": False}}
    settings |= {"compiled": True, "logs": (), "save_every": 4, "keep": 3, "lr": 0.02}
    original = Job(**settings, out=tmp_path)
    parsed = command.job_from(parser.parse_args(original.flags()))
    assert parsed == original


def test_the_model_is_the_one_that_the_settings_seed_makes(job, tmp_path):
    expected = models.from_configuration(models.from_json(job["data"].parent / "config.json"))
    state, _, _ = run_job({**job, "precision": "fp32", "steps": 1, "lr": 1e-30, "warmup": 0, "out": tmp_path})
    assert largest_difference(state, expected.state_dict()) < 1e-20
