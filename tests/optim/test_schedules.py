"""Schedules against torch's and Transformers', step by step."""

from functools import partial

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from course_utils.optim import schedules

TIGHT = {"rel": 1e-10, "abs": 1e-12}
lengths = st.integers(1, 40)


def rates(make, steps):
    """Learning rates that `make(optimizer)`, a scheduler, sets before each of `steps` updates; the base is 0.7."""
    p = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=0.7)
    scheduler, seen = make(optimizer), []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


def ours(steps, schedule, **options):
    """The same through LambdaLR from a function of the step."""
    return rates(lambda optimizer: lr_scheduler.LambdaLR(optimizer, partial(schedule, **options)), steps)


@given(warmup=lengths, start=st.floats(0.01, 1))
@settings(deadline=None, max_examples=30)
def test_warm_up_is_torchs_linear(warmup, start):
    theirs = rates(lambda o: lr_scheduler.LinearLR(o, start_factor=start, total_iters=warmup), 60)
    assert ours(60, schedules.warm_up, warmup=warmup, start=start) == pytest.approx(theirs, **TIGHT)


@given(warmup=st.integers(0, 40))
@settings(deadline=None, max_examples=30)
def test_warm_up_from_zero_is_transformers(warmup):
    theirs = rates(lambda o: transformers.get_constant_schedule_with_warmup(o, warmup), 60)
    assert ours(60, schedules.warm_up, warmup=warmup) == pytest.approx(theirs, **TIGHT)


@given(gamma=st.floats(0.5, 1.1))
@settings(deadline=None, max_examples=30)
def test_exponential_is_torchs(gamma):
    theirs = rates(lambda o: lr_scheduler.ExponentialLR(o, gamma), 60)
    assert ours(60, schedules.exponential, gamma=gamma) == pytest.approx(theirs, **TIGHT)


@given(interval=lengths, gamma=st.floats(0.05, 1.1))
@settings(deadline=None, max_examples=30)
def test_staircase_is_torchs_step(interval, gamma):
    theirs = rates(lambda o: lr_scheduler.StepLR(o, interval, gamma), 60)
    assert ours(60, schedules.staircase, interval=interval, gamma=gamma) == pytest.approx(theirs, **TIGHT)


@given(total=lengths, floor=st.floats(0, 1))
@settings(deadline=None, max_examples=30)
def test_cosine_is_torchs_up_to_its_end_and_then_stays(total, floor):
    theirs = rates(lambda o: lr_scheduler.CosineAnnealingLR(o, total, eta_min=0.7 * floor), total + 1)
    factors = ours(total + 20, schedules.cosine, total=total, floor=floor)
    assert factors[: total + 1] == pytest.approx(theirs, rel=1e-9, abs=1e-10)
    assert factors[total:] == pytest.approx([0.7 * floor] * 20, **TIGHT)


@given(warmup=st.integers(0, 20), after=lengths)
@settings(deadline=None, max_examples=30)
def test_cosine_with_warm_up_is_transformers(warmup, after):
    total = warmup + after
    theirs = rates(lambda o: transformers.get_cosine_schedule_with_warmup(o, warmup, total), total + 1)
    assert ours(total + 1, schedules.cosine, total=total, warmup=warmup) == pytest.approx(theirs, **TIGHT)


@given(warmup=st.integers(0, 40), timescale=st.none() | lengths)
@settings(deadline=None, max_examples=30)
def test_inverse_sqrt_is_transformers(warmup, timescale):
    theirs = rates(lambda o: transformers.get_inverse_sqrt_schedule(o, warmup, timescale), 100)
    assert ours(100, schedules.inverse_sqrt, warmup=warmup, timescale=timescale) == pytest.approx(theirs, **TIGHT)
