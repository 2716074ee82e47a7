"""What the pencil must know of a model: its tensors, and the operations of its forward pass."""

from abc import ABC, abstractmethod
from functools import partial
from math import prod
from types import SimpleNamespace
from typing import NamedTuple

from course_utils.memory.estimate.attention import Attention
from course_utils.memory.estimate.operations import (
    FLOAT,
    INDEX,
    cast,
    cross_entropy,
    gather_rows,
    gelu_new,
    linear,
    saves_input,
    saves_output,
)
from course_utils.memory.estimate.tape import Parameter, Tape, Tensor
from course_utils.memory.recipe import Recipe
from course_utils.techniques import segment_ranges

Weights = dict[str, Parameter]

ACTIVATIONS = {
    "gelu_new": gelu_new,
    "relu": lambda tape, x: saves_output(tape, x, "activated"),
    **dict.fromkeys(("gelu", "gelu_pytorch_tanh", "silu"), lambda tape, x: saves_input(tape, x, "activated")),
}


class Named(NamedTuple):
    """A tensor that is there before the step: its `name`, the `part` of the model, its shape, and bytes of an element.

    `itemsize` is None where the recipe's precision decides.
    """

    name: str
    part: str
    shape: tuple
    itemsize: int | None = None


class PencilModel(ABC):
    """One architecture. `sizes` holds its sizes under the letters of the formulas, as numbers or as symbols."""

    def __init__(self, config, recipe: Recipe, sizes: SimpleNamespace):
        self.config, self.recipe, self.sizes = config, recipe, sizes

    @staticmethod
    @abstractmethod
    def sizes_of(config, recipe: Recipe) -> dict[str, int]:
        """Every size that a formula may name."""

    @abstractmethod
    def parameters(self) -> list[Named]:
        """In the order of the real model's `named_parameters()`, with its names."""

    @abstractmethod
    def buffers(self) -> list[Named]:
        """What is kept beside the parameters and never trained."""

    @abstractmethod
    def inputs(self) -> list[Named]:
        """One micro-batch."""

    @abstractmethod
    def loss(self, tape: Tape, weights: Weights) -> Tensor:
        """The forward pass. Local names live as long as they do in the real model, for they keep memory alive."""

    def largest_unit(self) -> str:
        """The part whose parameters sharded training gathers at once: the one with most elements. `sizes` must be numbers."""
        elements: dict[str, int] = {}
        for named in self.parameters():
            elements[named.part] = elements.get(named.part, 0) + prod(named.shape)
        return max(elements, key=elements.get)


class TransformerModel(PencilModel):
    """What the three families of texts share."""

    @property
    def classifies(self) -> bool:
        """Whether it sorts whole texts rather than predict tokens."""
        return self.config.architectures[0].endswith("ForSequenceClassification")

    def inputs(self) -> list[Named]:
        """Token ids and labels; a classifier's texts differ in length and come with a mask."""
        n = self.sizes
        tokens, labels = ("token ids", "inputs", (n.b, n.s), INDEX), ("labels", "inputs", (n.b, n.s), INDEX)
        if not self.classifies:
            return [Named(*tokens), Named(*labels)]
        mask = Named("attention mask", "inputs", (n.b, n.s), INDEX)
        return [Named(*tokens), mask, Named("labels", "inputs", (n.b,), INDEX)]

    def attention(self, p: float, heads: int, **options) -> Attention:
        """Attention with dropout `p` as the recipe wants it; `options` as `Attention` has them."""
        return Attention(self.recipe.attention, p, self.recipe.batch, heads, **options)

    def linear(self, tape: Tape, weights: Weights, name: str, x: Tensor, features, *, output: str) -> Tensor:
        """The linear layer called `name`, with or without bias."""
        bias = weights.get(f"{name}.bias")
        return linear(tape, x, weights[f"{name}.weight"], bias, features=features, name=output)

    def run_blocks(self, tape: Tape, x: Tensor, block) -> Tensor:
        """All blocks, each `block(index, x)`, checkpointed if the recipe says so."""

        def run(x: Tensor, indices: range) -> Tensor:
            for index in indices:
                tape.part = f"block {index + 1}"
                x = block(index, x)
            return x

        if not self.recipe.checkpointing:
            return run(x, range(self.blocks))
        import torch

        for indices in segment_ranges(self.blocks, self.recipe.segments or self.blocks):
            tape.part = f"block {indices[0] + 1}"
            x = tape.checkpoint(partial(run, indices=indices), x, torch.get_rng_state().nbytes)
        return x

    def next_token_loss(self, tape: Tape, logits: Tensor) -> Tensor:
        """Cross-entropy against the next token, in 32 bits; the labels are moved along in a copy."""
        n = self.sizes
        logits = cast(tape, logits, FLOAT)
        padded = tape.new("labels, padded", (n.b, n.s + 1), INDEX)
        labels = tape.new("labels, moved along", (n.b, n.s), INDEX)
        loss = cross_entropy(tape, logits.view(n.b * n.s, n.V), labels)
        del padded
        return loss

    def last_token_loss(self, tape: Tape, weights: Weights, x: Tensor) -> Tensor:
        """A score for every token, of which each text's last counts."""
        n = self.sizes
        scores = self.linear(tape, weights, "score", x, n.c, output="scores")
        return cross_entropy(tape, gather_rows(tape, scores, (n.b, n.c)))
