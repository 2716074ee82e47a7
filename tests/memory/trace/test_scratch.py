"""The bytes that operators hide: measured once by the allocator, and never where that could do harm."""

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from course_utils import models
from course_utils.memory import Meter, Recipe, Workload, dry_run, measure
from course_utils.memory.trace import scratch
from course_utils.memory.trace.scratch import peak_inside
from course_utils.settings import SCALES

aten = torch.ops.aten


def convolve(batch=2, dtype=torch.float32):
    x, weight = torch.ones(batch, 3, 8, 8, dtype=dtype), torch.ones(4, 3, 3, 3, dtype=dtype)
    return (x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)


def test_each_set_of_shapes_is_tried_out_once(monkeypatch):
    runs = []
    allocator = scratch.CpuAllocator
    monkeypatch.setattr(scratch, "CpuAllocator", lambda: runs.append(1) or allocator())
    for batch in (11, 11, 12, 11):
        peak_inside(aten.convolution.default, convolve(batch), {})
    assert len(runs) == 2


def test_what_is_too_large_to_try_is_let_be():
    images, *rest = convolve()
    assert peak_inside(aten.convolution.default, (images, *rest), {}) > 0
    assert peak_inside(aten.convolution.default, (images[:1].expand(2**20, 3, 8, 8), *rest), {}) == 0


def test_a_profiler_that_is_running_is_left_alone():
    layer = nn.Conv2d(3, 4, 3)
    with profile(activities=[ProfilerActivity.CPU]) as outer, Meter(layer):
        layer(torch.ones(1, 3, 8, 8))
    assert any(event.name == "aten::convolution" for event in outer.events())


@pytest.mark.parametrize(
    "recipe", [Recipe("adamw8bit", batch=1, sequence=8), Recipe(precision="bf16", batch=4, sequence=32)]
)
def test_meter_and_dry_run_see_inside_every_phase(recipe):
    """bitsandbytes widens states inside its step; products in half precision have copies, depending on the processor."""
    workload = Workload(models.configuration("distilbert", labels=2, scale=SCALES["smoke"]), recipe)
    arguments = workload.build()
    measured = measure(arguments, workload.step)
    dry = dry_run(workload.build, workload.step)
    for name, row in measured.frame().iterrows():
        assert row["metered"] == pytest.approx(row["peak"], rel=1e-3), name
        assert dry.by_phase[name] == pytest.approx(row["peak"], rel=1e-3), name


def test_as_on_cuda_nothing_of_this_processor_counts():
    def build():
        return (nn.Conv2d(3, 4, 3),)

    usage = dry_run(build, lambda layer: layer(torch.ones(1, 3, 8, 8)), device="cuda")
    assert not any(piece.operator.startswith("inside") for piece in usage.pieces)


@pytest.mark.parametrize(("shape", "turned"), [((40, 130), False), ((130, 40), True), ((300, 300), False)])
def test_what_lapack_takes_for_numbers_is_known_without_them(shape, turned):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    args = (matrix.T if turned else matrix), False, True
    allocator = scratch.CpuAllocator()
    with allocator.recording(), allocator.measured():
        returned = aten._linalg_svd.default(*args)
    assert peak_inside(aten._linalg_svd.default, args, {}, returned) == allocator.account().above_start
    assert allocator.account().above_start > sum(tensor.nbytes for tensor in returned) + matrix.nbytes / 2


@pytest.mark.parametrize(("added", "hidden"), [(torch.bfloat16, 64 * 4), (torch.float32, 0)])
def test_a_sum_in_place_copies_what_is_of_another_type(added, hidden):
    args = torch.zeros(64, 64), torch.ones(64, dtype=added)  # it is copied before it is spread over the rows
    allocator = scratch.CpuAllocator()
    with allocator.recording(), allocator.measured():
        aten.add_.Tensor(*args)
    assert peak_inside(aten.add_.Tensor, args, {}) == allocator.account().above_start == hidden
