"""A cluster's cards as a mesh of data, tensor and pipeline: what one card has of the model, and what it sends for it."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple

from course_utils.errors import CourseError, require_count
from course_utils.hardware.links import Cluster, Link
from course_utils.memory.depth import depth_of
from course_utils.memory.model import Source
from course_utils.memory.recipe import Recipe
from course_utils.memory.trial import Trial


@dataclass(frozen=True)
class Layout:
    """`data` × `tensor` × `pipeline` cards. Tensor ranks are neighbors, then come data ranks, then stages, as in Megatron.

    The recipe's `ranks` are those of `data`; its `zero_stage` and `replicas` share out among them. Raises `CourseError` for a
    number that is no whole one from 1 on.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1

    def __post_init__(self):
        for name, value in vars(self).items():
            require_count(name, value)

    @property
    def cards(self) -> int:
        """How many there are."""
        return self.data * self.tensor * self.pipeline

    def __str__(self):
        return f"{self.data} × {self.tensor} × {self.pipeline} (data × tensor × pipeline)"

    def part_of(self, source: Source) -> Source:
        """What one card has of a model like Llama, before data ranks share it out: its stage's blocks, narrower by `tensor`.

        Heads and the MLP's inner width are cut; norms, embedding and output layer are whole on every card, as by
        `distributed.tensor_parallel`. A stage counts as if it had both the embedding and the output layer. Raises
        `CourseError` where something does not divide.
        """
        config, blocks = deepcopy(source.config), depth_of(source.config)
        config.head_dim = config.hidden_size // config.num_attention_heads
        cut = {
            "heads": "num_attention_heads",
            "heads of keys and values": "num_key_value_heads",
            "inner width": "intermediate_size",
        }
        for what, name in cut.items():
            setattr(config, name, _divided(getattr(config, name), self.tensor, what, "tensor ranks"))
        config.num_hidden_layers = _divided(blocks, self.pipeline, "blocks", "stages")
        return source.with_config(config)


def _divided(whole: int, parts: int, what: str, of: str) -> int:
    if whole % parts:
        raise CourseError(f"{whole} {what} do not divide over {parts} {of}; choose a number that divides them.")
    return whole // parts


class Sent(NamedTuple):
    """What a card sends in an update for one reason: bytes, messages one after the other, the link, and of all that the bytes
    that leave a machine with the `cards` of it together."""

    why: str
    bytes: int
    messages: int
    link: Link
    leaving: int

    @property
    def seconds(self) -> float:
        """None of it hidden."""
        return self.bytes / self.link.bandwidth + self.messages * self.link.latency


def sent_by(layout: Layout, cluster: Cluster, recipe: Recipe, width: int, blocks: int, trial: Trial) -> Iterator[Sent]:
    """All that a card sends in an update of `trial`, whose traffic is that of its data ranks.

    A block has 4 all-reduces of b·s·h numbers over the tensor ranks for each micro-batch, 6 where it is computed twice; a stage's
    end sends b·s·h numbers forward and as many back.
    """
    groups = (
        {"all-reduce": (recipe.replicas, layout.tensor * layout.data // recipe.replicas)} if recipe.replicas > 1 else {}
    )
    for collective, (size, messages) in trial.traffic.items():
        ranks, apart = groups.get(collective, (layout.data // recipe.replicas, layout.tensor))
        yield _on_ring(f"{collective} among data ranks", size, messages, ranks, apart, cluster)
    message = recipe.batch * recipe.sequence * width * (4 if recipe.precision == "fp32" else 2)
    if layout.tensor > 1:
        times = (6 if recipe.checkpointing else 4) * blocks * recipe.accumulation
        rounds = 2 * (layout.tensor - 1)
        size = times * rounds * message // layout.tensor
        yield _on_ring("all-reduce among tensor ranks", size, times * rounds, layout.tensor, 1, cluster)
    if layout.pipeline > 1:
        stage = layout.data * layout.tensor
        far = layout.cards > cluster.cards
        link = cluster.between if far else cluster.within
        size = 2 * recipe.accumulation * message
        rounds = 2 * (recipe.accumulation + layout.pipeline - 1)
        yield Sent("activations from stage to stage", size, rounds, link, far * min(stage, cluster.cards) * size // 2)


def _on_ring(why: str, size: int, messages: int, ranks: int, apart: int, cluster: Cluster) -> Sent:
    """A ring leaves a machine over one of its cards, so as many rings as there are cards between two of its ranks do."""
    leaves = ranks * apart > cluster.cards
    return Sent(why, size, messages, cluster.ring(ranks, apart), leaves * min(apart, cluster.cards) * size)
