"""Attention over parts of a sequence on real ranks: one process on the whole sequence is the oracle; bytes are counted."""

import pytest
import torch
import torch.distributed as dist

from course_utils.distributed import counted, launch
from course_utils.distributed.ring_attention import RingAttention, stretches, two_ends
from course_utils.techniques.attention import attention

LENGTH = 24


def compare(ranks, is_causal, share):
    """The largest difference on each rank from the whole sequence, bytes sent in forward and in all, those of a part."""
    generator = torch.Generator().manual_seed(0)
    *inputs, grad = (torch.randn(2, 3, LENGTH, 8, generator=generator, dtype=torch.float64) for _ in range(4))
    places = share(LENGTH, ranks)
    own_places = places[dist.get_rank()]
    parts = [x[..., own_places, :].clone().requires_grad_() for x in inputs]
    with counted() as traffic:
        out = RingAttention.apply(*parts, places, is_causal)
        forward = traffic.sent
        out.backward(grad[..., own_places, :])
    right = attention(*(x.requires_grad_() for x in inputs), is_causal)
    right.backward(grad)
    results = [out, *(part.grad for part in parts)]
    expected = [x[..., own_places, :] for x in (right, *(x.grad for x in inputs))]
    difference = max((a - b).abs().max().item() for a, b in zip(results, expected, strict=True))
    return difference, forward, traffic.sent, parts[0].nbytes


def compare_all(ranks):
    return [compare(ranks, is_causal, share) for is_causal in (False, True) for share in (stretches, two_ends)]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_outputs_and_gradients_are_those_of_one_process_and_bytes_as_predicted(ranks):
    for difference, forward, sent, part in sum(launch(compare_all, ranks, ranks), []):
        assert difference < 1e-12
        assert forward == 2 * (ranks - 1) * part  # keys and values, to all but where they began
        assert sent - forward == (2 * (ranks - 1) + 2 * ranks * (ranks > 1)) * part  # their gradients come home
