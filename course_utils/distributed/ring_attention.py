"""Attention over ranks that hold a part of the sequence each; keys and values go around in a ring (Liu et al. 2023).

`places` are, for each rank, the positions of its tokens in the whole sequence: one stretch, or, where attention is causal, two of
them, one from each end, with which every rank has as much to do.
"""

from collections.abc import Sequence
from math import inf, sqrt

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import FunctionCtx

from course_utils.techniques.tiles import widen


class RingAttention(torch.autograd.Function):
    """`apply(q, k, v, places, is_causal)` on every rank, with its own parts: the part of the output for its own queries.

    `lse` and `dot` are those of `TiledAttention`.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        q: Float[Tensor, "... queries d"],
        k: Float[Tensor, "... keys d"],
        v: Float[Tensor, "... keys d_v"],
        places: Sequence[Int[Tensor, " _"]],
        is_causal: bool = False,
    ) -> Float[Tensor, "... queries d_v"]:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        out = 0.0
        lse = widen(q.new_full((*q.shape[:-1], 1), -inf))
        keys, values = k, v
        for step in range(ranks):
            scores = scores_of(q, keys, places[rank], places[(rank - step) % ranks], is_causal)
            new_lse = torch.logaddexp(lse, scores.logsumexp(-1, keepdim=True))
            out = out * (lse - new_lse).exp() + (scores - new_lse).exp() @ widen(values)
            lse = new_lse
            if step < ranks - 1:
                keys, values = pass_on(keys, values)
        ctx.save_for_backward(q, k, v, out.to(q.dtype), lse)
        ctx.places, ctx.is_causal = places, is_causal
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx: FunctionCtx, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        rank, ranks = dist.get_rank(), dist.get_world_size()
        dot = (widen(grad_output) * widen(out)).sum(-1, keepdim=True)
        grad_q, grad_k, grad_v = (torch.zeros_like(widen(tensor)) for tensor in (q, k, v))
        for step in range(ranks):
            key_places = ctx.places[(rank - step) % ranks]
            p = (scores_of(q, k, ctx.places[rank], key_places, ctx.is_causal) - lse).exp()
            grad_scores = p * (widen(grad_output) @ widen(v).mT - dot) / sqrt(q.shape[-1])
            grad_q += grad_scores @ widen(k)
            grad_k += grad_scores.mT @ widen(q)
            grad_v += p.mT @ widen(grad_output)
            if step < ranks - 1:
                k, v = pass_on(k, v)
            grad_k, grad_v = pass_on(grad_k, grad_v)  # they go around with their part, and once more to come home
        return grad_q.to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype), None, None


def pass_on(*tensors: Tensor) -> list[Tensor]:
    """Send these tensors to the next rank, and receive those of the rank before; the first comes after the last."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if ranks == 1:
        return list(tensors)
    received = [torch.empty_like(tensor) for tensor in tensors]
    messages = [dist.P2POp(dist.isend, tensor.contiguous(), (rank + 1) % ranks) for tensor in tensors]
    messages += [dist.P2POp(dist.irecv, tensor, (rank - 1) % ranks) for tensor in received]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    return received


def scores_of(
    q: Float[Tensor, "... queries d"],
    k: Float[Tensor, "... keys d"],
    queries: Int[Tensor, " queries"],
    keys: Int[Tensor, " keys"],
    is_causal: bool,
) -> Float[Tensor, "... queries keys"]:
    """qkᵀ/√d; causal, a query sees the keys at its place and before, by their places in the whole sequence."""
    scores = widen(q) @ widen(k).mT / sqrt(q.shape[-1])
    return scores.masked_fill(keys > queries[:, None], -inf) if is_causal else scores


def stretches(length: int, ranks: int) -> list[Int[Tensor, " _"]]:
    """The places of each rank's tokens: one stretch after the other."""
    return list(torch.arange(length).chunk(ranks))


def two_ends(length: int, ranks: int) -> list[Int[Tensor, " _"]]:
    """A stretch from the beginning and one from the end for each rank: under a causal mask all then have as much to do."""
    parts = torch.arange(length).chunk(2 * ranks)
    return [torch.cat([parts[rank], parts[2 * ranks - 1 - rank]]) for rank in range(ranks)]
