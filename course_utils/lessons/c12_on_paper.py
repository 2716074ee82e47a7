"""Chapter 12 on paper: seconds and bytes of a step on a mesh of cards; runs that fail, simulated."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from course_utils.distributed import communication, zero_bytes_per_rank
from course_utils.errors import CourseError
from course_utils.hardware import A100, LINKS, Cluster, all_reduce_seconds
from course_utils.units import format_seconds
from course_utils.viz.plots import bars, legend, lines, note, panels, tick, together
from course_utils.viz.style import COLORS, LINES, MARKS, SERIES, text_color

# When does a cut pay? Seconds on the wire against seconds of computing.

_ELEMENT = 2  # bytes on the wire, in bfloat16


def tokens_that_pay(flops: float, bandwidth: float, ranks: int, messages: int, share: float = 0.25) -> float:
    """Tokens from which the wire of data parallelism takes at most `share` of the computing, whatever the model's size.

    A parameter costs 6 operations a token, and on a ring `messages` times (N − 1)/N elements: 2 for gradients that are summed, 3
    where parameters are gathered twice and gradients scattered.
    """
    return messages * (ranks - 1) / ranks * _ELEMENT * flops / (6 * share * bandwidth)


def width_that_pays(flops: float, bandwidth: float, ranks: int, share: float = 0.25) -> float:
    """The width h from which the wire of tensor parallelism takes at most `share` of the computing, in GPT's blocks.

    A block has 4 all-reduces of b·s·h elements and 72 b·s·h² / t operations, forward and backward. The tokens b·s cancel.
    """
    return (ranks - 1) * _ELEMENT * flops / (9 * share * bandwidth)


def stage_that_pays(flops: float, bandwidth: float, share: float = 0.25) -> float:
    """The width h times blocks of a stage from which sending at its end takes at most `share` of the computing.

    A boundary sends b·s·h elements forward and as many back; a block computes 72 b·s·h² operations. The tokens cancel.
    """
    return _ELEMENT * flops / (36 * share * bandwidth)


def cuts_figure(flops: float, names: Sequence[str], has: Mapping[str, float]) -> tuple[Figure, str]:
    """What each cut over 8 cards asks for on each of `LINKS`, beside what a model `has`: "data", tokens of a card in an update;
    "ZeRO-3", in a micro-batch; "tensor", its width; "pipeline", width times blocks of a stage."""
    asks = {
        "data": ("tokens an update", lambda rate: tokens_that_pay(flops, rate, 8, 2)),
        "ZeRO-3": ("tokens a micro-batch", lambda rate: tokens_that_pay(flops, rate, 8, 3)),
        "tensor": ("width", lambda rate: width_that_pays(flops, rate, 8)),
        "pipeline": ("width × blocks", lambda rate: stage_that_pays(flops, rate)),
    }
    figure, grid = panels(2, 2, height=5.6, sharey=True)
    by_cut, between = [], []
    for axes, (name, (unit, ask)) in zip(grid.flat, asks.items(), strict=True):
        needs = [ask(LINKS[link].bandwidth) for link in names]
        for row, need in enumerate(needs):
            color, mark = ("third", "o") if need <= has[name] else ("warning", "X")
            axes.plot(need, row, mark, color=COLORS[color], markersize=7)
            note(axes, two_digits(need), (need, row), (-8 if need <= has[name] else 8, 0))
        axes.axvline(has[name], color=COLORS["ink"], linestyle="--", linewidth=1.2, zorder=0)
        limits = min(*needs, has[name]) / 30, max(*needs, has[name]) * 30
        axes.set(xscale="log", xlim=limits, ylim=(len(names) - 0.5, -0.5), xlabel=f"{unit}, at least")
        axes.set_title(f"{name}: this run has {has[name]:,} (dashed)", fontsize=10)
        axes.minorticks_off()
        enough = [link for link, need in zip(names, needs, strict=True) if need <= has[name]]
        if "400 Gb/s" in enough:
            between.append(name)
        listed = ", ".join(f"{link} {two_digits(need)}" for link, need in zip(names, needs, strict=True))
        by_cut.append(f"{name}, {unit}: asked {listed}; has {has[name]:,}, enough on {', '.join(enough) or 'none'}")
    grid[0, 0].set_yticks(range(len(names)), names)
    for mark, color, words in (("o", "third", "enough"), ("X", "warning", "too little")):
        grid[0, 0].plot([], [], mark, color=COLORS[color], markersize=7, label=words)
    legend(grid[0, 0])
    title = f"At 400 Gb/s, only the cuts by {' and '.join(between)} pay"
    return together(figure, title, f"What a cut asks for on 8 cards. {'. '.join(by_cut)}.")


def two_digits(number: float) -> str:
    """Two digits, as many as a rough prediction deserves: `'2,500,000'`, `'66'`, `'6.4'`."""
    rounded = float(f"{number:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"


# A step on a mesh.


@dataclass(frozen=True)
class Decoder:
    """Sizes: `width` h, `blocks` n, parameters of a `block` and `outside` of the blocks, `vocabulary` V, `context` s."""

    width: int
    blocks: int
    block: int
    vocabulary: int
    outside: int
    context: int
    heads: int

    @property
    def parameters(self) -> int:
        return self.blocks * self.block + self.outside

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


@dataclass(frozen=True)
class MeshStep:
    """A step on a mesh of d × t × p cards: `seconds` by part; those of the data that are `hidden`; a card's `bytes`."""

    mesh: tuple[int, int, int]
    stage: int
    recompute: bool
    seconds: Mapping[str, float]
    hidden: float
    bytes: Mapping[str, float]
    fits: bool

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @property
    def held(self) -> float:
        """Bytes of the fullest card."""
        return sum(self.bytes.values())

    @property
    def name(self) -> str:
        """The mesh and what else was chosen."""
        shards = f", ZeRO-{self.stage}" * (self.mesh[0] > 1)
        return " × ".join(map(str, self.mesh)) + shards + ", recomputes" * self.recompute


