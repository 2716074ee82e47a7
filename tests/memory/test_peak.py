import contextlib
import os
import weakref

import pytest
import torch
from torch import nn

from course_utils import models, optim
from course_utils.errors import CourseError
from course_utils.memory import distinct_bytes, instants, peak_by_phase, phase, predicted_peak, saved_bytes
from course_utils.memory import peak as peak_module
from course_utils.memory.phases import observed_by
from course_utils.settings import SCALES

MIB = 2**20


def one_layer(width=512, batch=256):
    model = nn.Linear(width, width, bias=False)
    return model, {"x": torch.ones(batch, width)}


def plain_step(model, optimizer, batch, zero=True):
    def step():
        with phase("forward"):
            loss = model(**batch).sum() if "x" not in batch else model(batch["x"]).sum()
        with phase("backward"):
            loss.backward()
        with phase("update"):
            optimizer.step()
        if zero:
            optimizer.zero_grad()

    return step


def test_the_peak_of_one_layer_is_known_exactly():
    model, batch = one_layer()
    optimizer = optim.AdamW(model.parameters())
    weight, output = 512 * 512 * 4, 256 * 512 * 4
    peaks = peak_by_phase(plain_step(model, optimizer, batch), model, optimizer, batch)
    before = 3 * weight + 4 + batch["x"].nbytes
    assert peaks.resident == before
    assert peaks.by_phase["forward"] - before == output + 4
    assert peaks.by_phase["update"] - before == pytest.approx(weight + optim.AdamW.temporary_bytes((512, 512)), abs=64)
    assert set(peaks.by_phase) == {"forward", "backward", "update"}
    assert peaks.peak == max(peaks.by_phase.values())


def test_gradients_dropped_at_the_start_of_a_step_are_not_counted_twice():
    model, batch = one_layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inner = plain_step(model, optimizer, batch, zero=False)

    def zero_first():
        optimizer.zero_grad()
        inner()

    first = peak_by_phase(zero_first, model, optimizer, batch)
    last = peak_by_phase(plain_step(model, optimizer, batch), model, optimizer, batch)
    assert first.by_phase == last.by_phase
    assert first.resident - last.resident == 512 * 512 * 4


def test_a_phase_entered_twice_keeps_its_larger_peak():
    model, batch = one_layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        for rows in (1, 256, 1):
            with phase("forward"), torch.no_grad():
                model(batch["x"][:rows])

    peaks = peak_by_phase(step, model, optimizer, batch)
    assert peaks.by_phase["forward"] - peaks.resident == 256 * 512 * 4


def test_a_step_without_phases_is_refused():
    model, batch = one_layer(8, 2)
    with pytest.raises(CourseError, match=r"memory\.phase"):
        peak_by_phase(lambda: None, model, torch.optim.SGD(model.parameters(), lr=1), batch)


def test_an_error_in_the_step_comes_through_and_leaves_no_trace(capfd):
    model, batch = one_layer(8, 2)

    def step():
        os.write(2, b"said by the step;")
        with phase("forward"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        peak_by_phase(step, model, torch.optim.SGD(model.parameters(), lr=1), batch)
    os.write(2, b"said afterwards")
    assert capfd.readouterr().err == "said by the step;said afterwards"
    with observed_by(lambda name: contextlib.nullcontext()):  # the failed measurement is over
        pass


def test_measurements_do_not_nest():
    with (
        observed_by(lambda name: contextlib.nullcontext()),
        pytest.raises(RuntimeError, match="do not nest"),
        observed_by(None),
    ):
        pass


class StandInAllocator:
    """What `torch.cuda` says of memory, with a known course of events; `others` belong to somebody else."""

    def __init__(self, monkeypatch, others=1000):
        self.now = self.high = 100 + others
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.reset)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.high)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: self.now)

    def reset(self, device):
        self.high = self.now

    def allocate(self, size):
        self.now += size
        self.high = max(self.high, self.now)


def test_on_cuda_the_caching_allocator_is_asked_phase_by_phase(monkeypatch):
    allocator = StandInAllocator(monkeypatch)

    def step():
        with phase("forward"):
            allocator.allocate(50)
            allocator.allocate(-20)
        with phase("backward"):
            allocator.allocate(-30)

    peaks = peak_module._peaks_on_cuda(step, torch.device("cuda"), ours=100)
    assert (peaks.resident, peaks.by_phase) == (100, {"forward": 150, "backward": 130})


