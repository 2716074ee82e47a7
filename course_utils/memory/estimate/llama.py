"""Llama (Touvron et al. 2023) as Transformers writes it: language model and sequence classifier."""

from course_utils.memory.estimate.attention import Attention
from course_utils.memory.estimate.model import ACTIVATIONS, Named, TransformerModel, Weights
from course_utils.memory.estimate.operations import (
    BYTE,
    FLOAT,
    add,
    cast,
    concatenate,
    embedding,
    multiply,
    part_of,
    regrouped,
    rms_norm,
    scale,
    share,
)
from course_utils.memory.estimate.tape import Tape, Tensor


class Llama(TransformerModel):
    """Rotary positions, RMS norms, gated feed-forward layers; keys and values may have fewer heads than queries."""

    @staticmethod
    def sizes_of(config, recipe):
        """See `PencilModel`."""
        return {
            **{"b": recipe.batch, "s": recipe.sequence, "h": config.hidden_size, "a": config.num_attention_heads},
            **{"k": config.num_key_value_heads, "d": config.head_dim, "f": config.intermediate_size},
            **{"V": config.vocab_size, "c": config.num_labels},
        }

    @property
    def blocks(self) -> int:
        """How many."""
        return self.config.num_hidden_layers

    def parameters(self):
        """See `PencilModel`."""
        n = self.sizes
        named = [Named("model.embed_tokens.weight", "embedding", (n.V, n.h))]
        for index in range(self.blocks):
            named += self._block_parameters(f"model.layers.{index}", f"block {index + 1}")
        named.append(Named("model.norm.weight", "output layer", (n.h,)))
        if self.classifies:
            return [*named, Named("score.weight", "output layer", (n.c, n.h))]
        return (
            named if self.config.tie_word_embeddings else [*named, Named("lm_head.weight", "output layer", (n.V, n.h))]
        )

    def _block_parameters(self, base: str, part: str) -> list[Named]:
        n, config = self.sizes, self.config
        attention = {"q_proj": (n.a * n.d, n.h), "k_proj": (n.k * n.d, n.h), "v_proj": (n.k * n.d, n.h)}
        attention["o_proj"] = (n.h, n.a * n.d)
        feed_forward = {"gate_proj": (n.f, n.h), "up_proj": (n.f, n.h), "down_proj": (n.h, n.f)}
        named = []
        for room, shapes, biased in (
            ("self_attn", attention, config.attention_bias),
            ("mlp", feed_forward, config.mlp_bias),
        ):
            for name, shape in shapes.items():
                named.append(Named(f"{base}.{room}.{name}.weight", part, shape))
                named += [Named(f"{base}.{room}.{name}.bias", part, shape[:1])] if biased else []
        norms = ("input_layernorm", "post_attention_layernorm")
        return named + [Named(f"{base}.{name}.weight", part, (n.h,)) for name in norms]

    def buffers(self):
        """See `PencilModel`."""
        half = (share(self.sizes.d, 2),)
        return [
            Named(f"{name} of the rotation", "embedding", half, FLOAT) for name in ("frequencies", "first frequencies")
        ]

    def loss(self, tape: Tape, weights: Weights) -> Tensor:
        """See `PencilModel`."""
        n, cache = self.sizes, []  # keys and values of all layers, part of what the model returns
        x = self._hidden(tape, weights, cache)
        tape.part = "output layer"
        if self.classifies:
            return self.last_token_loss(tape, weights, x)
        table = weights["model.embed_tokens.weight" if self.config.tie_word_embeddings else "lm_head.weight"]
        logits = self.linear(tape, {"lm_head.weight": table}, "lm_head", x, n.V, output="logits")
        return self.next_token_loss(tape, logits)

    def _hidden(self, tape: Tape, weights: Weights, cache: list) -> Tensor:
        n = self.sizes
        tape.part = "embedding"
        embedded = embedding(
            tape, weights["model.embed_tokens.weight"], (n.b, n.s)
        )  # named until the last norm is done
        mask = self._mask(tape, embedded)
        rotation = [tape.new(name, (1, n.s, n.d), embedded.itemsize) for name in ("cosines", "sines")]
        attention = self._attention()
        blocks = lambda index, x: self._block(tape, weights, index, x, attention, mask, rotation, cache)  # noqa: E731
        x = self.run_blocks(tape, embedded, blocks)
        tape.part = "output layer"
        return rms_norm(tape, x, weights["model.norm.weight"])

    def _attention(self) -> Attention:
        heads, key_heads = self.config.num_attention_heads, self.config.num_key_value_heads
        kind = {"upcast": True, "like": "queries", "groups": heads // key_heads}
        packed = not self.recipe.checkpointing  # without checkpoints there is a cache, even in training
        return self.attention(self.config.attention_dropout, heads, packed=packed, **kind)

    def _mask(self, tape: Tape, x: Tensor) -> Tensor | None:
        n, eager = self.sizes, self.recipe.attention == "eager"
        if not eager and not self.classifies:
            return None
        return tape.new("mask of every pair of tokens", (n.b, 1, n.s, n.s), x.itemsize if eager else BYTE)

    def _block(self, tape: Tape, weights: Weights, index: int, x: Tensor, attention, mask, rotation, cache) -> Tensor:
        base, residual = f"model.layers.{index}", x
        x = rms_norm(tape, x, weights[f"{base}.input_layernorm.weight"])
        x, _probabilities = self._attended(tape, weights, f"{base}.self_attn", x, attention, mask, rotation, cache)
        x = add(tape, residual, x)
        residual = x
        x = rms_norm(tape, x, weights[f"{base}.post_attention_layernorm.weight"])
        x = self._feed_forward(tape, weights, f"{base}.mlp", x)
        return add(tape, residual, x)

    def _attended(self, tape: Tape, weights: Weights, base: str, x: Tensor, attention, mask, rotation, cache) -> tuple:
        n = self.sizes
        several, several_keys = (count > 1 for count in (attention.heads, self.config.num_key_value_heads))
        q = self._projected(tape, weights, f"{base}.q_proj", x, n.a, "queries", copied_back=several)
        k = self._projected(tape, weights, f"{base}.k_proj", x, n.k, "keys", copied_back=several_keys)
        v = self._projected(tape, weights, f"{base}.v_proj", x, n.k, "values", copied_back=attention.copies_back(tape))
        q, k = _rotated(tape, q, rotation, "queries"), _rotated(tape, k, rotation, "keys")
        if attention.packed:
            k = concatenate(tape, "keys, cached", k.shape, k)
            v = concatenate(tape, "values, cached", v.shape, cast(tape, v, k.itemsize))
            cache += [k, v]
        context, probabilities = attention(tape, q, k, v, mask)
        context = context.view(n.b, n.s, n.a * n.d)
        return self.linear(tape, weights, f"{base}.o_proj", context, n.h, output="attended"), probabilities

    def _projected(self, tape: Tape, weights: Weights, name: str, x: Tensor, heads, output: str, *, copied_back: bool):
        n = self.sizes
        flat = self.linear(tape, weights, name, x, heads * n.d, output=output)
        return regrouped(tape, flat, (n.b, heads, n.s, n.d), copied_back=copied_back)

    def _feed_forward(self, tape: Tape, weights: Weights, base: str, x: Tensor) -> Tensor:
        n = self.sizes
        gate = self.linear(tape, weights, f"{base}.gate_proj", x, n.f, output="gate")
        gate = ACTIVATIONS[self.config.hidden_act](tape, gate)
        up = self.linear(tape, weights, f"{base}.up_proj", x, n.f, output="inner layer")
        gated = multiply(tape, gate, up, "gated")
        del gate, up
        return self.linear(tape, weights, f"{base}.down_proj", gated, n.h, output="outer layer")


def _rotated(tape: Tape, x: Tensor, rotation: list[Tensor], name: str) -> Tensor:
    """Rotary positions (Su et al. 2021): x · cosines + (x, its halves exchanged and one negated) · sines."""
    cosines, sines = rotation
    straight = multiply(tape, x, cosines, f"{name} · cosines")
    across = multiply(tape, _halves_exchanged(tape, x), sines, f"{name} · sines")
    return add(tape, straight, across, f"{name}, rotated")


def _halves_exchanged(tape: Tape, x: Tensor) -> Tensor:
    half = (*x.shape[:-1], share(x.shape[-1], 2))
    first, second = part_of(tape, x, half), part_of(tape, x, half)
    return concatenate(tape, "halves exchanged", x.shape, scale(tape, second, "half, negated"), first)
