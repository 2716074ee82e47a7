"""Chapter 12 on paper: seconds and bytes of a step on a mesh of cards; runs that fail, simulated."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np

from course_utils.distributed import communication, zero_bytes_per_rank
from course_utils.errors import CourseError
from course_utils.hardware import A100, LINKS, Cluster, all_reduce_seconds

# When does a cut pay? Seconds on the wire against seconds of computing.

_ELEMENT_BYTES = 2  # bytes on the wire, in bfloat16


def tokens_that_pay(flops: float, bandwidth: float, ranks: int, messages: int, share: float = 0.25) -> float:
    """Tokens from which the wire of data parallelism takes at most `share` of the computing, whatever the model's size.

    A parameter costs 6 operations a token, and on a ring `messages` times (N − 1)/N elements: 2 for gradients that are summed, 3
    where parameters are gathered twice and gradients scattered.
    """
    return messages * (ranks - 1) / ranks * _ELEMENT_BYTES * flops / (6 * share * bandwidth)


def width_that_pays(flops: float, bandwidth: float, ranks: int, share: float = 0.25) -> float:
    """The width h from which the wire of tensor parallelism takes at most `share` of the computing, in GPT's blocks.

    A block has 4 all-reduces of b·s·h elements and 72 b·s·h² / t operations, forward and backward. The tokens b·s cancel.
    """
    return (ranks - 1) * _ELEMENT_BYTES * flops / (9 * share * bandwidth)


def stage_that_pays(flops: float, bandwidth: float, share: float = 0.25) -> float:
    """The width h times blocks of a stage from which sending at its end takes at most `share` of the computing.

    A boundary sends b·s·h elements forward and as many back; a block computes 72 b·s·h² operations. The tokens cancel.
    """
    return _ELEMENT_BYTES * flops / (36 * share * bandwidth)


def asks_of_cuts(flops: float, bandwidth: float, ranks: int) -> dict[str, float]:
    """What each cut asks for: "data", tokens of a card in an update; "ZeRO-3", in a micro-batch; "tensor", the width; "pipeline",
    width times blocks of a stage."""
    return {
        "data": tokens_that_pay(flops, bandwidth, ranks, 2),
        "ZeRO-3": tokens_that_pay(flops, bandwidth, ranks, 3),
        "tensor": width_that_pays(flops, bandwidth, ranks),
        "pipeline": stage_that_pays(flops, bandwidth),
    }


# A step on a mesh.


@dataclass(frozen=True)
class Decoder:
    """Sizes: `width` h, `blocks` n, parameters of a `block` and `other_parameters`, `vocabulary` V, `context` s."""

    width: int
    blocks: int
    block: int
    vocabulary: int
    other_parameters: int
    context: int
    heads: int

    @property
    def parameters(self) -> int:
        return self.blocks * self.block + self.other_parameters

    def operations(self, blocks: int, recompute: bool = False) -> float:
        """Operations of a token, forward and backward, in the blocks and the output layer; `recompute` runs the blocks twice."""
        passes = 4 if recompute else 3
        return passes * blocks * (2 * self.block + 4 * self.context * self.width) + 6 * self.vocabulary * self.width


def gpt(width: int, blocks: int, heads: int, vocabulary: int = 51_200, context: int = 2048) -> Decoder:
    """A model of GPT's blocks, as in Narayanan et al. (2021), equation 2."""
    block = 12 * width**2 + 13 * width
    return Decoder(width, blocks, block, vocabulary, (vocabulary + context) * width, context, heads)


def llama(
    width: int, blocks: int, inner: int, heads: int, kv_heads: int, vocabulary: int = 32_000, context: int = 4096
) -> Decoder:
    """A model of Llama's blocks, whose MLP has three matrices; `kv_heads` heads have keys and values of their own."""
    block = 2 * width**2 * (heads + kv_heads) // heads + 3 * width * inner + 2 * width
    return Decoder(width, blocks, block, vocabulary, (2 * vocabulary + 1) * width, context, heads)


MODELS = {"Llama 2 7B": llama(4096, 32, 11_008, 32, 32), "Llama 2 70B": llama(8192, 80, 28_672, 64, 8)}
PARTS = {
    "computing": "activations",
    "tensor communication": "parameters",
    "bubble": "predicted",
    "pipeline communication": "inputs",
    "data communication": "warning",
}
"""Parts of a step's seconds, and their colors."""