def test_on_cuda_a_phase_around_others_keeps_its_own_peak(monkeypatch):
    allocator = StandInAllocator(monkeypatch)

    def step():
        with phase("outer"):
            allocator.allocate(500)
            allocator.allocate(-500)
            with phase("inner"):
                allocator.allocate(10)
                allocator.allocate(-10)
            with phase("second"):
                allocator.allocate(20)
                allocator.allocate(-20)

    peaks = peak_module._peaks_on_cuda(step, torch.device("cuda"), ours=100)
    assert peaks.by_phase == {"inner": 110, "second": 120, "outer": 600}


def test_on_the_cpu_phases_nest_too():
    model, batch = one_layer()

    def step():
        with phase("outer"), torch.no_grad():
            model(batch["x"])
            with phase("inner"):
                model(batch["x"][:1])

    peaks = peak_by_phase(step, model, torch.optim.SGD(model.parameters(), lr=1), batch)
    assert peaks.by_phase["outer"] - peaks.resident == 256 * 512 * 4
    assert peaks.by_phase["inner"] - peaks.resident == 512 * 4


@pytest.mark.parametrize(("batch", "sequence"), [(2, 16), (8, 32)])
def test_pencil_and_measurement_of_a_transformer_agree(batch, sequence):
    model = models.build("distilbert", labels=3, scale=SCALES["laptop"])
    ids = torch.randint(5, 1000, (batch, sequence))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.zeros(batch, dtype=torch.long)}
    optimizer = optim.AdamW(model.parameters())

    def step():
        with phase("forward"):
            loss = model(**inputs).loss
        with phase("backward"):
            loss.backward()
        with phase("update"):
            optimizer.step()
        optimizer.zero_grad()

    measured = peak_by_phase(step, model, optimizer, inputs).peak
    predicted = predicted_peak(
        instants(
            parameters=models.parameter_bytes(model),
            state=sum(optim.AdamW.state_bytes(p.shape) for p in model.parameters()),
            activations=saved_bytes(lambda: model(**inputs), model),
            temporaries=max(optim.AdamW.temporary_bytes(p.shape) for p in model.parameters()),
        )
    )
    assert predicted == pytest.approx(measured, rel=0.05)


def test_saved_bytes_of_a_known_layer():
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 4, bias=False))
    x = torch.ones(32, 8)
    hidden = 32 * 16 * 4
    assert saved_bytes(lambda: model(x), model) == x.nbytes + hidden  # ReLU's output is also the next layer's input
    assert saved_bytes(lambda: model(x.requires_grad_()), model) == x.nbytes + hidden
    with torch.no_grad():
        assert saved_bytes(lambda: model(x), model) == 0


def test_distinct_bytes_counts_shared_memory_once_and_whole():
    base = torch.ones(10, 10)
    assert distinct_bytes([base, base.t(), base[:1]]) == distinct_bytes([base[:1]]) == 400
    assert distinct_bytes([base, base.clone()]) == 800
    assert distinct_bytes([]) == 0


def test_saved_bytes_frees_what_it_looked_at():
    x = torch.ones(1000, requires_grad=True)
    freed = []

    def forward():
        y = x.exp()  # saves its own output
        weakref.finalize(y.untyped_storage(), freed.append, True)
        return y

    for _ in range(3):
        assert saved_bytes(forward, nn.Identity()) == 4000
    assert freed == [True] * 3


def test_phases_are_seen_only_by_who_measures():
    calls = []

    @contextlib.contextmanager
    def observer(name):
        calls.append(name)
        yield

    with phase("before"):
        pass
    with observed_by(observer), phase("measured"):
        pass
    with phase("after"):
        pass
    assert calls == ["measured"]


def test_instants_are_as_the_pencil_says():
    by_instant = instants(parameters=10, state=20, activations=7, temporaries=3)
    totals = {name: sum(parts.values()) for name, parts in by_instant.items()}
    assert totals == {"start of backward": 37, "end of backward": 40, "update": 43}
    assert predicted_peak(by_instant) == 43
