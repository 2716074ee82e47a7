"""A measured step compared with known bytes and with the meter; errors pass through and leave nothing behind."""

import gc
import os

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from course_utils import models, optim
from course_utils.errors import CourseError
from course_utils.memory import measure, phase
from course_utils.memory.step.recipe import Recipe
from course_utils.memory.step.workload import Workload
from course_utils.memory.trace.allocator import CudaAllocator
from course_utils.settings import SCALES

SMALL = SCALES["smoke"]


def one_layer(width=512, batch=256):
    return nn.Linear(width, width, bias=False), torch.ones(batch, width)


def plain_step(model, optimizer, x):
    def step():
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_the_peak_of_one_layer_is_known_exactly():
    model, x = one_layer()
    optimizer = optim.AdamW(model.parameters())
    weight, output = 512 * 512 * 4, 256 * 512 * 4
    measured = measure((model, optimizer), plain_step(model, optimizer, x))
    assert measured.resident == 3 * weight + 4 + x.nbytes
    assert measured.by_phase["forward"] - measured.resident == pytest.approx(output + 4, abs=64)
    update = weight + optim.AdamW.temporary_bytes((512, 512))
    assert measured.by_phase["update"] - measured.resident == pytest.approx(update, abs=64)
    assert list(measured.by_phase) == ["forward", "backward", "update"]
    assert (measured.peak, measured.peak_phase) == (measured.by_phase["update"], "update")


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("distilbert", Recipe("adamw-foreach", batch=2, sequence=32, accumulation=3, clipping=True)),
        ("distilbert", Recipe(batch=8, sequence=32, checkpointing=True)),
        ("gpt2", Recipe("adafactor", batch=4, sequence=32)),
        ("llama", Recipe("adafactor-transformers", batch=4, sequence=32)),
        ("llama", Recipe("sgd", batch=2, sequence=32, attention="eager")),
    ],
    ids=lambda value: value if isinstance(value, str) else value.optimizer,
)
def test_meter_and_allocator_agree(name, recipe):
    labels = 3 if name == "distilbert" else None
    workload = Workload(models.configuration(name, labels=labels, scale=SMALL), recipe)
    arguments = workload.build()
    measured = measure(arguments, workload.step)
    assert abs(measured.not_attributed) <= 1e-3 * measured.peak
    assert measured.usage.peak_phase == measured.peak_phase
    for phase_name, row in measured.frame().iterrows():
        assert abs(row["not_attributed"]) <= 1e-3 * row["peak"], phase_name
    assert sum(measured.split.values()) == measured.peak


@torch.library.custom_op("course_tests::doubled_in_steps", mutates_args=())
def doubled_in_steps(x: torch.Tensor) -> torch.Tensor:
    scratch = torch.cat([x, x, x])
    return scratch[: len(x)] + x


