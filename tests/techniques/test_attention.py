"""Attention by tiles is attention: SDPA and the whole matrix are the oracles; what is saved grows with the length alone."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_utils import memory
from course_utils.techniques import attention
from course_utils.techniques.attention import TiledAttention


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(attention, "TILE", 16)


def parts(*shape, lengths, dtype=torch.float64):
    generator = torch.Generator().manual_seed(sum(lengths))
    lengths = (*lengths, lengths[-1])
    return [torch.randn(*shape, n, 8, generator=generator, dtype=dtype).requires_grad_() for n in lengths]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("leading", [(), (2,), (2, 3)], ids=str)
def test_output_and_gradients_are_those_of_the_whole_matrix_and_of_torch(leading, is_causal):
    for lengths in itertools.product([1, 16, 37], [16, 50]):
        q, k, v = parts(*leading, lengths=lengths)
        tiled = TiledAttention.apply(q, k, v, is_causal)
        grad = torch.randn_like(tiled)
        for right in (
            attention.attention(q, k, v, is_causal),
            F.scaled_dot_product_attention(q, k, v, is_causal=is_causal),
        ):
            torch.testing.assert_close(tiled, right, rtol=1e-10, atol=1e-10)
            ours, theirs = (torch.autograd.grad(out, (q, k, v), grad, retain_graph=True) for out in (tiled, right))
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_its_derivatives_are_those_of_finite_differences():
    q, k, v = parts(lengths=(20, 20))
    assert torch.autograd.gradcheck(lambda *a: TiledAttention.apply(*a, True), (q, k, v))


def test_in_16_bits_sums_are_kept_in_32():
    q, k, v = (x.detach() for x in parts(2, lengths=(64, 640), dtype=torch.float32))
    right = attention.attention(q, k, v)
    tiled = TiledAttention.apply(*(x.bfloat16() for x in (q, k, v))).float()
    plain = attention.attention(*(x.bfloat16() for x in (q, k, v))).float()
    assert (tiled - right).norm() < (plain - right).norm()


def test_the_log_of_the_sum_is_saved_and_not_the_scores():
    q, k, v = parts(2, lengths=(40, 40))
    out = TiledAttention.apply(q, k, v, True)
    saved = out.grad_fn.saved_tensors
    [lse] = [tensor for tensor in saved if tensor.shape == q.shape[:-1]]
    scores = (q @ k.mT / 8**0.5).masked_fill(torch.ones(40, 40, dtype=torch.bool).triu(1), -torch.inf)
    torch.testing.assert_close(lse, scores.logsumexp(-1))
    assert all(tensor.shape[-2:] != (40, 40) for tensor in saved)


def test_tiles_above_the_diagonal_are_skipped(monkeypatch):
    seen = []
    scores_of = attention.scores_of
    monkeypatch.setattr(attention, "scores_of", lambda *a: seen.append(a[2:4]) or scores_of(*a))
    q, k, v = parts(lengths=(64, 64))
    for is_causal, tiles in ((False, 16), (True, 10)):
        seen.clear()
        TiledAttention.apply(q, k, v, is_causal)
        assert len(seen) == tiles


def test_peak_and_saved_bytes_are_linear_in_the_length():
    def step(inputs):
        inputs.zero_grad()
        TiledAttention.apply(*inputs, True).sum().backward()

    peaks, saved = [], []
    for n in (192, 256, 320):
        inputs = nn.ParameterList(parts(lengths=(n, n), dtype=torch.float32))
        peaks.append(memory.measure((inputs,), step, timed=0).peak)
        saved.append(memory.saved_bytes(lambda inputs=inputs: TiledAttention.apply(*inputs, True), inputs))
    assert saved == [n * 8 * 4 + n * 4 for n in (192, 256, 320)]  # the output and one number a query, beside the inputs
    assert peaks[2] - peaks[1] == peaks[1] - peaks[0]
