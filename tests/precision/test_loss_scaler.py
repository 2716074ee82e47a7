"""The scaler by hand against torch's, decision by decision, on streams in which gradients overflow."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils.precision import LossScaler

FINITE = st.floats(-4.0, 4.0, width=32)
gradient = st.one_of(FINITE, FINITE, FINITE, st.sampled_from([math.inf, -math.inf, math.nan]))
streams = st.lists(st.tuples(gradient, gradient, st.booleans()), min_size=1, max_size=14)
options = st.fixed_dictionaries(
    {
        "init_scale": st.sampled_from([1.0, 3.0, 2.0**16, 2.0**127]),
        "growth_factor": st.sampled_from([2.0, 1.7, 4.0]),
        "backoff_factor": st.sampled_from([0.5, 0.25, 0.3]),
        "growth_interval": st.integers(1, 4),
    }
)


def drive(scaler, stream):
    """Per update: the scale after it, the count of finite ones, the parameters."""
    weights = [torch.ones(2, requires_grad=True), torch.ones((), requires_grad=True)]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    rows = []
    for first, second, unscales in stream:
        optimizer.zero_grad()
        loss = (weights[0] * torch.tensor([first, 0.5])).sum() + weights[1] * second
        scaler.scale(loss).backward()
        if unscales:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
        scaler.step(optimizer)
        scaler.update()
        state = scaler.state_dict()
        rows.append((scaler.get_scale(), state["_growth_tracker"], [w.detach().clone() for w in weights]))
    return rows


@given(options=options, stream=streams)
@settings(max_examples=80, deadline=None)
def test_every_decision_is_torch_s(options, stream):
    ours, theirs = drive(LossScaler(**options), stream), drive(torch.amp.GradScaler("cpu", **options), stream)
    for (scale, count, weights), (its_scale, its_count, its_weights) in zip(ours, theirs, strict=True):
        assert (scale, count) == (its_scale, its_count)
        for w, its in zip(weights, its_weights, strict=True):
            assert torch.allclose(w, its, rtol=1e-5, atol=1e-6, equal_nan=True)


@given(stream=streams, cut=st.integers(0, 14))
@settings(max_examples=40, deadline=None)
def test_its_state_goes_over_to_torch_s_and_comes_back(stream, cut):
    ours = LossScaler(growth_interval=2)
    drive(ours, stream[:cut])
    theirs = torch.amp.GradScaler("cpu")
    theirs.load_state_dict(ours.state_dict())
    reloaded = LossScaler()
    reloaded.load_state_dict(theirs.state_dict())
    rest = stream[cut:]
    assert [row[:2] for row in drive(reloaded, rest)] == [row[:2] for row in drive(theirs, rest)]


def test_an_update_with_an_overflow_is_left_out_and_counted():
    scaler = LossScaler(init_scale=8.0)
    rows = drive(scaler, [(1.0, 1.0, False), (math.inf, 1.0, False), (1.0, math.nan, True)])
    assert [row[0] for row in rows] == [8.0, 4.0, 2.0]
    assert torch.equal(rows[0][2][0], rows[2][2][0])
    assert scaler.state_dict()["skipped"] == scaler.skipped == 2


def test_two_optimizers_step_by_themselves_but_share_the_scale():
    ours, theirs = LossScaler(8.0), torch.amp.GradScaler("cpu", 8.0)
    for scaler in (ours, theirs):
        healthy, broken = (torch.ones((), requires_grad=True) for _ in range(2))
        optimizers = [torch.optim.SGD([p], lr=0.5) for p in (healthy, broken)]
        scaler.scale(healthy + broken * math.inf).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        assert (healthy.item(), broken.item(), scaler.get_scale()) == (0.5, 1.0, 4.0)


MISUSES = {
    "unscale_ before any scale": ["unscale_"],
    "step before any scale": ["step"],
    "unscale_ twice": ["scale", "unscale_", "unscale_"],
    "unscale_ after step": ["scale", "step", "unscale_"],
    "step twice": ["scale", "unscale_", "step", "step"],
}


@pytest.mark.parametrize("calls", MISUSES.values(), ids=MISUSES)
@pytest.mark.parametrize("is_second_update", [False, True], ids=["first update", "second"])
def test_calls_out_of_order_are_refused_where_torch_refuses_them(calls, is_second_update):
    for kind in (LossScaler, lambda: torch.amp.GradScaler("cpu")):
        weight, scaler = torch.nn.Parameter(torch.ones(3)), kind()
        optimizer = torch.optim.SGD([weight], lr=1.0)

        def call(name, weight=weight, scaler=scaler, optimizer=optimizer):
            scaler.scale((2 * weight).sum()).backward() if name == "scale" else getattr(scaler, name)(optimizer)

        weight.grad = torch.ones(3)
        if is_second_update and "scale" in calls:
            call("scale")
            call("step")
            scaler.update()
            optimizer.zero_grad()
        for name in calls[:-1]:
            call(name)
        before = weight.grad.clone(), weight.detach().clone()
        with pytest.raises((RuntimeError, AssertionError)):
            call(calls[-1])
        assert torch.equal(weight.grad, before[0])
        assert torch.equal(weight, before[1])


def test_gradients_of_float16_are_refused_as_torch_refuses_them():
    for scaler in (LossScaler(), torch.amp.GradScaler("cpu")):
        weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float16))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        scaler.scale(weight.float().sum()).backward()
        for call in (scaler.unscale_, scaler.step):
            with pytest.raises(ValueError, match=r"(?i)float16|fp16"):
                call(optimizer)
