"""Every strategy trains the same model to the same parameters as one process, dropout included."""

import json
from dataclasses import fields

import pytest
import torch
from small_job import trained, written
from torch import nn

from course_utils import models
from course_utils.distributed import OuterNesterov, launch
from course_utils.script import Job
from course_utils.script.examples import Order, load
from course_utils.script.run import _factor

RIGHT = {"ddp": 2, "zero1": 2, "fsdp2": 2, "hsdp": 4}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    more = {"precision": "fp64", "steps": 5, "micro_batch": 3, "clipping": True, "warmup": 2, "quick": True}
    return {**written(folder), **more, "optimizer": "torch.AdamW"}


@pytest.fixture(scope="module")
def alone(job, tmp_path_factory):
    return trained({**job, "out": tmp_path_factory.mktemp("alone")})


def farthest(found, wanted):
    assert found.keys() == wanted.keys()
    return max(float((found[name] - wanted[name]).abs().max()) for name in wanted)


@pytest.mark.parametrize("strategy", RIGHT)
def test_ranks_train_as_one_process_does(job, alone, strategy, tmp_path):
    more = {"replicas": 2} if strategy == "hsdp" else {}
    ranks = launch(trained, RIGHT[strategy], {**job, **more, "strategy": strategy, "out": tmp_path})
    for found, _, _ in ranks:
        assert farthest(found, alone[0]) < 1e-10
    together = {step: sum(losses[step] for _, losses, _ in ranks) for step in alone[1]}
    assert together == pytest.approx(alone[1], rel=1e-6)  # Transformers computes the loss in float32


def test_one_process_trains_as_a_plain_loop_does(job, tmp_path):
    """The loop written out, without micro-batches, on a model without dropout."""
    still = without_dropout(job, tmp_path) | {"micro_batch": 0}
    found, losses, _ = trained({**still, "out": tmp_path / "run"})
    source, examples = load(Job(**still, out=tmp_path))
    model, order = source.make().double(), Order(len(examples), still["batch"], 0)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(still["steps"]):
        loss = model(**examples[order[step]]).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = 1e-3 * _factor(Job(**still, out=tmp_path), step)
        optimizer.step()
        optimizer.zero_grad()
        assert losses[step + 1] == pytest.approx(loss.item(), rel=1e-12)
    assert farthest(found, model.state_dict()) < 1e-12


@pytest.mark.parametrize("strategy", [pytest.param("local-sgd", marks=pytest.mark.slow), "diloco"])
def test_rounds_are_what_their_definition_says(job, strategy, tmp_path):
    """Two models in one process, each with its own half of every batch, and their mean after every second update."""
    still = without_dropout(job, tmp_path) | {"strategy": strategy, "sync_every": 2}
    ranks = launch(trained, 2, {**still, "out": tmp_path / "run"})
    source, examples = load(Job(**still, out=tmp_path))
    order, pair = Order(len(examples), still["batch"], 0), [source.make().double() for _ in range(2)]
    optimizers = [torch.optim.AdamW(model.parameters()) for model in pair]
    start = [p.detach().clone() for p in pair[0].parameters()]
    velocity, outer = [torch.zeros_like(p) for p in start], OuterNesterov()
    for step in range(still["steps"]):
        for half, (model, optimizer) in enumerate(zip(pair, optimizers, strict=True)):
            model(**examples[order[step][6 * half : 6 * half + 6]]).loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.param_groups[0]["lr"] = 1e-3 * _factor(Job(**still, out=tmp_path), step)
            optimizer.step()
            optimizer.zero_grad()
        if step % 2 or step + 1 == still["steps"]:
            with torch.no_grad():
                for i, both in enumerate(zip(*(model.parameters() for model in pair), strict=True)):
                    mean = sum(both) / 2
                    if strategy == "diloco":
                        outer.step(start[i], mean, velocity[i])
                        mean = start[i]
                    for one in both:
                        one.copy_(mean)
    for found, _, _ in ranks:
        assert farthest(found, pair[0].state_dict()) < 1e-10


def without_dropout(job, folder):
    config = json.loads((job["data"].parent / "config.json").read_text(encoding="utf-8")) | {"attention_dropout": 0.0}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return {**job, "model": str(folder / "config.json")}


# The own task has a mask, labels of its own and another schedule; with adapters most parameters are frozen.
@pytest.mark.parametrize("strategy", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp2"])
@pytest.mark.parametrize("what", [pytest.param("own task", marks=pytest.mark.slow), "adapters"])
def test_adapters_and_the_courses_own_task_train_on_ranks_too(job, what, strategy, tmp_path):
    own = {"precision": "fp64", "steps": 3, "batch": 8, "sequence": 16, "quick": True, "micro_batch": 2}
    fields_of_it = own if what == "own task" else {**job, "lora": 2, "steps": 3}
    one, _, _ = trained({**fields_of_it, "out": tmp_path / "one"})
    ranks = launch(trained, 2, {**fields_of_it, "strategy": strategy, "out": tmp_path / "two"})
    assert farthest(ranks[0][0], one) < 1e-10


def test_a_sharded_muon_is_torchs_own(job, tmp_path):
    """It orthogonalizes in bfloat16, which rounds: a parameter moves by its learning rate, of which that is a small part."""
    muon = {**job, "optimizer": "muon", "precision": "fp32", "steps": 3}
    one, _, _ = trained({**muon, "out": tmp_path / "one"})
    [(found, _, _), _] = launch(trained, 2, {**muon, "strategy": "fsdp2", "out": tmp_path / "two"})
    assert farthest(found, one) < 1e-2 * 3 * 1e-3 * 3


@pytest.mark.slow
def test_zero1_has_the_options_of_the_optimizer(job, tmp_path):
    """Adam's decoupled decay, which AdamW keeps and does not take."""
    adam = {**job, "optimizer": "torch.Adam", "options": {"weight_decay": 0.1, "decoupled_weight_decay": True}}
    one, _, _ = trained({**adam, "out": tmp_path / "one"})
    [(found, _, _), _] = launch(trained, 2, {**adam, "strategy": "zero1", "out": tmp_path / "two"})
    assert farthest(found, one) < 1e-10


def test_the_command_line_of_a_job_asks_for_that_job(job, tmp_path):
    import argparse

    from course_utils.cli import train as command

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    asked = {**job, "strategy": "hsdp", "replicas": 2, "options": {"weight_decay": 0.1, "foreach": False}}
    asked |= {"compiled": True, "logs": (), "save_every": 4, "saving": "thread", "lr": 0.02}
    wanted = Job(**asked, out=tmp_path)
    found = command._job(parser.parse_args(wanted.flags()))
    assert {f.name: getattr(found, f.name) for f in fields(Job)} == {
        f.name: getattr(wanted, f.name) for f in fields(Job)
    }


def test_the_model_is_the_one_that_the_settings_seed_makes(job, tmp_path):
    made = models.from_configuration(models.from_json(job["data"].parent / "config.json"))
    found, _, _ = trained({**job, "precision": "fp32", "steps": 1, "lr": 1e-30, "warmup": 0, "out": tmp_path})
    assert farthest(found, made.state_dict()) < 1e-20
