"""A training within limits: what is measured agrees with other witnesses, what cannot be measured is refused."""

import gc
import os
import threading
from functools import partial
from random import Random

import pytest
import sample_question
import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

from course_utils.capstone import draw, fresh_model
from course_utils.capstone.measuring import measured
from course_utils.errors import CourseError
from course_utils.grading import trained
from course_utils.grading.judge import grade
from course_utils.grading.run import run_cases
from course_utils.grading.trained import reaches
from course_utils.memory.trace.allocator import CpuAllocator

TASK = draw(Random(5))
FIELDS = {**sample_question.FIELDS, "answer": "train"}
MIB = 2**20


def loop(model, ids, labels, steps=2, size=8):
    """AdamW, one tensor at a time."""
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for step in range(steps):
        rows = slice(step * size, step * size + size)
        model(ids[rows], attention_mask=ids[rows] != 0, labels=labels[rows]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def of(train, most=10**12):
    model = fresh_model(TASK.weights)
    return measured(lambda: train(model, TASK.ids, TASK.labels), model, [TASK.ids, TASK.labels], most)


def question(**changes):
    given = {"bytes": 20 * MIB, "operations": 10**10, "target": 0.0, **FIELDS}
    return trained(draw, **{**given, **changes})


def result(train, **changes):
    asked = question(**changes)
    cases = asked.cases()
    return grade(asked, cases, run_cases(asked, train, cases))


def test_bytes_are_those_of_the_allocator():
    """It sees every allocation from before the model was built on; a scalar or two are all that a dispatch mode does not."""
    peak, _ = of(loop)
    allocator = CpuAllocator()
    gc.collect()  # what other tests left would be released while the record is kept
    with allocator.recording():
        model, ids, labels = fresh_model(TASK.weights), TASK.ids.clone(), TASK.labels.clone()
        with allocator.measured():
            loop(model, ids, labels)
    account = allocator.account()
    assert peak == pytest.approx(account.at_start + account.above_start, abs=64)


def test_operations_are_torchs_products_and_a_little_more():
    with FlopCounterMode(display=False) as torchs:
        loop(fresh_model(TASK.weights), TASK.ids, TASK.labels)
    _, operations = of(loop)
    products = torchs.get_total_flops()  # without attention, for which it has no formula on a CPU
    assert products < operations < 1.25 * products


def numpy(model, ids, labels):
    model.classifier.weight.detach().numpy()


def thread(model, ids, labels):
    threading.Thread(target=loop, args=(model, ids, labels)).start()


def fork(model, ids, labels):
    os.fork()


def switched_off(model, ids, labels):
    with _disable_current_modes():
        loop(model, ids, labels)


def excluded(model, ids, labels):
    with torch._C._DisableTorchDispatch():
        loop(model, ids, labels)


@pytest.mark.parametrize(
    ("train", "told"),
    [
        (numpy, "numpy leads to work that is not counted"),
        (lambda model, ids, labels: torch.compile(model), "compile leads to work that is not counted"),
        (thread, "start starts work that is not counted"),
        (fork, "fork starts work that is not counted"),
        (lambda model, ids, labels: os.system("true"), "system starts work that is not counted"),
        (switched_off, "no longer counted"),
        (excluded, "no longer counted"),
        (lambda model, ids, labels: torch.linalg.inv(torch.eye(2)), "cannot be counted"),
    ],
)
def test_what_is_not_counted_is_refused_and_everything_is_as_before_afterwards(train, told):
    before = torch.Tensor.numpy, threading.Thread.start, os.fork
    with pytest.raises(CourseError, match=told):
        of(train)
    assert (torch.Tensor.numpy, threading.Thread.start, os.fork) == before
    assert of(loop)[1] > 0


def test_a_loader_is_welcome_as_long_as_it_works_here():
    def with_workers(model, ids, labels, workers=0):
        for rows, right in DataLoader(TensorDataset(ids[:8], labels[:8]), 4, shuffle=True, num_workers=workers):
            model(rows, labels=right).loss.backward()

    assert of(with_workers)[1] > 10**8
    with pytest.raises(CourseError, match="not counted"):
        of(partial(with_workers, workers=1))


def test_an_endless_training_ends_at_twice_its_operations():
    graded = result(partial(loop, steps=10**9, size=1), operations=10**8)
    assert "2 times the 0.1 billion that are allowed, and the training was stopped there" in graded.verdicts[0].sentence


def test_a_broken_limit_says_by_how_much():
    assert result(loop).passed
    sentence = result(loop, bytes=10 * MIB).verdicts[0].sentence
    assert sentence.startswith("`bytes` is ")
    assert "where 10.0 MiB is allowed" in sentence
    assert sentence.endswith("% too much.")


def test_the_judge_says_how_far_the_target_is():
    sentence = result(loop, target=0.9).verdicts[0].sentence
    assert sentence.startswith("`weights` reach ")
    assert sentence.endswith("on files never seen; the target is 90%.")


def weights(**changes):
    found = {name: p.detach() for name, p in fresh_model(TASK.weights).named_parameters()}
    return {name: value for name, value in {**found, **changes}.items() if value is not None}


BIAS = "classifier.bias"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([1], "no weights by name"),
        (weights(**{BIAS: None}), "lack `classifier.bias`"),
        (weights(lora=torch.ones(2)), "have `lora` beside"),
        (weights(**{BIAS: torch.ones(6)}), r"of the shape \(6,\)"),
        (weights(**{BIAS: torch.ones(5, dtype=torch.int64)}), "in another form"),
        (weights(**{BIAS: 3}), "in another form"),
        (weights(**{BIAS: torch.full((5,), torch.nan)}), "NaN or infinity"),
    ],
)
def test_weights_that_are_none_of_this_model_are_told_apart(given, told):
    with pytest.raises(AssertionError, match=told):
        assert not reaches(TASK, 0.0).broken(given), reaches(TASK, 0.0).broken(given)


def test_no_measurement_passes_that_no_training_can_have():
    asked = question()
    (case,) = asked.cases()
    right = asked.expected(case.inputs)
    assert "the measurement was lost" in right["bytes"].broken(0)
    assert "the measurement was lost" in right["operations"].broken(0)
    assert "no whole number" in right["bytes"].broken(1.5)


def test_figures_are_bytes_operations_and_percent():
    asked = question()
    cases = asked.cases()
    (outcome,) = run_cases(asked, loop, cases)
    figures = asked.figures(asked.expected(cases[0].inputs), outcome.values)
    assert figures["bytes"] == outcome.values["bytes"]
    assert figures["operations"] == outcome.values["operations"]
    assert 0 <= figures["accuracy"] <= 100


def test_its_time_limit_is_its_own_and_follows_that_of_all():
    assert question().limit() == 20
    assert question(seconds=120.0).limit() == 120
    assert question(seconds=120.0).limit(10) == 60


def test_what_goes_to_the_learners_process_holds_nothing_held_out():
    import cloudpickle

    asked = question()
    asked.cases()
    assert len(cloudpickle.dumps(asked.for_learners())) < 10_000
