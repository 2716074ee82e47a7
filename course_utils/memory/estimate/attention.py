"""Attention, as the libraries compute it: which of PyTorch's kernels runs decides what is saved."""

from dataclasses import dataclass

from course_utils.memory.estimate.operations import (
    BYTE,
    FLOAT,
    HALF,
    add_mask,
    cast,
    contiguous,
    dropout,
    fused,
    in_32_bits,
    matrix_product,
    regrouped,
    repeated,
    saves_output,
    scale,
)
from course_utils.memory.estimate.tape import Tape, Tensor


@dataclass(frozen=True)
class Attention:
    """What all layers share: `kind` is "sdpa" or "eager", `p` the dropout probability.

    `upcast` says that eager attention takes its softmax in 32 bits, `like` which input gives its probabilities their
    precision afterwards ("queries", "values", or none). `packed`: keys and values come out of a cache, in memory by heads.
    `groups` are the queries' heads for each head of the keys. Where there is one example or one head, no copy is needed to
    put examples and heads side by side.
    """

    kind: str
    p: float
    batch: int
    heads: int
    causal: bool = True
    upcast: bool = False
    like: str = ""
    packed: bool = False
    groups: int = 1

    def fused_kernel(self, tape: Tape) -> bool:
        """Whether one kernel does it all: on the CPU flash attention knows no dropout."""
        return self.kind == "sdpa" and (tape.device == "cuda" or not self.p)

    def copies_back(self, tape: Tape) -> bool:
        """Whether the gradients of q and v come by heads and are copied into the order of the projections."""
        return not self.fused_kernel(tape) and self.heads > 1

    @property
    def in_a_row(self) -> bool:
        """Whether examples and heads are side by side as they are."""
        return 1 in (self.batch, self.heads)

    def __call__(
        self, tape: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """softmax(q kᵀ / √d) v; q, k, v of shape (b, heads, s, d), the context as (b, s, heads, d).

        Eager attention returns the probabilities too, which the block holds on to as long as it runs.
        """
        if self.fused_kernel(tape):
            return self._flash(tape, q, k, v, mask), None
        if self.groups > 1:
            k, v = (self._for_every_head(tape, x, q.shape, name) for x, name in ((k, "keys"), (v, "values")))
        if self.kind == "sdpa":
            return self._composed(tape, q, k, v, mask), None
        return self._eager(tape, q, k, v, mask)

    def _flash(self, tape: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """FlashAttention (Dao et al. 2022) saves its inputs, its output and one log-sum-exp for each query."""
        numbers = [] if mask is None else [_as_numbers(tape, mask, HALF if tape.autocast else q.itemsize)]
        if mask is not None and self.groups > 1:
            k, v = (self._for_every_head(tape, x, q.shape, name) for x, name in ((k, "keys"), (v, "values")))
        if tape.autocast:
            k, v, q = (cast(tape, x, HALF) for x in (k, v, q))
        b, heads, s, d = q.shape
        context = fused(
            tape, [q, k, v], numbers, [("context", q.shape, q.itemsize), ("log-sum-exp", (b, heads, s), FLOAT)]
        )
        return context.view(b, s, heads, d)

    def _composed(self, tape: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """What PyTorch composes on the CPU where there is dropout, in 32 bits whatever the precision."""
        if tape.autocast:
            k, v, q = (cast(tape, x, HALF) for x in (k, v, q))
        if mask is None and self.causal:
            mask = tape.new("causal mask", (q.shape[2], q.shape[2]), BYTE)
        numbers = None if mask is None else _as_numbers(tape, mask, q.itemsize)
        wide = [cast(tape, x, FLOAT) for x in (q, k, v)]
        scaled = scale(tape, wide[0], "queries, scaled")
        scores = self._scores(tape, scaled, scale(tape, wide[1], "keys, scaled"))
        scores = add_mask(tape, scores, numbers)
        scores = saves_output(tape, scores, "attention probabilities")
        scores = dropout(tape, scores, self.p, "probabilities, dropped out")
        returned = cast(tape, scores, q.itemsize)
        context = cast(tape, self._context(tape, scores, wide[2]), q.itemsize)
        del wide, scaled, numbers, returned, scores
        return self._together(tape, context)

    def _eager(self, tape: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        precision = {"queries": q.itemsize, "values": v.itemsize}.get(self.like)
        narrow = HALF if tape.autocast else q.itemsize
        scores = scale(tape, self._scores(tape, *(cast(tape, x, narrow) for x in (q, k))), "scores, scaled")
        scores = add_mask(tape, scores, mask)
        wide = cast(tape, scores, FLOAT) if self.upcast else in_32_bits(tape, scores)
        weights = saves_output(tape, wide, "attention probabilities")
        del wide
        weights = cast(tape, weights, precision or weights.itemsize)
        del scores
        weights = dropout(tape, weights, self.p, "probabilities, dropped out")
        factors = [cast(tape, x, HALF) if tape.autocast else x for x in (weights, v)]
        return self._together(tape, self._context(tape, *factors)), weights

    def _scores(self, tape: Tape, q: Tensor, k: Tensor) -> Tensor:
        b, heads, s, _ = q.shape
        q = q if self.in_a_row else contiguous(tape, q, "queries, by heads")
        k = k if self._by_heads(tape) else contiguous(tape, k, "keys, by heads")
        return matrix_product(tape, q, k, (b, heads, s, s), "attention scores")

    def _by_heads(self, tape: Tape) -> bool:
        """Whether a product reads keys and values as they lie; one head shown to all queries it copies, unless cast before."""
        shown = self.kind == "eager" and self.groups == self.heads and not tape.autocast
        return self.in_a_row or (self.packed and not shown)

    def _for_every_head(self, tape: Tape, x: Tensor, shape: tuple, name: str) -> Tensor:
        """The heads of keys or values as often as there are queries for them; of a single one a view will do."""
        if self.groups == self.heads and (self.kind == "eager" or self.fused_kernel(tape) or tape.autocast):
            return regrouped(tape, x, shape, copied_back=True)
        return repeated(tape, x, shape, f"{name}, for every head")

    def _context(self, tape: Tape, probabilities: Tensor, v: Tensor) -> Tensor:
        v = v if self._by_heads(tape) else contiguous(tape, v, "values, by heads")
        product = matrix_product(tape, probabilities, v, v.shape, "context, by heads")
        return regrouped(tape, product, v.shape, copied_back=not self.in_a_row)

    def _together(self, tape: Tape, context: Tensor) -> Tensor:
        """The context with the heads of each token side by side."""
        b, heads, s, d = context.shape
        together = context if self.heads == 1 else contiguous(tape, context, "context")
        return together.view(b, s, heads, d)


def _as_numbers(tape: Tape, mask: Tensor, itemsize: int) -> Tensor:
    return tape.new("mask as numbers", mask.shape, itemsize)