def test_what_an_operator_hides_is_the_line_that_is_not_attributed():
    layer, x = nn.Linear(4, 4), torch.ones(1000)
    measured = measure((layer,), lambda: doubled_in_steps(x))
    assert measured.not_attributed == 3 * x.nbytes
    assert "doubled_in_steps" in measured.operator


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize(
    ("layout", "dtype"), [(torch.contiguous_format, torch.bfloat16), (torch.channels_last, torch.float32)]
)
def test_what_the_library_behind_a_convolution_takes_is_found(onednn, layout, dtype, monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", onednn)
    layers = nn.Sequential(nn.Conv2d(8, 24, 3), nn.Conv2d(24, 8, 3, bias=False)).to(dtype=dtype, memory_format=layout)
    x = torch.randn(4, 8, 32, 32, dtype=dtype, requires_grad=True).to(memory_format=layout)
    measured = measure((layers,), lambda: layers(x).sum().backward())
    assert measured.not_attributed == 0
    assert any("inside aten.convolution" in piece.operator for piece in measured.usage.pieces)


def test_without_onednn_a_convolution_unfolds_its_pictures(monkeypatch):
    """A convolution in which every window becomes a column: k²·B·C·H·W numbers."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    layer, x = nn.Conv2d(8, 8, 3, padding=1, bias=False), torch.randn(4, 8, 32, 32)
    with torch.no_grad():
        measured = measure((layer,), lambda: layer(x))
    assert measured.peak - measured.resident == (9 + 1) * x.nbytes


def test_gradients_left_from_before_are_dropped():
    model, x = one_layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    clean = measure((model, optimizer), plain_step(model, optimizer, x))
    model.weight.grad = torch.ones_like(model.weight)
    assert measure((model, optimizer), plain_step(model, optimizer, x)).peak == clean.peak


def test_nested_phases_and_what_is_outside_of_them_are_told_apart():
    model, x = one_layer()

    def step():
        with phase("outer"):
            with phase("inner"), torch.no_grad():
                model(x[:10])
            with torch.no_grad():
                model(x[:100])
        with torch.no_grad():
            outputs = model(x)
        return outputs.shape

    measured = measure((model,), step)
    above = {name: peak - measured.resident for name, peak in measured.by_phase.items()}
    assert above == {"outer": 100 * 512 * 4, "inner": 10 * 512 * 4, "forward": 256 * 512 * 4}
    assert measured.peak_phase == "forward"


@pytest.mark.parametrize(
    ("step", "timed", "message"), [(lambda: None, 1, "nothing with tensors"), (lambda: None, -1, "timed=-1")]
)
def test_a_measurement_of_nothing_is_refused(step, timed, message):
    with pytest.raises(CourseError, match=message):
        measure((nn.Linear(2, 2),), step, timed=timed)


def test_a_model_or_an_optimizer_of_another_kind_is_refused():
    model, x = one_layer(8, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    step = plain_step(model, optimizer, x)
    for wrong in (optimizer, "model", nn.ReLU()):
        with pytest.raises(CourseError, match="no model|a model with parameters"):
            measure((wrong,), step)
    with pytest.raises(CourseError, match="trains no parameter of this model"):
        measure((model, torch.optim.AdamW(nn.Linear(2, 2).parameters())), step)


def test_an_optimizer_that_only_the_step_knows_is_counted():
    def optimizer_state(with_optimizer):
        model, x = one_layer(8, 2)
        optimizer = torch.optim.AdamW(model.parameters())
        parts = (model, optimizer) if with_optimizer else (model,)
        return measure(parts, plain_step(model, optimizer, x)).split["optimizer state"]

    assert optimizer_state(True) == optimizer_state(False) == 2 * 8 * 8 * 4 + 4


def test_what_is_built_inside_is_counted_whole():
    """Tensors that no forward pass is given are counted too: a target, a data set, a plain attribute of a module."""

    class Holding(nn.Linear):
        def __init__(self):
            super().__init__(8, 8)
            self.table = torch.ones(1000)

    def build():
        return Holding(), torch.ones(500, 8), [torch.ones(100, 8)]

    def step(model, data, targets):
        F.mse_loss(model(data[:100]), targets[0]).backward()

    parts = measure(build, step), measure(build(), step)
    saved = 4 * (8 * 8 + 8 + 1000 + 500 * 8 + 100 * 8)
    with_gradients = saved + 4 * 72  # of the first step
    assert [part.resident for part in parts] == [with_gradients] * 2
    assert parts[0].peak == parts[1].peak


def test_a_measurement_inside_another_is_refused():
    model, x = one_layer(8, 2)
    with pytest.raises(CourseError, match="Another profiler"):
        measure((model,), lambda: measure((model,), lambda: model(x)))


def failing_step(model, x):
    """A step that raises `ZeroDivisionError` in its second run."""
    calls = []

    def step():
        os.write(2, b"said by the step;")
        model(x)
        calls.append(1)
        if len(calls) == 2:
            raise ZeroDivisionError

    return step


def test_what_a_step_writes_before_it_fails_is_passed_on(capfd):
    model, x = one_layer(8, 2)
    with pytest.raises(ZeroDivisionError):
        measure((model,), failing_step(model, x))
    os.write(2, b"said afterwards")
    assert capfd.readouterr().err == "said by the step;said by the step;said afterwards"


def test_an_error_in_the_step_comes_through_and_the_next_measurement_works():
    model, x = one_layer(8, 2)
    with pytest.raises(ZeroDivisionError):
        measure((model,), failing_step(model, x))
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    measure((model, optimizer), plain_step(model, optimizer, x))


class StandInAllocator:
    """A stand-in for `torch.cuda`'s functions on memory, with known figures."""

    def __init__(self, monkeypatch, in_use):
        self.in_use = self.peak = in_use
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.reset)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.peak)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: self.in_use)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)

    def reset(self, device):
        self.peak = self.in_use

    def allocate(self, size):
        self.in_use += size
        self.peak = max(self.peak, self.in_use)


def test_on_cuda_the_caching_allocator_is_asked_phase_by_phase(monkeypatch):
    cuda = StandInAllocator(monkeypatch, in_use=1100)
    allocator = CudaAllocator(torch.device("cuda"))
    with allocator.recording(), allocator.measured():
        allocator.begin_phase("forward")
        cuda.allocate(50)
        cuda.allocate(-20)
        allocator.begin_phase("backward")
        cuda.allocate(-30)
        allocator.begin_phase("forward")
        cuda.allocate(40)
    account = allocator.account()
    assert (account.above_start, account.by_phase) == (50, {"forward": 50, "backward": 30})


def test_checkpointing_by_hand_is_told_apart_from_activations():
    """Both kinds of checkpointing: the re-entrant one runs forward without a graph, the other has hooks on saved tensors."""
    for reentrant in (False, True):
        model, x = one_layer(128, 64)
        gc.collect()

        def step(reentrant=reentrant, model=model, x=x):
            hidden = x.clone().requires_grad_()
            checkpoint(lambda h: F.relu(model(h)).sin(), hidden, use_reentrant=reentrant).sum().backward()
            model.zero_grad()

        measured = measure((model,), step)
        assert abs(measured.not_attributed) <= 64
        assert any(piece.kind == "recomputed" for piece in measured.usage.pieces), reentrant


def test_a_gradient_an_example_is_measured_by_torchs_functions():
    """`torch.func` gives modules wrapped tensors, and holds the gradients of all examples at once."""
    from torch.func import functional_call, grad, vmap

    examples = 64

    def step(model, x):
        weights = dict(model.named_parameters())
        gradients = vmap(grad(lambda p, example: functional_call(model, p, (example,)).sum()), (None, 0))(weights, x)
        model.weight.grad = gradients["weight"].mean(0)

    model, x = one_layer(width=64, batch=examples)
    assert measure((model, x), step, timed=0).peak > examples * model.weight.nbytes
