"""A training's bytes and operations agree with other witnesses, and what cannot be measured is refused."""

import gc
import os
import threading
from functools import partial
from random import Random

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode
from trainings import loop

from course_utils.capstone import draw, fresh_model
from course_utils.capstone.measuring import measured
from course_utils.errors import CourseError
from course_utils.memory.trace.allocator import CpuAllocator

TASK = draw(Random(5))


def measure_training(train, limit=10**12):
    model = fresh_model(TASK.weights)
    return measured(lambda: train(model, TASK.ids, TASK.labels), model, [TASK.ids, TASK.labels], limit)


def test_bytes_are_those_of_the_allocator():
    """It sees every allocation from before the model was built on; a scalar or two are all that a dispatch mode does not."""
    peak, _ = measure_training(loop)
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
    _, operations = measure_training(loop)
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
    ("train", "message"),
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
def test_what_is_not_counted_is_refused_and_everything_is_as_before_afterwards(train, message):
    before = torch.Tensor.numpy, threading.Thread.start, os.fork
    with pytest.raises(CourseError, match=message):
        measure_training(train)
    assert (torch.Tensor.numpy, threading.Thread.start, os.fork) == before
    assert measure_training(loop)[1] > 0


def test_a_loader_is_welcome_as_long_as_it_works_here():
    def with_workers(model, ids, labels, workers=0):
        for rows, right in DataLoader(TensorDataset(ids[:8], labels[:8]), 4, shuffle=True, num_workers=workers):
            model(rows, labels=right).loss.backward()

    assert measure_training(with_workers)[1] > 10**8
    with pytest.raises(CourseError, match="not counted"):
        measure_training(partial(with_workers, workers=1))
