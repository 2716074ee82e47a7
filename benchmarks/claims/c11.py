"""Chapter 11: sums over pieces in 16 bits."""

from unittest.mock import patch

import torch
from torch.nn import functional as F

from benchmarks.claims import claim
from course_utils.lessons import c11_long_sequences as lesson
from course_utils.techniques import LossWithGradients, chunked_loss


@claim("11-sums")
def sums_in_16_bits_are_the_cause(seed):
    torch.manual_seed(seed)
    x, w, labels = lesson.random_head(1024, 16, 64, torch.device("cpu"), torch.bfloat16)
    x, w = (torch.randn_like(tensor).requires_grad_() for tensor in (x, w))
    (exact,) = torch.autograd.grad(F.cross_entropy(x.float() @ w.float().T, labels), w)

    def error(pieces, widen):
        with patch.object(chunked_loss, "widen", widen):
            (gradient,) = torch.autograd.grad(LossWithGradients.apply(x, w, labels, 1024 // pieces), w)
        return ((gradient.float() - exact.float()).norm() / exact.float().norm()).item()

    narrow = [error(pieces, lambda tensor: tensor) for pieces in (2, 32, 512)]
    broad = [error(pieces, chunked_loss.widen) for pieces in (2, 32, 512)]
    return narrow == sorted(narrow) and narrow[-1] > 3 * broad[-1] and max(broad) < 1.1 * min(broad)