def step_on_mesh(
    model: Decoder, tokens: int, cluster: Cluster, d: int, t: int, p: int, k: int, stage: int = 1,
    one_f_one_b: bool = True, recompute: bool = False,
) -> MeshStep:  # fmt: skip
    """One update of `tokens` in bfloat16 with AdamW on d × t × p cards, in k micro-batches, under ZeRO `stage` over d.

    Tensor ranks are neighbors, then come data ranks, then stages, as in Megatron. Products reach half of the card's peak.
    Tensor and pipeline wait for their communication. That of data hides behind computing: of all micro-batches where each
    sends, under ZeRO-2 and 3, else of the last. Activations are those of Korthikanti et al. (2022), table 2, without
    attention's scores; a first stage holds min(k, p) micro-batches under 1F1B, else all k. Raises `CourseError` where heads,
    blocks or tokens don't suffice.
    """
    _check_mesh(model, tokens, d, t, p, k)
    here, micro = -(-model.blocks // p), tokens / (d * k)  # the slowest stage has the most blocks, and the output layer
    compute = k * micro * model.operations(here, recompute) / (t * 0.5 * cluster.card.flops["bfloat16"])
    sent = 2 * micro * model.width
    tensor = k * here * (6 if recompute else 4) * all_reduce_seconds(sent, t, cluster.ring(t, 1))
    hop = cluster.intra_node if d * t * p <= cluster.cards else cluster.inter_node
    pipeline = 2 * (k + p - 1) * (sent / hop.bandwidth + hop.latency) if p > 1 else 0.0
    mine = math.ceil((here * model.block + model.outside / min(p, 2)) / t)
    wire = 0.0
    if d > 1:
        of_data = cluster.ring(d, t)
        method = f"zero{stage}" if stage else "ddp"
        sends = communication(method, mine, d, parameter_bytes=2, gradient_bytes=2, accumulation=k, buckets=here)
        wire = sends.seconds(of_data.bandwidth, of_data.latency)
    hidden = min(wire, compute if stage >= 2 else compute / k)
    bubble = (p - 1) / k * (compute + tensor)
    seconds = dict(zip(PARTS, (compute, tensor, bubble, pipeline, wire - hidden), strict=True))

    sizes = {"parameters": (2, 0, 0), "gradients": (0, 2, 0), "optimizer state": (0, 0, 12)}
    held = {kind: float(zero_bytes_per_rank(mine, d, stage, *size)) for kind, size in sizes.items()}
    of_block = micro * model.width * (10 + 24 / t)
    waiting = (min(k, p) if one_f_one_b else k) * here * (sent if recompute else of_block)
    logits = 4 * micro * model.vocabulary / t if p == 1 else 0.0
    held["activations"] = waiting + recompute * of_block + logits
    held["temporaries"] = 3 * 2 * model.block / t if stage == 3 else 0.0  # this block, the next one, and a gradient
    fits = sum(held.values()) <= cluster.card.memory
    return MeshStep((d, t, p), stage, recompute, seconds, hidden, held, fits)


def _check_mesh(model: Decoder, tokens: int, d: int, t: int, p: int, k: int) -> None:
    if min(d, t, p, k) < 1 or t > model.heads or p > model.blocks:
        raise CourseError(f"d={d}, t={t}, p={p}, k={k}: use 1 or more, t up to {model.heads}, p up to {model.blocks}.")
    if tokens < d * k * model.context:
        raise CourseError(f"{tokens:,} tokens in {d * k:,} micro-batches leave none a whole example; use fewer.")


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
            step_on_mesh(model, tokens, cluster, d, t, p, k, stage, recompute=again)
            for again, stage in product((False, True), (1, 3) if p == 1 else (1,))
        ]
        fitting = [step for step in tries if step.fits]
        steps.append(min(fitting, key=lambda s: s.total) if fitting else min(tries, key=lambda s: s.held))
    return sorted(steps, key=lambda step: (not step.fits, step.total))


