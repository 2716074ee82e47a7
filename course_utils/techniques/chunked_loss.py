"""Cross-entropy of logits that are never there at once: by pieces of tokens and of the vocabulary.

x (n × h) are hidden states, w (V × h) the output layer's weight, `labels` (n) whole numbers, `IGNORED` where there is none. The
loss is the mean over the others; with smoothing ε the right answer is 1 − ε at the label and ε/V everywhere.
"""

from math import inf

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import FunctionCtx

from course_utils.techniques.tiles import pieces, widen

IGNORED = -100


class LossByTiles(torch.autograd.Function):
    """`apply(x, w, labels, tokens, classes, ε)`: logits of so many tokens and classes at a time, computed anew in backward."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        x: Float[Tensor, "n h"],
        w: Float[Tensor, "V h"],
        labels: Int[Tensor, " n"],
        tokens: int,
        classes: int,
        epsilon: float = 0.0,
    ) -> Float[Tensor, ""]:
        at_label, level = 1 - epsilon, epsilon / len(w)
        loss = widen(x.new_zeros(()))
        lse = widen(x.new_empty(len(x)))
        for rows in pieces(len(x), tokens):
            top = widen(x.new_full((len(x[rows]),), -inf))
            total = 0.0
            target_logits = torch.zeros_like(top)
            for cols in pieces(len(w), classes):
                logits = widen(x[rows] @ w[cols].T)
                labeled, column = labels_in(labels[rows], cols)
                target_logits[labeled] += at_label * logits[labeled, column]
                target_logits += level * logits.sum(-1)
                highest = torch.maximum(top, logits.amax(-1))
                total = total * (top - highest).exp() + logits.sub_(highest[:, None]).exp_().sum(-1)
                top = highest
            lse[rows] = top + total.log()
            loss += (lse[rows] - target_logits)[labels[rows] != IGNORED].sum()
        ctx.save_for_backward(x, w, labels, lse)
        ctx.sizes = tokens, classes, at_label, level
        return (loss / (labels != IGNORED).sum()).to(x.dtype)

    @staticmethod
    def backward(ctx: FunctionCtx, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        x, w, labels, lse = ctx.saved_tensors
        tokens, classes, at_label, level = ctx.sizes
        grad_x, grad_w = torch.zeros_like(widen(x)), torch.zeros_like(widen(w))
        share = grad_output * (labels != IGNORED) / (labels != IGNORED).sum()
        for rows in pieces(len(x), tokens):
            for cols in pieces(len(w), classes):
                grad_logits = widen(x[rows] @ w[cols].T).sub_(lse[rows, None]).exp_().sub_(level)
                labeled, column = labels_in(labels[rows], cols)
                grad_logits[labeled, column] -= at_label
                grad_logits *= share[rows, None]
                grad_x[rows] += grad_logits @ widen(w[cols])
                grad_w[cols] += grad_logits.T @ widen(x[rows])
        return grad_x.to(x.dtype), grad_w.to(w.dtype), None, None, None, None


class LossWithGradients(torch.autograd.Function):
    """`apply(x, w, labels, tokens, ε)`: whole logits of so many tokens at a time; forward makes the gradients at once and keeps
    them, so that nothing is computed twice."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        x: Float[Tensor, "n h"],
        w: Float[Tensor, "V h"],
        labels: Int[Tensor, " n"],
        tokens: int,
        epsilon: float = 0.0,
    ) -> Float[Tensor, ""]:
        at_label, level = 1 - epsilon, epsilon / len(w)
        loss = widen(x.new_zeros(()))
        grad_x, grad_w = torch.empty_like(x), torch.zeros_like(widen(w))
        count = (labels != IGNORED).sum()
        for rows in pieces(len(x), tokens):
            log_p = widen(x[rows] @ w.T).log_softmax(-1)
            labeled, column = labels_in(labels[rows], slice(0, len(w)))
            loss -= (at_label * log_p[labeled, column] + level * log_p.sum(-1)[labeled]).sum()
            grad_logits = log_p.exp_().sub_(level)  # in the same memory
            grad_logits[labeled, column] -= at_label
            grad_logits[labels[rows] == IGNORED] = 0
            grad_logits /= count
            grad_x[rows] = (grad_logits @ widen(w)).to(x.dtype)
            torch.addmm(grad_w, grad_logits.T, widen(x[rows]), out=grad_w)
            del log_p, grad_logits  # before the next piece's logits are there
        ctx.save_for_backward(grad_x, grad_w.to(w.dtype))
        return (loss / count).to(x.dtype)

    @staticmethod
    def backward(ctx: FunctionCtx, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        grad_x, grad_w = ctx.saved_tensors
        return grad_output * grad_x, grad_output * grad_w, None, None, None


def labels_in(labels: Int[Tensor, " n"], classes: slice) -> tuple[Int[Tensor, " m"], Int[Tensor, " m"]]:
    """The tokens whose labels are among these classes, and the columns of their labels."""
    labeled = ((labels >= classes.start) & (labels < classes.stop)).nonzero()[:, 0]
    return labeled, labels[labeled] - classes.start
