"""GPT-2 (Radford et al. 2019) as Transformers writes it: language model and sequence classifier."""

from course_utils.memory.estimate.model import ACTIVATIONS, Named, TransformerModel, Weights
from course_utils.memory.estimate.operations import (
    BYTE,
    INDEX,
    add,
    concatenate,
    dropout,
    embedding,
    layer_norm,
    regrouped,
    share,
    split,
)
from course_utils.memory.estimate.tape import Tape, Tensor


class Gpt2(TransformerModel):
    """Learned positions, blocks with the norm before each part, and a head that shares the table of the embedding."""

    @staticmethod
    def sizes_of(config, recipe):
        """See `PencilModel`."""
        return {
            **{"b": recipe.batch, "s": recipe.sequence, "h": config.n_embd, "a": config.n_head},
            **{"f": config.n_inner or 4 * config.n_embd, "V": config.vocab_size, "n": config.n_positions},
            "c": config.num_labels,
        }

    @property
    def blocks(self) -> int:
        """How many."""
        return self.config.n_layer

    def parameters(self):
        """See `PencilModel`."""
        n = self.sizes
        named = [
            Named("transformer.wte.weight", "embedding", (n.V, n.h)),
            Named("transformer.wpe.weight", "embedding", (n.n, n.h)),
        ]
        for index in range(self.blocks):
            named += self._block_parameters(f"transformer.h.{index}", f"block {index + 1}")
        named += _weight_and_bias("transformer.ln_f", "output layer", (n.h,))
        if self.classifies:
            return [*named, Named("score.weight", "output layer", (n.c, n.h))]
        tied = self.config.tie_word_embeddings
        return named if tied else [*named, Named("lm_head.weight", "output layer", (n.V, n.h))]

    def _block_parameters(self, base: str, part: str) -> list[Named]:
        n = self.sizes
        shapes = {"ln_1": (n.h,), "attn.c_attn": (n.h, 3 * n.h), "attn.c_proj": (n.h, n.h)}
        shapes |= {"ln_2": (n.h,), "mlp.c_fc": (n.h, n.f), "mlp.c_proj": (n.f, n.h)}
        return [named for name, shape in shapes.items() for named in _weight_and_bias(f"{base}.{name}", part, shape)]

    def buffers(self):
        """See `PencilModel`."""
        return []

    def loss(self, tape: Tape, weights: Weights) -> Tensor:
        """See `PencilModel`."""
        n, cache = self.sizes, []  # keys and values of all layers, part of what the model returns
        x = self._hidden(tape, weights, cache)
        tape.part = "output layer"
        if self.classifies:
            return self.last_token_loss(tape, weights, x)
        table = weights["transformer.wte.weight" if self.config.tie_word_embeddings else "lm_head.weight"]
        logits = self.linear(tape, {"lm_head.weight": table}, "lm_head", x, n.V, output="logits")
        return self.next_token_loss(tape, logits)

    def _hidden(self, tape: Tape, weights: Weights, cache: list) -> Tensor:
        n = self.sizes
        tape.part = "embedding"
        tokens = embedding(tape, weights["transformer.wte.weight"], (n.b, n.s))
        place = tape.new("position ids", (n.s,), INDEX)
        positions = embedding(tape, weights["transformer.wpe.weight"], (1, n.s), "embedded positions", ids=place)
        x = add(tape, tokens, positions)
        mask = self._mask(tape, x)
        x = dropout(tape, x, self.config.embd_pdrop)
        packed = not self.recipe.checkpointing  # without checkpoints there is a cache, even in training
        attention = self.attention(self.config.attn_pdrop, self.config.n_head, like="values", packed=packed)
        x = self.run_blocks(tape, x, lambda index, x: self._block(tape, weights, index, x, attention, mask, cache))
        tape.part = "output layer"
        return self._norm(tape, weights, "transformer.ln_f", x)

    def _mask(self, tape: Tape, x: Tensor) -> Tensor | None:
        n, eager = self.sizes, self.recipe.attention == "eager"
        if not eager and not self.classifies:
            return None
        return tape.new("mask of every pair of tokens", (n.b, 1, n.s, n.s), x.itemsize if eager else BYTE)

    def _block(self, tape: Tape, weights: Weights, index: int, x: Tensor, attention, mask, cache: list) -> Tensor:
        base, residual = f"transformer.h.{index}", x
        x = self._norm(tape, weights, f"{base}.ln_1", x)
        attended, _probabilities = self._attended(tape, weights, f"{base}.attn", x, attention, mask, cache)
        x = add(tape, residual, attended)
        residual = x
        x = self._norm(tape, weights, f"{base}.ln_2", x)
        inner = self._feed_forward(tape, weights, f"{base}.mlp", x)
        return add(tape, residual, inner)

    def _attended(self, tape: Tape, weights: Weights, base: str, x: Tensor, attention, mask, cache: list) -> tuple:
        n = self.sizes
        by_heads = (n.b, n.a, n.s, share(n.h, n.a))
        together = self.linear(tape, weights, f"{base}.c_attn", x, 3 * n.h, output="queries, keys and values")
        copied = attention.copies_back(tape)
        q, k, v = split(tape, together, 3, (n.b, n.s, n.h))
        k, v = (regrouped(tape, x, by_heads, copied_back=copied and x is v) for x in (k, v))
        q = regrouped(tape, q, by_heads, copied_back=copied)
        if attention.packed:
            k, v = concatenate(tape, "keys, cached", by_heads, k), concatenate(tape, "values, cached", by_heads, v)
            cache += [k, v]
        context, probabilities = attention(tape, q, k, v, mask)
        context = context.view(n.b, n.s, n.h)
        x = self.linear(tape, weights, f"{base}.c_proj", context, n.h, output="attended")
        return dropout(tape, x, self.config.resid_pdrop), probabilities

    def _feed_forward(self, tape: Tape, weights: Weights, base: str, x: Tensor) -> Tensor:
        n = self.sizes
        x = self.linear(tape, weights, f"{base}.c_fc", x, n.f, output="inner layer")
        x = ACTIVATIONS[self.config.activation_function](tape, x)
        x = self.linear(tape, weights, f"{base}.c_proj", x, n.h, output="outer layer")
        return dropout(tape, x, self.config.resid_pdrop)

    @staticmethod
    def _norm(tape: Tape, weights: Weights, name: str, x: Tensor) -> Tensor:
        return layer_norm(tape, x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def _weight_and_bias(name: str, part: str, shape: tuple) -> list[Named]:
    return [Named(f"{name}.weight", part, shape), Named(f"{name}.bias", part, shape[-1:])]
