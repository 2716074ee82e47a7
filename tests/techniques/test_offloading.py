"""Saved tensors on disk: the same gradients, bytes counted, memory free meanwhile, and no file left."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from course_utils import memory
from course_utils.techniques import SavedOnDisk


def network():
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(96, 96), nn.LayerNorm(96), nn.GELU(), nn.Dropout(0.2)) for _ in range(3)]
    return nn.Sequential(*layers), torch.randn(64, 96)


def gradients(model, x, context):
    model.zero_grad()
    torch.manual_seed(1)
    with context:
        loss = model(x).square().sum()
    loss.backward()
    return [p.grad for p in model.parameters()]


def test_gradients_are_those_without_bit_for_bit_and_bytes_are_counted(tmp_path):
    model, x = network()
    expected = gradients(model, x, torch.enable_grad())
    saved = memory.saved_bytes(lambda: model(x).square().sum(), model)
    disk = SavedOnDisk(model, smallest=1, folder=tmp_path)
    for _ in range(2):  # a context may be entered again
        assert all(torch.equal(a, b) for a, b in zip(expected, gradients(model, x, disk), strict=True))
        assert disk.bytes_written == saved
    disk_for_all = SavedOnDisk(smallest=1, folder=tmp_path)
    gradients(model, x, disk_for_all)
    weights = sum(p.nbytes for name, p in model.named_parameters() if p.ndim == 2 or "1.weight" in name)
    # The first needs no input's gradient.
    assert weights - model[0][0].weight.nbytes <= disk_for_all.bytes_written - saved <= weights


def test_small_tensors_stay(tmp_path):
    model, x = network()
    disk = SavedOnDisk(model, folder=tmp_path)
    gradients(model, x, disk)
    assert disk.pieces_written > 0
    assert disk.bytes_written % (64 * 96 * 4) == 0  # no statistics of the normalization
    unused = SavedOnDisk(model, smallest=10**9, folder=tmp_path)
    gradients(model, x, unused)
    assert (unused.bytes_written, unused.pieces_written) == (0, 0)


def test_views_of_one_storage_are_written_once(tmp_path):
    base = torch.randn(64, 64, requires_grad=True)
    disk = SavedOnDisk(smallest=1, folder=tmp_path)
    with disk:
        y = base * 1.5
        total = (y.t() * y[:, 1:].sum()).sum() + y.view(-1).sin().sum() + y[3].exp().sum()
    total.backward()
    grad, base.grad = base.grad, None
    y = base * 1.5
    ((y.t() * y[:, 1:].sum()).sum() + y.view(-1).sin().sum() + y[3].exp().sum()).backward()
    assert torch.equal(grad, base.grad)
    assert disk.pieces_written <= 3  # y, its sum, the exponentials


def test_what_changed_in_place_between_two_saves_is_written_again(tmp_path):
    x = torch.randn(64, 64)
    a, b = torch.ones(64, 64, requires_grad=True), torch.ones(64, 64, requires_grad=True)
    with SavedOnDisk(smallest=1, folder=tmp_path) as disk:
        before = x.clone()
        y = (a * x).sum()
        x.mul_(2)
        y = y + (b * x).sum()
    y.backward()
    assert disk.pieces_written == 2
    assert torch.equal(a.grad, before)
    assert torch.equal(b.grad, 2 * before)


def test_types_and_strides_come_back(tmp_path):
    x = torch.randn(40, 60, dtype=torch.bfloat16, requires_grad=True)
    with SavedOnDisk(smallest=1, folder=tmp_path):
        y = torch.where(x.t() > 0, x.t().exp(), 0).sum()
    y.backward()
    torch.testing.assert_close(x.grad, torch.where(x > 0, x.exp(), 0).detach())


def test_the_allocator_sees_the_memory_go(tmp_path):
    model, x = network()
    step = lambda context: lambda: gradients(model, x, context())  # noqa: E731
    plain = memory.measure((model,), step(torch.enable_grad), timed=0)
    saved = memory.saved_bytes(lambda: model(x).square().sum(), model)
    disk = memory.measure((model,), step(lambda: SavedOnDisk(model, smallest=1, folder=tmp_path)), timed=0)
    assert plain.peak - disk.peak > 0.6 * saved


def open_files(folder):
    links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return [os.readlink(link) for link in links if os.path.lexists(link) and str(folder) in os.readlink(link)]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="looks into /proc")
def test_no_file_is_left_neither_after_backward_nor_after_an_error(tmp_path):
    model, x = network()
    gradients(model, x, SavedOnDisk(model, folder=tmp_path))

    def fail(*_):
        assert open_files(tmp_path)
        raise ValueError("on the way")

    model[2].register_forward_hook(fail)
    with pytest.raises(ValueError, match="on the way"):
        gradients(model, x, SavedOnDisk(model, folder=tmp_path))
    assert (list(tmp_path.iterdir()), open_files(tmp_path)) == ([], [])


def test_no_file_is_left_where_the_process_dies(tmp_path):
    code = (
        "import os, torch; from course_utils.techniques import SavedOnDisk\n"
        f"with SavedOnDisk(smallest=1, folder={str(tmp_path)!r}) as disk:\n"
        "    y = torch.ones(99, requires_grad=True).exp(); assert disk.bytes_written; os._exit(7)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 7
    assert list(tmp_path.iterdir()) == []
