"""What autograd saves, compared with the known activations of layers; the bytes behind tensors that share memory."""

import weakref

import torch
from torch import nn

from course_utils.memory import distinct_bytes, saved_bytes, saved_list


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


def test_a_known_network_by_modules():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    x = torch.ones(32, 8)
    saved = saved_list(lambda: model(x), model)
    activations = saved[saved.kind == "activation"]
    assert dict(zip(activations.module, activations.bytes, strict=True)) == {"0": x.nbytes, "1": 32 * 16 * 4}
    assert set(saved.kind) == {"activation", "parameter or buffer", "saved before"}
    assert saved[saved.kind != "activation"].bytes.sum() == 0
