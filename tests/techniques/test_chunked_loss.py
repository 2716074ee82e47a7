"""Cross-entropy by pieces: torch's on whole logits is the oracle, for the loss and both gradients; peaks are the allocator's."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_utils import memory
from course_utils.techniques import LossByTiles, LossWithGradients

IGNORED = -100


def example(tokens, classes, width=12, dtype=torch.float64, ignored=0.3):
    generator = torch.Generator().manual_seed(tokens + classes)
    x, w = (torch.randn(n, width, generator=generator, dtype=dtype).requires_grad_() for n in (tokens, classes))
    labels = torch.randint(classes, (tokens,), generator=generator)
    labels[torch.rand(tokens, generator=generator) < ignored] = IGNORED
    labels[0] = 0  # one at least counts
    return x, w, labels


def losses(x, w, labels, tokens, classes, smoothing):
    by_tiles = LossByTiles.apply(x, w, labels, tokens, classes, smoothing)
    return by_tiles, LossWithGradients.apply(x, w, labels, tokens, smoothing)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)], ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_and_gradients_are_torchs(dtype, tolerance, smoothing):
    tiles = [(4, 8), (5, 100), (100, 9), (100, 100)]
    for (n, vocabulary), (tokens, classes) in itertools.product([(1, 7), (13, 40)], tiles):
        x, w, labels = example(n, vocabulary, dtype=dtype)
        right = F.cross_entropy(x @ w.T, labels, ignore_index=IGNORED, label_smoothing=smoothing)
        gradients = torch.autograd.grad(3 * right, (x, w))
        for loss in losses(x, w, labels, tokens, classes, smoothing):
            torch.testing.assert_close(loss, right, rtol=tolerance, atol=tolerance)
            ours = torch.autograd.grad(3 * loss, (x, w))
            torch.testing.assert_close(ours, gradients, rtol=tolerance, atol=3 * tolerance)


def test_a_tied_embedding_gets_the_gradients_of_both_its_uses():
    _, w, labels = example(10, 20)
    x = w[torch.arange(10) % 20].tanh()
    right = torch.autograd.grad(F.cross_entropy(x @ w.T, labels), w, retain_graph=True)
    for loss in losses(x, w, labels, 4, 7, 0.0):
        torch.testing.assert_close(torch.autograd.grad(loss, w, retain_graph=True), right, rtol=1e-12, atol=1e-12)


def test_sums_over_pieces_are_kept_in_32_bits():
    """Of 512 pieces: in bfloat16 a sum stands still once it is 256 times as large as what is added."""
    x, w, labels = example(2048, 16, width=4, dtype=torch.bfloat16, ignored=0.0)
    right = F.cross_entropy(x.float() @ w.float().T, labels)
    gradient = torch.autograd.grad(right, w)[0].float()
    for loss in losses(x, w, labels, 4, 16, 0.0):
        assert abs(loss.float() - right) < 0.01 * right
        estimated = torch.autograd.grad(loss, w)[0].float()
        assert (estimated - gradient).norm() < 0.01 * gradient.norm()


def peak_beyond_weights(loss_of, tokens, classes):
    """Bytes at the fullest instant of forward and backward, less the weight, the hidden states and their gradients."""
    x, w, labels = example(tokens, classes, width=8, dtype=torch.float32)

    def step(factors, labels):
        factors.zero_grad()
        loss_of(*factors, labels).backward()

    return memory.measure((nn.ParameterList([x, w]), labels), step, timed=0).peak - 2 * (x.nbytes + w.nbytes)


def test_in_pieces_of_the_vocabulary_the_peak_does_not_grow_with_it():
    small, large = (peak_beyond_weights(lambda *a: LossByTiles.apply(*a, 64, 50), 64, n) for n in (500, 2_000))
    assert large <= small
    plain = [peak_beyond_weights(lambda x, w, y: F.cross_entropy(x @ w.T, y), 64, n) for n in (500, 2_000)]
    assert plain[1] - plain[0] >= 64 * 1_500 * 4


@pytest.mark.parametrize(
    "loss_of", [lambda *a: LossByTiles.apply(*a, 16, 10_000), lambda *a: LossWithGradients.apply(*a, 16)]
)
def test_in_pieces_of_tokens_the_peak_does_not_grow_with_tokens_times_words(loss_of):
    small, large = (peak_beyond_weights(loss_of, n, 2_000) for n in (64, 512))
    assert large - small <= (512 - 64) * 8 * 4 * 4  # a few numbers a token and as many as the width, and none a word