def telling(steps: Sequence[MeshStep]) -> list[MeshStep]:
    """The five quickest that fit, and those with the most data, tensor and pipeline ranks."""
    fit = [step for step in steps if step.fits]
    ends = [max(fit, key=lambda step: step.mesh[axis]) for axis in range(3) if fit]
    return sorted({step.name: step for step in fit[:5] + ends}.values(), key=lambda step: step.total)


def meshes_figure(by_model: Mapping[str, Sequence[MeshStep]]) -> tuple[Figure, str]:
    """The parts of the seconds of each model's `telling` steps."""
    shown = {name: telling(steps) for name, steps in by_model.items()}
    figure, grid = panels(1, len(shown), height=1.9 + 0.36 * max(map(len, shown.values())), squeeze=False)
    rankings = []
    for axes, (name, steps) in zip(grid[0], shown.items(), strict=True):
        longest = 2.5 * steps[0].total
        rows, notes = {}, {}
        for step in steps:
            row = step.name.replace(", ", "\n", 1)
            ends = np.minimum(np.cumsum([step.seconds[part] for part in PARTS]), longest)
            rows[row] = dict(zip(PARTS, np.diff(ends, prepend=0.0), strict=True))
            notes[row] = f"{'→ ' if step.total > longest else ''}{two_digits(step.total)} s"
        title, x = f"{name}: predicted best {steps[0].name.partition(',')[0]}", "predicted seconds (→: longer)"
        bars(rows, title, x, unit="", colors=PARTS, notes=notes, show_legend=False, axes=axes)
        axes.set_title(title, fontsize=9)
        axes.tick_params(axis="y", labelsize=8)
        every = by_model[name]
        listed = "; ".join(f"{step.name} {two_digits(step.total)} s" for step in steps)
        rankings.append(
            f"{name}, {sum(step.fits for step in every)} of {len(every)} meshes fit; data × tensor × pipeline, the quickest and "
            f"the largest of each kind: {listed}"
        )
    drawn = [part for part in PARTS if any(step.seconds[part] for steps in shown.values() for step in steps)]
    legend(axes, *((part, PARTS[part]) for part in drawn))
    return figure, f"{'. '.join(rankings)}."


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
    """FLOP/s a card of a published run by `step_on_mesh`, an example a micro-batch.

    Counted as there: what is computed again counts too.
    """
    tokens = run.batch * run.model.context
    k = run.batch // run.d
    step = step_on_mesh(run.model, tokens, SELENE, run.d, run.t, run.p, k, stage, recompute=True)
    return tokens * run.model.operations(run.model.blocks, recompute=True) / run.cards / step.total


