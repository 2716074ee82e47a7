"""A cluster's cards as a mesh of data, tensor and pipeline: what one card has of the model, and what it sends for it."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple

from course_utils.errors import CourseError, require_count
from course_utils.hardware import Cluster
from course_utils.memory.formulas.prediction import Trial
from course_utils.memory.step.blocks import depth_of
from course_utils.memory.step.model import Source
from course_utils.memory.step.recipe import Recipe


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
        return self.data * self.tensor * self.pipeline

    def __str__(self):
        return f"{self.data} × {self.tensor} × {self.pipeline} (data × tensor × pipeline)"

    def part_of(self, source: Source) -> Source:
        """One card's part of a model like Llama, before data ranks share it out: its stage's blocks, narrower by `tensor`.

        Heads and the MLP's inner width are cut; norms, embedding and output layer are whole on every card, as by
        `distributed.tensor_parallel`. A stage counts as if it had both the embedding and the output layer. Raises
        `CourseError` where something does not divide, and for another kind of model.
        """
        if not hasattr(source.config, "num_key_value_heads"):
            raise CourseError(f"{source.name} is no model like Llama; cut it over data ranks alone.")
        config, blocks = deepcopy(source.config), depth_of(source.config)
        config.head_dim = config.hidden_size // config.num_attention_heads
        cut = {
            "heads": "num_attention_heads",
            "heads of keys and values": "num_key_value_heads",
            "inner width": "intermediate_size",
        }
        for quantity, name in cut.items():
            setattr(config, name, _divide(getattr(config, name), self.tensor, quantity, "tensor ranks"))
        config.num_hidden_layers = _divide(blocks, self.pipeline, "blocks", "stages")
        return source.with_config(config)


def _divide(number: int, parts: int, quantity: str, ranks: str) -> int:
    if number % parts:
        raise CourseError(f"{number} {quantity} do not divide over {parts} {ranks}; choose a number that divides them.")
    return number // parts


class Sent(NamedTuple):
    """What a card sends in an update for one reason, in `bytes` and `seconds`; `leaving` are the bytes that leave a machine so.

    It hides behind: `"all"` computing, the `"last backward"` pass, or nothing (`""`).
    """

    reason: str
    bytes: int
    seconds: float
    leaving: int
    hides: str = ""


_HIDING_PHASES = {"all-reduce": "last backward", "all-gather": "all", "reduce-scatter": "all"}


def sent_by(layout: Layout, cluster: Cluster, recipe: Recipe, width: int, blocks: int, trial: Trial) -> Iterator[Sent]:
    """All that a card sends in an update of `trial`, whose traffic is that of its data ranks.

    A block has 4 all-reduces of b·s·h numbers over the tensor ranks for each micro-batch, 6 where it is computed twice; a stage's
    end sends b·s·h numbers forward and as many back, and waits in each of k + p − 1 turns. FSDP's gathers and sums go on while
    other blocks compute, DDP's all-reduce during the last backward pass; what comes after the update hides behind nothing.
    """
    for collective, (size, messages) in trial.traffic.items():
        of_replicas = collective == "all-reduce" and recipe.replicas > 1
        shards = layout.data // recipe.replicas
        group = (recipe.replicas, layout.tensor * shards) if of_replicas else (shards, layout.tensor)
        hides = "all" if of_replicas else _HIDING_PHASES.get(collective, "")
        yield _send_on_ring(f"{collective} among data ranks", size, messages, *group, cluster, hides)
    numbers = recipe.batch * recipe.sequence * width
    if layout.tensor > 1:
        times = (6 if recipe.checkpointing else 4) * blocks * recipe.accumulation
        rounds = 2 * (layout.tensor - 1)
        size = times * rounds * numbers * (4 if recipe.precision == "fp32" else 2) // layout.tensor
        yield _send_on_ring("all-reduce among tensor ranks", size, times * rounds, layout.tensor, 1, cluster)
    if layout.pipeline > 1:
        message = numbers * recipe.itemsize  # autocast leaves what goes from block to block in float32
        across_machines = layout.cards > cluster.cards
        link = cluster.inter_node if across_machines else cluster.intra_node
        turns = 2 * (recipe.accumulation + layout.pipeline - 1)
        leaving = across_machines * min(layout.data * layout.tensor, cluster.cards) * recipe.accumulation * message
        seconds = turns * (message / link.bandwidth + link.latency)
        yield Sent("activations from stage to stage", 2 * recipe.accumulation * message, seconds, leaving)


def _send_on_ring(
    reason: str, size: int, messages: int, ranks: int, stride: int, cluster: Cluster, hides: str = ""
) -> Sent:
    """A ring leaves a machine over one of its cards, so as many rings as there are cards between two of its ranks do."""
    leaving = (ranks * stride > cluster.cards) * min(stride, cluster.cards) * size
    link = cluster.ring(ranks, stride)
    return Sent(reason, size, size / link.bandwidth + messages * link.latency, leaving, hides)
