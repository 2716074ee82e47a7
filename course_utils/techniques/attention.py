"""Exact attention, with the whole matrix of scores and by tiles of it (Dao et al. 2022; Dao 2023, algorithms 1 and 2)."""

from collections.abc import Iterator
from math import inf, sqrt

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import FunctionCtx

from course_utils.techniques.tiles import pieces, widen

TILE = 64


def attention(
    q: Float[Tensor, "... queries d"],
    k: Float[Tensor, "... keys d"],
    v: Float[Tensor, "... keys d_v"],
    is_causal: bool = False,
) -> Float[Tensor, "... queries d_v"]:
    """softmax(qkᵀ/√d) v, d and d_v the widths of a head; causal, a query sees the keys at its own place and before."""
    scores = q @ k.mT / sqrt(q.shape[-1])
    if is_causal:
        scores = scores.masked_fill(above_diagonal(slice(0, q.shape[-2]), slice(0, k.shape[-2]), q.device), -inf)
    return scores.softmax(-1) @ v


class TiledAttention(torch.autograd.Function):
    """`apply(q, k, v, is_causal)`, as `attention`, with one tile of scores at a time; what is saved is linear in the length.

    `lse` is the log of the sum of each row's exponentials (L in the paper), `dot` the product of each row of the output with
    its gradient (D).
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        q: Float[Tensor, "... queries d"],
        k: Float[Tensor, "... keys d"],
        v: Float[Tensor, "... keys d_v"],
        is_causal: bool = False,
    ) -> Float[Tensor, "... queries d_v"]:
        out = q.new_empty(*q.shape[:-1], v.shape[-1])
        lse = widen(q.new_empty(q.shape[:-1]))
        for rows, tiles in visible_tiles(q.shape[-2], k.shape[-2], is_causal):
            top = widen(q.new_full((*q.shape[:-2], 1, 1), -inf))
            total = weighted_sum = 0.0
            for cols in tiles:
                scores = scores_of(q, k, rows, cols, is_causal)
                highest = torch.maximum(top, scores.amax(-1, keepdim=True))
                p = (scores - highest).exp()
                shrink = (top - highest).exp()  # what came before was relative to a lower top
                total = shrink * total + p.sum(-1, keepdim=True)
                weighted_sum = shrink * weighted_sum + p @ widen(v[..., cols, :])
                top = highest
            out[..., rows, :] = weighted_sum / total
            lse[..., rows] = (top + total.log()).squeeze(-1)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.is_causal = is_causal
        return out

    @staticmethod
    def backward(ctx: FunctionCtx, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        grad_q, grad_k, grad_v = (torch.zeros_like(widen(tensor)) for tensor in (q, k, v))
        dot = (widen(grad_output) * widen(out)).sum(-1, keepdim=True)
        for rows, tiles in visible_tiles(q.shape[-2], k.shape[-2], ctx.is_causal):
            grad = widen(grad_output[..., rows, :])
            for cols in tiles:
                scores = scores_of(q, k, rows, cols, ctx.is_causal)
                p = (scores - lse[..., rows, None]).exp()  # computed anew: `lse` is all that forward kept of it
                grad_v[..., cols, :] += p.mT @ grad
                grad_scores = p * (grad @ widen(v[..., cols, :]).mT - dot[..., rows, :]) / sqrt(q.shape[-1])
                grad_q[..., rows, :] += grad_scores @ widen(k[..., cols, :])
                grad_k[..., cols, :] += grad_scores.mT @ widen(q[..., rows, :])
        return grad_q.to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype), None


def visible_tiles(queries: int, keys: int, is_causal: bool) -> Iterator[tuple[slice, list[slice]]]:
    """The tiles of queries, each with the tiles of keys that it sees any of; causal, none beyond the diagonal."""
    for rows in pieces(queries, TILE):
        yield rows, [cols for cols in pieces(keys, TILE) if not is_causal or cols.start < rows.stop]


def scores_of(
    q: Float[Tensor, "... queries d"], k: Float[Tensor, "... keys d"], rows: slice, cols: slice, is_causal: bool
) -> Float[Tensor, "... rows cols"]:
    """qkᵀ/√d of one tile."""
    scores = widen(q[..., rows, :]) @ widen(k[..., cols, :]).mT / sqrt(q.shape[-1])
    return scores.masked_fill(above_diagonal(rows, cols, q.device), -inf) if is_causal else scores


def above_diagonal(rows: slice, cols: slice, device: torch.device) -> Bool[Tensor, "rows cols"]:
    """True for each key that comes after its query."""
    queries, keys = (torch.arange(part.start, part.stop, device=device) for part in (rows, cols))
    return keys > queries[:, None]