def seconds_of_an_update(run: PublishedRun) -> tuple[float, float]:
    """Seconds of a published run's update as it achieved them, and those at half of the peak."""
    operations = run.batch * run.model.context * run.model.operations(run.model.blocks, recompute=True) / run.cards
    return operations / run.flops, operations / (0.5 * A100.flops["bfloat16"])


def published_figure() -> tuple[Figure, str]:
    """Achieved and predicted FLOP/s a card against the number of parameters, and half of the peak, which was assumed."""
    sizes = [run.model.parameters for run in PUBLISHED]
    x = "parameters"
    y = "teraFLOP/s a card"
    achieved = [run.flops / 1e12 for run in PUBLISHED]
    predicted = [predicted_flops(run) / 1e12 for run in PUBLISHED]
    half = 0.5 * A100.flops["bfloat16"] / 1e12
    off = [np.sqrt(np.mean(np.square(np.divide(values, achieved) - 1))) for values in (half, predicted)]
    title = f"Half of the peak is off by {off[0]:.0%} (root mean square), our prediction by {off[1]:.0%}"
    values = {"published": achieved, "predicted, with the mesh": predicted}
    data = {name: dict(zip(sizes, line, strict=True)) for name, line in values.items()}
    styles = dict(zip(data, (("measured", "o-"), ("predicted", "s--")), strict=True))
    styles["half of the peak alone"] = "ink", ":"
    levels = {"half of the peak alone": half}
    figure, _ = lines(data, title, x, y, log="x", styles=styles, levels=levels, labels="legend")
    figure.axes[0].set_xticks([1e9, 1e10, 1e11, 1e12], ["1 billion", "10 billion", "100 billion", "1 trillion"])
    figure.axes[0].set_ylim(100, 175)
    by_run = "; ".join(
        f"{run.model.parameters / 1e9:.1f} billion on {run.d} × {run.t} × {run.p}: {theirs:.0f}, predicted {ours:.0f}"
        for run, theirs, ours in zip(PUBLISHED, achieved, predicted, strict=True)
    )
    begins = f"{title}. TeraFLOP/s a card against parameters, published and predicted, data × tensor × pipeline"
    return figure, f"{begins}; half of the peak is {half:.0f}. {by_run}."


# Failures.

LLAMA_3 = {"cards": 16_384, "days": 54, "interruptions": 419, "parameters": 405e9, "storage": 2e12}
"""Grattafiori et al. (2024), sections 3.3.1 and 3.3.4: unexpected interruptions on up to 16,384 H100s; bytes a second that the
storage takes all the time."""
CARD_BETWEEN = LLAMA_3["days"] * 86_400 * LLAMA_3["cards"] / LLAMA_3["interruptions"]
"""Seconds between two failures of one card, by that run."""


