"""DistilBERT (Sanh et al. 2019) as Transformers writes it: sequence classifier and masked language model."""

from course_utils.memory.estimate.model import ACTIVATIONS, Named, TransformerModel, Weights
from course_utils.memory.estimate.operations import (
    BYTE,
    INDEX,
    add,
    cross_entropy,
    dropout,
    embedding,
    layer_norm,
    part_of,
    regrouped,
    saves_output,
    share,
)
from course_utils.memory.estimate.tape import Tape, Tensor


class DistilBert(TransformerModel):
    """Embeddings with layer norm, blocks with the norm after each sum, a pooled or a token-wise head."""

    @staticmethod
    def sizes_of(config, recipe):
        """See `PencilModel`."""
        return {
            **{"b": recipe.batch, "s": recipe.sequence, "h": config.dim, "a": config.n_heads, "f": config.hidden_dim},
            **{"V": config.vocab_size, "n": config.max_position_embeddings, "c": config.num_labels},
        }

    @property
    def blocks(self) -> int:
        """How many."""
        return self.config.n_layers

    def parameters(self):
        """See `PencilModel`."""
        n, base = self.sizes, "distilbert.embeddings"
        named = [
            Named(f"{base}.word_embeddings.weight", "embedding", (n.V, n.h)),
            Named(f"{base}.position_embeddings.weight", "embedding", (n.n, n.h)),
            *_weight_and_bias(f"{base}.LayerNorm", "embedding", n.h),
        ]
        for index in range(self.blocks):
            named += self._block_parameters(f"distilbert.transformer.layer.{index}", f"block {index + 1}")
        return named + self._head_parameters()

    def _block_parameters(self, base: str, part: str) -> list[Named]:
        n, named = self.sizes, []
        for name in ("q_lin", "k_lin", "v_lin", "out_lin"):
            named += _weight_and_bias(f"{base}.attention.{name}", part, n.h, n.h)
        named += _weight_and_bias(f"{base}.sa_layer_norm", part, n.h)
        named += _weight_and_bias(f"{base}.ffn.lin1", part, n.f, n.h)
        named += _weight_and_bias(f"{base}.ffn.lin2", part, n.h, n.f)
        return named + _weight_and_bias(f"{base}.output_layer_norm", part, n.h)

    def _head_parameters(self) -> list[Named]:
        n = self.sizes
        if self.classifies:
            return _weight_and_bias("pre_classifier", "output layer", n.h, n.h) + _weight_and_bias(
                "classifier", "output layer", n.c, n.h
            )
        named = _weight_and_bias("vocab_transform", "output layer", n.h, n.h) + _weight_and_bias(
            "vocab_layer_norm", "output layer", n.h
        )
        if not self.config.tie_word_embeddings:
            named.append(Named("vocab_projector.weight", "output layer", (n.V, n.h)))
        return [*named, Named("vocab_projector.bias", "output layer", (n.V,))]

    def buffers(self):
        """See `PencilModel`."""
        return [Named("position ids", "embedding", (self.sizes.n,), INDEX)]

    def loss(self, tape: Tape, weights: Weights) -> Tensor:
        """See `PencilModel`."""
        return self._pooled_loss(tape, weights) if self.classifies else self._token_loss(tape, weights)

    def _hidden(self, tape: Tape, weights: Weights) -> Tensor:
        tape.part = "embedding"
        x = self._embedded(tape, weights)
        mask = self._mask(tape, x) if self.classifies else None
        attention = self.attention(self.config.attention_dropout, self.config.n_heads, causal=False)
        return self.run_blocks(tape, x, lambda index, x: self._block(tape, weights, index, x, attention, mask))

    def _mask(self, tape: Tape, x: Tensor) -> Tensor:
        n, eager = self.sizes, self.recipe.attention == "eager"
        return tape.new("mask of every pair of tokens", (n.b, 1, n.s, n.s), x.itemsize if eager else BYTE)

    def _embedded(self, tape: Tape, weights: Weights) -> Tensor:
        n, base = self.sizes, "distilbert.embeddings"
        tokens = embedding(tape, weights[f"{base}.word_embeddings.weight"], (n.b, n.s))
        positions = embedding(tape, weights[f"{base}.position_embeddings.weight"], (1, n.s), "embedded positions")
        x = add(tape, tokens, positions)
        x = self._norm(tape, weights, f"{base}.LayerNorm", x)
        return dropout(tape, x, self.config.dropout)

    def _block(self, tape: Tape, weights: Weights, index: int, x: Tensor, attention, mask) -> Tensor:
        base = f"distilbert.transformer.layer.{index}"
        attended, _probabilities = self._attended(tape, weights, f"{base}.attention", x, attention, mask)
        attended = self._norm(tape, weights, f"{base}.sa_layer_norm", add(tape, attended, x))
        inner = self._feed_forward(tape, weights, f"{base}.ffn", attended)
        return self._norm(tape, weights, f"{base}.output_layer_norm", add(tape, inner, attended))

    def _attended(self, tape: Tape, weights: Weights, base: str, x: Tensor, attention, mask) -> tuple:
        n = self.sizes
        by_heads = (n.b, n.a, n.s, share(n.h, n.a))
        q, k, v = (
            regrouped(
                tape,
                self.linear(tape, weights, f"{base}.{name}_lin", x, n.h, output=output),
                by_heads,
                copied_back=attention.copies_back(tape),
            )
            for name, output in (("q", "queries"), ("k", "keys"), ("v", "values"))
        )
        context, probabilities = attention(tape, q, k, v, mask)
        context = context.view(n.b, n.s, n.h)
        return self.linear(tape, weights, f"{base}.out_lin", context, n.h, output="attended"), probabilities

    def _feed_forward(self, tape: Tape, weights: Weights, base: str, x: Tensor) -> Tensor:
        n = self.sizes
        x = self.linear(tape, weights, f"{base}.lin1", x, n.f, output="inner layer")
        x = ACTIVATIONS[self.config.activation](tape, x)
        x = self.linear(tape, weights, f"{base}.lin2", x, n.h, output="outer layer")
        return dropout(tape, x, self.config.dropout)

    def _pooled_loss(self, tape: Tape, weights: Weights) -> Tensor:
        n, x = self.sizes, self._hidden(tape, weights)
        tape.part = "output layer"
        pooled = part_of(tape, x, (n.b, n.h))
        pooled = self.linear(tape, weights, "pre_classifier", pooled, n.h, output="pooled")
        pooled = saves_output(tape, pooled, "activated")
        pooled = dropout(tape, pooled, self.config.seq_classif_dropout)
        logits = self.linear(tape, weights, "classifier", pooled, n.c, output="logits")
        return cross_entropy(tape, logits)

    def _token_loss(self, tape: Tape, weights: Weights) -> Tensor:
        n, hidden = self.sizes, self._hidden(tape, weights)
        tape.part = "output layer"
        x = self.linear(tape, weights, "vocab_transform", hidden, n.h, output="transformed")
        x = ACTIVATIONS[self.config.activation](tape, x)
        x = self._norm(tape, weights, "vocab_layer_norm", x)
        table = {"vocab_projector.weight": weights["distilbert.embeddings.word_embeddings.weight"], **weights}
        logits = self.linear(tape, table, "vocab_projector", x, n.V, output="logits")
        return cross_entropy(tape, logits.view(n.b * n.s, n.V))

    @staticmethod
    def _norm(tape: Tape, weights: Weights, name: str, x: Tensor) -> Tensor:
        return layer_norm(tape, x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def _weight_and_bias(name: str, part: str, *shape) -> list[Named]:
    return [Named(f"{name}.weight", part, shape), Named(f"{name}.bias", part, shape[:1])]