class Mesh(NamedTuple):
    """d data × t tensor × p pipeline ranks: tensor ranks are neighbors, then come data ranks, then stages, as in Megatron."""

    d: int
    t: int
    p: int


@dataclass
class MeshStep:
    """One update of `tokens` in bfloat16 with AdamW on the cards of `mesh`, in k micro-batches, under ZeRO `stage` over d.

    Products reach half of the card's peak. Tensor and pipeline wait for their communication. That of data hides behind
    computing: of all micro-batches where each sends, under ZeRO-2 and 3, else of the last. Activations are those of Korthikanti
    et al. (2022), table 2, without attention's scores; a first stage holds min(k, p) micro-batches under 1F1B, else all k.
    Raises `CourseError` where heads, blocks or tokens don't suffice.
    """

    model: Decoder
    tokens: int
    cluster: Cluster
    mesh: Mesh
    k: int
    stage: int = 1
    one_f_one_b: bool = True
    recompute: bool = False

    def __post_init__(self):
        d, t, p = self.mesh
        model, k = self.model, self.k
        if min(d, t, p, k) < 1 or t > model.heads or p > model.blocks:
            limits = f"t up to {model.heads}, p up to {model.blocks}"
            raise CourseError(f"d={d}, t={t}, p={p}, k={k}: use 1 or more, {limits}.")
        if self.tokens < d * k * model.context:
            batches = f"{self.tokens:,} tokens in {d * k:,} micro-batches"
            raise CourseError(f"{batches} leave none a whole example; use fewer.")
        self.blocks = -(-model.blocks // p)  # of the slowest stage, which has the output layer too
        others = model.other_parameters / min(p, 2)
        self.parameters = math.ceil((self.blocks * model.block + others) / t)  # of a card, not sharded over d
        self.micro = self.tokens / (d * k)  # tokens of a micro-batch
        self.boundary = 2 * self.micro * model.width  # bytes that go from block to block for a micro-batch

    @property
    def name(self) -> str:
        shards = f", ZeRO-{self.stage}" * (self.mesh.d > 1)
        return " × ".join(map(str, self.mesh)) + shards + ", recomputes" * self.recompute

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Seconds that the step takes for each of `PARTS`."""
        _, t, p = self.mesh
        cluster, k = self.cluster, self.k
        all_reduces = k * self.blocks * (6 if self.recompute else 4)
        tensor = all_reduces * all_reduce_seconds(self.boundary, t, cluster.ring(t, 1))
        hop = cluster.intra_node if math.prod(self.mesh) <= cluster.cards else cluster.inter_node
        pipeline = 2 * (k + p - 1) * (self.boundary / hop.bandwidth + hop.latency) if p > 1 else 0.0
        bubble = (p - 1) / k * (self.computing + tensor)
        return dict(zip(PARTS, (self.computing, tensor, bubble, pipeline, self.wire - self.hidden), strict=True))

    @property
    def computing(self) -> float:
        operations = self.k * self.micro * self.model.operations(self.blocks, self.recompute)
        return operations / (self.mesh.t * 0.5 * self.cluster.card.flop_rates["bfloat16"])

    @property
    def wire(self) -> float:
        """Seconds of the communication of data ranks, hidden or not."""
        d, t, _ = self.mesh
        if d == 1:
            return 0.0
        method = f"zero{self.stage}" if self.stage else "ddp"
        sends = communication(
            method, self.parameters, d, parameter_bytes=2, gradient_bytes=2, accumulation=self.k, buckets=self.blocks
        )
        ring = self.cluster.ring(d, t)
        return sends.seconds(ring.bandwidth, ring.latency)

    @property
    def hidden(self) -> float:
        """Those seconds of `wire` that hide behind computing."""
        return min(self.wire, self.computing if self.stage >= 2 else self.computing / self.k)

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @cached_property
    def bytes(self) -> dict[str, float]:
        """Bytes of the fullest card by kind."""
        d, t, p = self.mesh
        model, micro = self.model, self.micro
        of_parameter = {"parameters": (2, 0, 0), "gradients": (0, 2, 0), "optimizer state": (0, 0, 12)}
        sizes = {k: float(zero_bytes_per_rank(self.parameters, d, self.stage, *v)) for k, v in of_parameter.items()}
        of_block = micro * model.width * (10 + 24 / t)
        in_flight = min(self.k, p) if self.one_f_one_b else self.k
        saved = in_flight * self.blocks * (self.boundary if self.recompute else of_block)
        logits = 4 * micro * model.vocabulary / t if p == 1 else 0.0
        sizes["activations"] = saved + self.recompute * of_block + logits
        # This block, the next one, and a gradient.
        sizes["temporaries"] = 3 * 2 * model.block / t if self.stage == 3 else 0.0
        return sizes

    @property
    def peak(self) -> float:
        return sum(self.bytes.values())

    @property
    def fits(self) -> bool:
        return self.peak <= self.cluster.card.memory


def steps_on_meshes(model: Decoder, tokens: int, cluster: Cluster, cards: int) -> list[MeshStep]:
    """The quickest step that fits on each mesh of `cards`, t and p powers of two, an example a micro-batch; else the smallest.

    Tried are computing again or not, and ZeRO-1 or, in one stage, ZeRO-3. Those that fit come first, the quickest first.
    """
    steps = []
    powers = [2**n for n in range(cards.bit_length())]
    for t, p in product(powers, powers):
        d, rest = divmod(cards, t * p)
        k = tokens // (model.context * d) if d else 0
        if rest or not k or t > model.heads or p > model.blocks:
            continue
        tries = [
            MeshStep(model, tokens, cluster, Mesh(d, t, p), k, stage, recompute=recompute)
            for recompute, stage in product((False, True), (1, 3) if p == 1 else (1,))
        ]
        fitting = [step for step in tries if step.fits]
        steps.append(min(fitting, key=lambda s: s.total) if fitting else min(tries, key=lambda s: s.peak))
    return sorted(steps, key=lambda step: (not step.fits, step.total))


def select_steps(steps: Sequence[MeshStep]) -> list[MeshStep]:
    """The five quickest that fit, and those with the most data, tensor and pipeline ranks."""
    fit = [step for step in steps if step.fits]
    ends = [max(fit, key=lambda step: step.mesh[axis]) for axis in range(3) if fit]
    return sorted({step.name: step for step in fit[:5] + ends}.values(), key=lambda step: step.total)


# Published runs.


class PublishedRun(NamedTuple):
    """A row of table 1 of Narayanan et al. (2021), on A100s: the model, its mesh, the `batch` in examples, FLOP/s a card."""

    model: Decoder
    t: int
    p: int
    cards: int
    batch: int
    flops: float

    @property
    def d(self) -> int:
        return self.cards // (self.t * self.p)


_ROWS = (
    (2304, 24, 24, 1, 1, 32, 512, 137), (3072, 30, 32, 2, 1, 64, 512, 138), (4096, 36, 32, 4, 1, 128, 512, 142),
    (6144, 40, 48, 8, 1, 256, 1024, 135), (8192, 48, 64, 8, 2, 512, 1536, 138), (10240, 60, 80, 8, 4, 1024, 1792, 140),
    (12288, 80, 96, 8, 8, 1536, 2304, 148), (16384, 96, 128, 8, 16, 1920, 2160, 155),
    (20480, 105, 128, 8, 35, 2520, 2520, 163), (25600, 128, 160, 8, 64, 3072, 3072, 163),
)  # fmt: skip
PUBLISHED = [PublishedRun(gpt(*row[:3]), *row[3:7], 1e12 * row[7]) for row in _ROWS]
WITH_ZERO_3 = [
    PublishedRun(gpt(12288, 96, 96), 1, 1, cards, 1536, 1e12 * flops)
    for cards, flops in ((384, 144), (768, 88), (1536, 44))
]
"""Their GPT-3 under ZeRO-3 alone: table 2."""
SELENE = Cluster(A100, LINKS["NVLink 3"], LINKS["200 Gb/s"])
"""The machines of those runs (Narayanan et al. 2021, section 5)."""


def predicted_flops(run: PublishedRun, stage: int = 0) -> float:
    """FLOP/s a card of a published run by `MeshStep`, an example a micro-batch.

    Counted as there: what is computed again counts too.
    """
    tokens = run.batch * run.model.context
    mesh = Mesh(run.d, run.t, run.p)
    step = MeshStep(run.model, tokens, SELENE, mesh, run.batch // run.d, stage, recompute=True)
    return tokens * run.model.operations(run.model.blocks, recompute=True) / run.cards / step.total


def seconds_of_an_update(run: PublishedRun) -> tuple[float, float]:
    """Seconds of a published run's update as it achieved them, and those at half of the peak."""
    operations = run.batch * run.model.context * run.model.operations(run.model.blocks, recompute=True) / run.cards
    return operations / run.flops, operations / (0.5 * A100.flop_rates["bfloat16"])


# Failures.

LLAMA_3 = {"cards": 16_384, "days": 54, "interruptions": 419, "parameters": 405e9, "storage": 2e12}
"""Grattafiori et al. (2024), sections 3.3.1 and 3.3.4: unexpected interruptions on up to 16,384 H100s; bytes a second that the
storage takes all the time."""
CARD_FAILURE_INTERVAL = LLAMA_3["days"] * 86_400 * LLAMA_3["cards"] / LLAMA_3["interruptions"]
"""Seconds between two failures of one card, by that run."""


def simulate_wall_clock(
    pieces: int, interval: float, saving: float, restart: float, between: float, runs: int = 200, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Simulate `runs` of `pieces` × `interval` seconds of work, each piece followed by `saving` seconds for a checkpoint.

    Failures come at random, on average `between` seconds apart, at any time: while working, saving and restarting. After
    one the run takes `restart` seconds and goes on from its last checkpoint. Returns seconds and restarts of each run.
    Raises `CourseError` where a run would hardly ever end.
    """
    if daly_wall_clock(interval * pieces, interval, saving, restart, between) > 1e6 * between:
        raise CourseError(
            f"A run would fail over a million times; use an interval or a restart shorter than {between:.3g} s."
        )
    random, start = np.random.default_rng(seed), 0.0
    seconds, restarts, left = np.zeros(runs), np.zeros(runs, int), np.full(runs, pieces)
    while (going := left > 0).any():
        alive = random.exponential(between, runs)
        saved = np.floor(np.maximum(alive - start, 0) / (interval + saving)).astype(int)
        ends = saved >= left
        seconds += going * np.where(ends, start + left * (interval + saving), alive)
        restarts += going & ~ends
        left, start = np.maximum(left - saved, 0), restart
    return seconds, restarts


def daly_wall_clock(work: float, interval: float, saving: float, restart: float, between: float) -> float:
    """The expected seconds of `simulate_wall_clock` (Daly 2006): M e^(R/M) (e^((τ + δ)/M) − 1) a piece.

    A piece needs τ + δ seconds without a failure, after each failure R more. To get x seconds without one takes
    M (e^(x/M) − 1) on average.
    """
    try:
        return between * math.exp(restart / between) * math.expm1((interval + saving) / between) * work / interval
    except OverflowError:
        return math.inf


def young_interval(saving: float, between: float) -> float:
    """Seconds of work between checkpoints that lose the least, to first order (Young 1974): √(2δM)."""
    return math.sqrt(2 * saving * between)


def daly_interval(saving: float, between: float) -> float:
    """`young_interval` to higher order (Daly 2006, equation 37)."""
    if saving >= 2 * between:
        return between
    x = saving / (2 * between)
    return young_interval(saving, between) * (1 + math.sqrt(x) / 3 + x / 9) - saving


def shares_lost(
    cards: int, saving: float, restart: float, runs: int = 200
) -> tuple[dict[float, float], dict[float, float]]:
    """The share of time that is lost, by minutes of work between checkpoints: the mean of `runs` simulations, and Daly's.

    Intervals reach from a twentieth of the best one to twenty times as long.
    """
    between = CARD_FAILURE_INTERVAL / cards
    best = daly_interval(saving, between)
    simulated, formula = {}, {}
    for interval in best * np.geomspace(1 / 20, 20, 9):
        pieces = max(1, round(200 * between / interval))
        seconds = simulate_wall_clock(pieces, interval, saving, restart, between, runs)[0].mean()
        simulated[interval / 60] = 1 - pieces * interval / seconds
    for interval in best * np.geomspace(1 / 20, 20, 61):
        formula[interval / 60] = 1 - interval / daly_wall_clock(interval, interval, saving, restart, between)
    return simulated, formula