def wall_clock(
    pieces: int, every: float, saving: float, restart: float, between: float, runs: int = 200, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Simulate `runs` of `pieces` × `every` seconds of work, each piece followed by `saving` seconds for a checkpoint.

    Failures come at random, on average `between` seconds apart, at any time: while working, saving and restarting. After
    one the run takes `restart` seconds and goes on from its last checkpoint. Returns seconds and restarts of each run.
    Raises `CourseError` where a run would hardly ever end.
    """
    if daly_wall_clock(every * pieces, every, saving, restart, between) > 1e6 * between:
        raise CourseError(
            f"A run would fail over a million times; use an interval or a restart shorter than {between:.3g} s."
        )
    random, start = np.random.default_rng(seed), 0.0
    seconds, restarts, left = np.zeros(runs), np.zeros(runs, int), np.full(runs, pieces)
    while (going := left > 0).any():
        alive = random.exponential(between, runs)
        saved = np.floor(np.maximum(alive - start, 0) / (every + saving)).astype(int)
        ends = saved >= left
        seconds += going * np.where(ends, start + left * (every + saving), alive)
        restarts += going & ~ends
        left, start = np.maximum(left - saved, 0), restart
    return seconds, restarts


def daly_wall_clock(work: float, every: float, saving: float, restart: float, between: float) -> float:
    """The expected seconds of `wall_clock` (Daly 2006): M e^(R/M) (e^((τ + δ)/M) − 1) a piece.

    A piece needs τ + δ seconds without a failure, after each failure R more. To get x seconds without one takes
    M (e^(x/M) − 1) on average.
    """
    try:
        return between * math.exp(restart / between) * math.expm1((every + saving) / between) * work / every
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


def failures_figure(cards: Sequence[int], saving: float, restart: float, runs: int = 200) -> tuple[Figure, str]:
    """The share of time that is lost against the interval, for several numbers of cards: Daly's lines and simulated dots."""
    figure, axes = panels(height=3.6)
    by_count, least = [], {}
    for row, count in enumerate(cards):
        between = CARD_BETWEEN / count
        color = SERIES[row]
        best = daly_interval(saving, between)
        intervals, dots = (best * np.geomspace(1 / 20, 20, n) for n in (60, 9))
        lost = [1 - every / daly_wall_clock(every, every, saving, restart, between) for every in intervals]
        axes.plot(intervals / 60, np.multiply(100, lost), color=COLORS[color], linestyle=LINES[row % 4])
        seen = []
        for every in dots:
            pieces = max(1, round(200 * between / every))
            took = wall_clock(pieces, every, saving, restart, between, runs)[0].mean()
            seen.append(100 * (1 - pieces * every / took))
        axes.plot(dots / 60, seen, MARKS[row], color=COLORS[color])
        least[count] = 1 - best / daly_wall_clock(best, best, saving, restart, between)
        axes.plot(best / 60, 100 * least[count], "|", color=COLORS["ink"], markersize=16)
        axes.text(dots[-1] / 60, seen[-1] + 4, f"{count:,} cards", color=text_color(color), ha="right", fontsize=9)
        by_count.append(
            f"{count:,} cards: {3600 / between:.2g} failures an hour, best every {format_seconds(best)}, "
            f"{least[count]:.0%} lost"
        )
    axes.set(xscale="log", xlabel="minutes of work between checkpoints", ylabel="% of time lost", ylim=(-3, 80))
    tick(axes, [0.1, 0.3, 1, 3, 10, 30, 100, 300])
    proxies = [Line2D([], [], color=COLORS["ink"]), Line2D([], [], color=COLORS["ink"], marker="o", linestyle="")]
    figure.legend(proxies, ["Daly's formula", "simulated"], loc="outside lower center", ncols=2)
    ends = dict.fromkeys((cards[0], cards[-1]))
    lost = ", ".join(f"{count:,} cards lose {least[count]:.0%}" for count in ends)
    title = f"At the best interval (|), {lost} of the time"
    axes.set_title(title)
    about = f"Share of time lost against the interval; lines are Daly's, dots are means of {runs} simulated runs"
    return figure, f"{title}. {about}. {'; '.join(by_count)}."
