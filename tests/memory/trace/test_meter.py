"""The meter's kinds, modules and phases, compared with known bytes of a model; its peak, with PyTorch's own tracker."""

import pytest
import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker

from course_utils import models
from course_utils.memory import Meter
from course_utils.memory.step.recipe import Recipe
from course_utils.memory.step.workload import Workload
from course_utils.memory.trace.log import KINDS
from course_utils.settings import SCALES


def metered(workload, steps=1):
    arguments = workload.build()
    workload.step(*arguments)
    with Meter(*arguments[:2]) as meter:
        for _ in range(steps):
            workload.step(*arguments)
    return meter.usage(), arguments


@pytest.fixture(scope="module")
def small():
    config = models.configuration("distilbert", labels=3, scale=SCALES["smoke"])
    return metered(Workload(config, Recipe(batch=4, sequence=16)))


def test_what_is_there_is_known_by_kind(small):
    usage, (model, optimizer, _) = small
    start = usage.timeline.iloc[0]
    state = [v for values in optimizer.state.values() for v in values.values()]
    assert start["parameters"] == models.parameter_bytes(model)
    assert start["optimizer state"] == sum(v.nbytes for v in state)
    assert start["buffers"] == sum(b.nbytes for b in model.buffers())
    assert start["gradients"] == 0


def test_the_kinds_add_up_and_the_step_leaves_nothing(small):
    usage, _ = small
    totals = usage.timeline[list(KINDS)].sum(axis=1)
    assert totals.max() == usage.peak == sum(usage.split.values()) == max(usage.by_phase.values())
    assert totals.iloc[-1] == usage.resident
    assert (usage.timeline[list(KINDS)] >= 0).all(axis=None)


def test_gradients_are_as_large_as_parameters_when_backward_ends(small):
    usage, (model, *_) = small
    backward = usage.timeline[usage.timeline["phase"] == "backward"]
    assert backward["gradients"].iloc[-1] == models.parameter_bytes(model)


def test_pieces_name_their_module(small):
    usage, (model, *_) = small
    names = {name for name, _ in model.named_modules()}
    assert {piece.module for piece in usage.pieces} <= names
    largest = max((piece for piece in usage.pieces if piece.kind == "parameters"), key=lambda piece: piece.bytes)
    assert (largest.module, largest.bytes) == ("distilbert.embeddings.word_embeddings", 1000 * 32 * 4)
    born_backward = [p for p in usage.pieces if p.kind == "backward temporaries" and p.operator.startswith("aten.mm")]
    assert born_backward
    assert all(piece.module for piece in born_backward)


def test_a_module_called_twice_and_inside_itself_keeps_the_stack_straight():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

        def forward(self, x):
            return self.inner(self.inner(x)) * 2

    model, x = Twice(), torch.ones(4, 8)
    with Meter(model) as meter:
        (model(x) + model(x)).sum().backward()
    births = [(p.module, p.operator) for p in meter.usage().pieces if p.kind == "activations"]
    assert births.count(("inner.0", "aten.addmm.default")) == 4
    assert births.count(("", "aten.mul.Tensor")) == 2


def test_a_forward_that_fails_leaves_the_stack_and_the_hooks_clean():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5))
    meter = Meter(model)
    with pytest.raises(RuntimeError), meter:
        model(torch.ones(1, 4))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    assert meter.usage().peak > 0
    with Meter(model) as second:
        model[0](torch.ones(1, 4)).sum().backward()
    assert "backward" in second.usage().by_phase


def test_accumulation_keeps_gradients_through_the_next_forward():
    model, x = nn.Linear(64, 64, bias=False), torch.ones(8, 64)
    with Meter(model) as meter:
        for _ in range(2):
            model(x).sum().backward()
    forward = meter.usage().timeline.query("phase == 'forward'")
    assert forward["gradients"].iloc[-1] == model.weight.nbytes


def test_clipping_and_the_update_are_no_activations():
    model, x = nn.Linear(64, 64, bias=False), torch.ones(8, 64)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with Meter(model, optimizer) as meter:
        model(x).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    kinds = {piece.kind for piece in meter.usage().pieces if "norm" in piece.operator or "sqrt" in piece.operator}
    assert kinds == {"optimizer temporaries"}
    state = [piece for piece in meter.usage().pieces if piece.kind == "optimizer state"]
    assert sum(piece.bytes for piece in state) == 2 * model.weight.nbytes + 4


def test_memory_that_grows_and_shrinks_in_place_is_followed():
    model = nn.Identity()
    model.p = nn.Parameter(torch.zeros(1))
    with Meter(model) as meter:
        buffer = torch.empty(10)
        buffer.resize_(1000)
        del buffer
    usage = meter.usage()
    assert usage.peak - usage.resident == 4000
    assert usage.timeline[list(KINDS)].iloc[-1].sum() == usage.resident


def test_rounding_to_the_allocators_grain():
    model = nn.Linear(3, 3)
    with Meter(model, round_to=512) as meter:
        model(torch.ones(1, 3))
    assert meter.usage().peak == 512 * 4  # weight, bias, input, output


def test_pytorchs_own_tracker_sees_the_same_peak():
    """The peak by `MemTracker`, a private tool of torch's."""
    workload = Workload(models.configuration("gpt2", scale=SCALES["smoke"]), Recipe("sgd", batch=2, sequence=16))
    usage, (model, optimizer, batches) = metered(workload)
    tracker = MemTracker()
    tracker.track_external(model, optimizer, *batches[0].values())
    with tracker:
        workload.step(model, optimizer, batches)
    total = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    assert usage.peak == pytest.approx(total, rel=1e-3)
