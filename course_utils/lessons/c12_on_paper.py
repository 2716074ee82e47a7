"""Chapter 12 on paper: seconds and bytes of a step on a mesh of cards; runs that fail, simulated."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from course_utils.distributed import communication, zero_bytes_per_rank
from course_utils.errors import CourseError
from course_utils.hardware.links import A100, LINKS, Cluster, Link, all_reduce_seconds
from course_utils.lessons.c10_fsdp_and_zero import tokens_that_hide
from course_utils.units import format_seconds
from course_utils.viz.parts import patches, subplots
from course_utils.viz.style import COLORS, LINES, MARKS, SERIES, writing

# Links.


def links_figure(names: Sequence[str], ranks: int = 8) -> tuple[Figure, str]:
    """Seconds of an all-reduce on `ranks` against its bytes, a line for each of `LINKS`; dots: half of it is latency."""
    figure, axes = subplots(figsize=(7.6, 3.8), layout="constrained")
    sizes, by_link = np.geomspace(1e3, 1e10, 60), []
    for row, name in enumerate(names):
        link, color = LINKS[name], SERIES[row]
        seconds = [all_reduce_seconds(size, ranks, link) for size in sizes]
        axes.plot(sizes, seconds, color=COLORS[color], linestyle=LINES[row % 4])
        half = ranks * link.latency * link.bandwidth
        axes.plot(half, all_reduce_seconds(half, ranks, link), MARKS[row], color=COLORS[color])
        axes.text(1.3e10, seconds[-1], name, color=writing(color), va="center", fontsize=9)
        by_link.append(
            f"{name}: {half / 1e6:.2g} MB, a gigabyte in {format_seconds(all_reduce_seconds(1e9, ranks, link))}"
        )
    axes.set(xscale="log", yscale="log", xlabel="bytes of the all-reduce", ylabel="time, predicted", xlim=(1e3, 1.5e11))
    axes.set_xticks([1e3, 1e6, 1e9], ["1 kB", "1 MB", "1 GB"])
    ticks = [10.0**power for power in range(-4, 2)]
    axes.set_yticks(ticks, [format_seconds(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_title("Left of its mark an all-reduce pays mostly latency, right of it bandwidth")
    return figure, f"Seconds of an all-reduce on {ranks} ranks. Half of them are latency at: {'; '.join(by_link)}."


# When does a cut pay? Seconds on the wire against seconds of computing.


def width_that_pays(flops: float, bandwidth: float, ranks: int, share: float = 0.25, itemsize: int = 2) -> float:
    """From which width h on the wire of tensor parallelism takes at most `share` of the computing, in GPT's blocks.

    A block has 4 all-reduces of b·s·h elements and 72 b·s·h² / t operations, forward and backward. The tokens b·s cancel.
    """
    return (ranks - 1) * itemsize * flops / (9 * share * bandwidth)


def stage_that_pays(flops: float, bandwidth: float, share: float = 0.25, itemsize: int = 2) -> float:
    """From which width h times blocks of a stage on sending at its end takes at most `share` of the computing.

    A boundary sends b·s·h elements forward and as many back; a block computes 72 b·s·h² operations. The tokens cancel.
    """
    return itemsize * flops / (36 * share * bandwidth)


def cuts_figure(
    flops: float, names: Sequence[str], tokens: int, width: int, blocks: int, ranks: int = 8, share: float = 0.25
) -> tuple[Figure, str]:
    """What each cut asks for on each of `LINKS`, beside what a model has: `tokens` a card, `width`, `blocks` of a stage."""
    figure, panels = subplots(1, 3, figsize=(7.8, 2.9), layout="constrained", sharey=True)
    cuts = {
        "ZeRO-3: tokens a card": ([tokens_that_hide(flops, LINKS[n].bandwidth, ranks) for n in names], tokens),
        "tensor: width": ([width_that_pays(flops, LINKS[n].bandwidth, ranks, share) for n in names], width),
        "pipeline: width × blocks": (
            [stage_that_pays(flops, LINKS[n].bandwidth, share) for n in names],
            width * blocks,
        ),
    }
    by_cut = []
    for axes, (title, (needs, has)) in zip(panels, cuts.items(), strict=True):
        for row, need in enumerate(needs):
            color, mark = ("third", "o") if need <= has else ("warning", "X")
            axes.plot(need, row, mark, color=COLORS[color], markersize=7)
            frame = {"boxstyle": "square,pad=0.05", "facecolor": COLORS["paper"], "edgecolor": "none"}
            look = {"textcoords": "offset points", "ha": "center", "fontsize": 8, "bbox": frame}
            axes.annotate(f"{need:,.0f}", (need, row), (0, 6), **look)
        axes.axvline(has, color=COLORS["ink"], linestyle="--", linewidth=1.2, zorder=0)
        axes.set(
            xscale="log", title=title, xlim=(min(*needs, has) / 5, max(*needs, has) * 5), ylim=(len(names) - 0.5, -0.7)
        )
        axes.title.set_fontsize(10)
        axes.set_xlabel(f"has {has:,}", fontsize=9)
        axes.minorticks_off()
        enough = [name for name, need in zip(names, needs, strict=True) if need <= has]
        listed = ", ".join(f"{name} {need:,.0f}" for name, need in zip(names, needs, strict=True))
        by_cut.append(f"{title}: asked {listed}; the model has {has:,}, enough on {', '.join(enough) or 'none'}")
    panels[0].set_yticks(range(len(names)), names)
    pays = [sum(need <= has for need in needs) for needs, has in cuts.values()]
    title = f"Of these {len(names)} links {pays[1]} will do for a cut by width, {pays[2]} for a pipeline"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure, f"What a cut asks for on {ranks} cards. {'. '.join(by_cut)}."


# A step on a mesh.


@dataclass(frozen=True)
class Decoder:
    """Sizes: `width` h, `blocks` n, parameters of a `block`, `words` known, parameters `outside` of the blocks, `length` s."""

    width: int
    blocks: int
    block: int
    words: int
    outside: int
    length: int
    heads: int

    @property
    def parameters(self) -> int:
        """P."""
        return self.blocks * self.block + self.outside

    def operations(self, blocks: int, recompute: bool = False) -> float:
        """Of a token, forward and backward, in that many blocks and the output layer; with `recompute` the blocks run twice."""
        passes = 4 if recompute else 3
        return passes * blocks * (2 * self.block + 4 * self.length * self.width) + 6 * self.words * self.width


def gpt(width: int, blocks: int, heads: int, words: int = 51_200, length: int = 2048) -> Decoder:
    """With GPT's blocks, as in Narayanan et al. (2021), equation 2."""
    return Decoder(width, blocks, 12 * width**2 + 13 * width, words, (words + length) * width, length, heads)


def llama(
    width: int, blocks: int, inner: int, heads: int, groups: int, words: int = 32_000, length: int = 4096
) -> Decoder:
    """With Llama's blocks, whose MLP has three matrices; `groups` heads have keys and values of their own."""
    block = 2 * width**2 * (heads + groups) // heads + 3 * width * inner + 2 * width
    return Decoder(width, blocks, block, words, (2 * words + 1) * width, length, heads)


MODELS = {"Llama 2 7B": llama(4096, 32, 11_008, 32, 32), "Llama 2 70B": llama(8192, 80, 28_672, 64, 8)}


PARTS = {
    "computing": "activations",
    "tensor communication": "parameters",
    "bubble": "predicted",
    "pipeline communication": "inputs",
    "data communication": "warning",
}
"""Of a step's seconds, and their colors."""


@dataclass(frozen=True)
class Step:
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
        """Seconds."""
        return sum(self.seconds.values())

    @property
    def held(self) -> float:
        """Bytes of the fullest card."""
        return sum(self.bytes.values())

    @property
    def name(self) -> str:
        """The mesh and what else was chosen."""
        return " × ".join(map(str, self.mesh)) + f", ZeRO-{self.stage}" + (", recomputes" if self.recompute else "")


def step_on_mesh(
    model: Decoder, tokens: int, cluster: Cluster, d: int, t: int, p: int, k: int, stage: int = 1,
    one_f_one_b: bool = True, recompute: bool = False, share: float = 0.5,
) -> Step:  # fmt: skip
    """One update of `tokens` in bfloat16 with AdamW on d × t × p cards, in k micro-batches, under ZeRO `stage` over d.

    Tensor ranks are neighbors, then come data ranks, then stages, as in Megatron. Products reach `share` of the card's peak.
    Tensor and pipeline wait for their communication. That of data hides behind computing: of all micro-batches where each
    sends, under ZeRO-2 and 3, else of the last. Activations are those of Korthikanti et al. (2022), table 2, without
    attention's scores; a first stage holds min(k, p) micro-batches under 1F1B, else all k. Raises `CourseError` where heads,
    blocks or tokens don't suffice.
    """
    _check_mesh(model, tokens, d, t, p, k)
    here, micro = -(-model.blocks // p), tokens / (d * k)  # the slowest stage has the most blocks, and the output layer
    compute = k * micro * model.operations(here, recompute) / (t * share * cluster.card.flops["bfloat16"])
    sent = 2 * micro * model.width
    tensor = k * here * (6 if recompute else 4) * all_reduce_seconds(sent, t, cluster.ring(t, 1))
    hop = cluster.within if d * t * p <= cluster.cards else cluster.between
    pipeline = 2 * (k + p - 1) * (sent / hop.bandwidth + hop.latency) if p > 1 else 0.0
    mine = math.ceil((here * model.block + model.outside / min(p, 2)) / t)
    wire = _data_seconds(mine, d, k, stage, here, cluster.ring(d, t))
    hidden = min(wire, compute if stage >= 2 else compute / k)
    bubble = (p - 1) / k * (compute + tensor)
    seconds = dict(zip(PARTS, (compute, tensor, bubble, pipeline, wire - hidden), strict=True))
    held = _bytes_held(model, mine, here, micro, d, t, min(k, p) if one_f_one_b else k, stage, recompute, p == 1)
    fits = sum(held.values()) <= cluster.card.memory
    return Step((d, t, p), stage, recompute, seconds, hidden, held, fits)


def _check_mesh(model: Decoder, tokens: int, d: int, t: int, p: int, k: int) -> None:
    if min(d, t, p, k) < 1 or t > model.heads or p > model.blocks:
        raise CourseError(f"d={d}, t={t}, p={p}, k={k}: use 1 or more, t up to {model.heads}, p up to {model.blocks}.")
    if tokens < d * k * model.length:
        raise CourseError(f"{tokens:,} tokens in {d * k:,} micro-batches leave none a whole example; use fewer.")


def _data_seconds(parameters: int, d: int, k: int, stage: int, blocks: int, link: Link) -> float:
    if d == 1:
        return 0.0
    method, two = "ddp" if stage == 0 else f"zero{stage}", {"parameter_bytes": 2, "gradient_bytes": 2}
    sends = communication(method, parameters, d, **two, accumulation=k, buckets=blocks)
    return sends.seconds(link.bandwidth, link.latency)


def _bytes_held(model, mine, here, micro, d, t, in_flight, stage, recompute, has_logits) -> dict[str, float]:
    sizes = {"parameters": (2, 0, 0), "gradients": (0, 2, 0), "optimizer state": (0, 0, 12)}
    held = {kind: float(zero_bytes_per_rank(mine, d, stage, *size)) for kind, size in sizes.items()}
    whole = micro * model.width * (10 + 24 / t)
    saved = 2 * micro * model.width if recompute else whole
    held["activations"] = in_flight * here * saved + recompute * whole + has_logits * 4 * micro * model.words / t
    held["temporaries"] = 3 * 2 * model.block / t if stage == 3 else 0.0  # this block, the next one, and a gradient
    return held


def steps_on_meshes(model: Decoder, tokens: int, cluster: Cluster, cards: int, share: float = 0.5) -> list[Step]:
    """The quickest step that fits on each mesh of `cards`, t and p powers of two, an example a micro-batch; else the smallest.

    Tried are computing again or not, and ZeRO-1 or, in one stage, ZeRO-3. Those that fit come first, the quickest first.
    """
    steps, powers = [], [2**n for n in range(cards.bit_length())]
    for t, p in product(powers, powers):
        d, rest = divmod(cards, t * p)
        k = tokens // (model.length * d) if d else 0
        if rest or not k or t > model.heads or p > model.blocks:
            continue
        tries = [
            step_on_mesh(model, tokens, cluster, d, t, p, k, stage, recompute=again, share=share)
            for again, stage in product((False, True), (1, 3) if p == 1 else (1,))
        ]
        fitting = [step for step in tries if step.fits]
        steps.append(min(fitting, key=lambda s: s.total) if fitting else min(tries, key=lambda s: s.held))
    return sorted(steps, key=lambda step: (not step.fits, step.total))


def meshes_figure(by_model: Mapping[str, Sequence[Step]]) -> tuple[Figure, str]:
    """For each model, steps from top to bottom with the parts of their seconds; those that do not fit are only named."""
    most = max(map(len, by_model.values()))
    figure, panels = subplots(1, len(by_model), figsize=(7.8, 1.2 + 0.18 * most), layout="constrained", squeeze=False)
    rankings = []
    for axes, (name, steps) in zip(panels[0], by_model.items(), strict=True):
        best, fit = steps[0], [step for step in steps if step.fits]
        longest = min(2.5 * best.total, max((step.total for step in fit), default=best.total))
        for row, step in enumerate(steps):
            left = 0.0
            for part, color in PARTS.items() if step.fits else ():
                seconds = min(step.seconds[part], longest - left)
                axes.barh(row, seconds, 0.72, left, color=COLORS[color])
                left += seconds
            cut = " → " if step.total > longest else " "
            words = f"{cut}{step.total:.3g} s" if step.fits else f" does not fit: {step.held / 1e9:.0f} GB"
            look = {"va": "center", "fontsize": 7, "color": writing("ink" if step.fits else "warning")}
            axes.text(left, row, words, **look)
        axes.set_yticks(range(len(steps)), [step.name for step in steps], fontsize=7)
        axes.set(ylim=(len(steps) - 0.3, -0.7), xlim=(0, 1.3 * longest), xlabel="predicted seconds (→: longer)")
        axes.set_title(f"{name}: {best.name.partition(',')[0]} is quickest", fontsize=9)
        axes.grid(axis="y", visible=False)
        listed = "; ".join(f"{step.name} {step.total:.3g} s" for step in fit)
        rankings.append(
            f"{name}, {len(fit)} of {len(steps)} meshes fit, data × tensor × pipeline, quickest first: {listed}"
        )
    figure.legend(*patches(*PARTS.items()), loc="outside upper center", ncols=3)
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
        """Data ranks."""
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
    tokens, k = run.batch * run.model.length, run.batch // run.d
    step = step_on_mesh(run.model, tokens, SELENE, run.d, run.t, run.p, k, stage, recompute=True)
    return tokens * run.model.operations(run.model.blocks, recompute=True) / run.cards / step.total


def published_figure(runs: Sequence[PublishedRun] = PUBLISHED) -> tuple[Figure, str]:
    """Achieved and predicted FLOP/s a card against the number of parameters."""
    figure, axes = subplots(figsize=(7.6, 3.2), layout="constrained")
    sizes = [run.model.parameters for run in runs]
    achieved, predicted = [run.flops / 1e12 for run in runs], [predicted_flops(run) / 1e12 for run in runs]
    off = [100 * (ours / theirs - 1) for ours, theirs in zip(predicted, achieved, strict=True)]
    axes.plot(sizes, achieved, "o-", color=COLORS["measured"])
    axes.plot(sizes, predicted, "s--", color=COLORS["predicted"])
    for name, values, color, shift in (
        ("published", achieved, "measured", (6, 8 if achieved[-1] > predicted[-1] else -14)),
        ("predicted", predicted, "predicted", (6, -14 if achieved[-1] > predicted[-1] else 8)),
    ):
        look = {"textcoords": "offset points", "color": writing(color), "ha": "right"}
        axes.annotate(name, (sizes[-1], values[-1]), shift, **look)
    axes.set(xscale="log", xlabel="parameters", ylabel="teraFLOP/s a card", ylim=(0, 1.25 * max(*achieved, *predicted)))
    axes.set_xticks([1e9, 1e10, 1e11, 1e12], ["1 billion", "10 billion", "100 billion", "1 trillion"])
    axes.minorticks_off()
    bounds = f"{min(off):+.0f} to {max(off):+.0f} %".replace("-", "−")
    axes.set_title(f"The prediction is off by {bounds}, with nothing fitted")
    by_run = "; ".join(
        f"{run.model.parameters / 1e9:.1f} billion on {run.d} × {run.t} × {run.p}: {theirs:.0f}, predicted {ours:.0f}"
        for run, theirs, ours in zip(runs, achieved, predicted, strict=True)
    )
    return figure, f"TeraFLOP/s a card against parameters, published and predicted, data × tensor × pipeline. {by_run}."


def days(parameters: float, tokens: float, cards: int, flops: float, operations: int = 8) -> float:
    """Of training at `flops` a second a card; a token costs 8 `operations` a parameter where all is computed again, else 6."""
    return operations * parameters * tokens / (cards * flops) / 86_400


# Failures.

LLAMA_3 = {"cards": 16_384, "days": 54, "interruptions": 419}
"""Grattafiori et al. (2024), section 3.3.4: the unexpected ones, on up to 16,384 H100s."""
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
    """The same to higher order (Daly 2006, equation 37)."""
    if saving >= 2 * between:
        return between
    x = saving / (2 * between)
    return young_interval(saving, between) * (1 + math.sqrt(x) / 3 + x / 9) - saving


def failures_figure(
    cards: Sequence[int], saving: float, restart: float, card_between: float = CARD_BETWEEN, runs: int = 200
) -> tuple[Figure, str]:
    """The share of time that is lost against the interval, for several numbers of cards: Daly's lines, simulated dots."""
    figure, axes = subplots(figsize=(7.6, 3.6), layout="constrained")
    by_count, least = [], {}
    for row, count in enumerate(cards):
        between, color = card_between / count, SERIES[row]
        best = daly_interval(saving, between)
        intervals, dots = (best * np.geomspace(1 / 6, 6, n) for n in (60, 9))
        lost = [1 - every / daly_wall_clock(every, every, saving, restart, between) for every in intervals]
        axes.plot(intervals / 60, np.multiply(100, lost), color=COLORS[color], linestyle=LINES[row % 4])
        seen = []
        for every in dots:
            pieces = max(1, round(200 * between / every))
            seen.append(
                100 * (1 - pieces * every / wall_clock(pieces, every, saving, restart, between, runs)[0].mean())
            )
        axes.plot(dots / 60, seen, MARKS[row], color=COLORS[color])
        least[count] = 1 - best / daly_wall_clock(best, best, saving, restart, between)
        axes.plot(best / 60, 100 * least[count], "|", color=COLORS["ink"], markersize=16)
        axes.text(dots[-1] / 60, seen[-1] + 4, f"{count:,} cards", color=writing(color), ha="right", fontsize=9)
        by_count.append(
            f"{count:,} cards: {3600 / between:.2g} restarts an hour, best every {format_seconds(best)}, {least[count]:.0%} lost"
        )
    axes.set(xscale="log", xlabel="minutes of work between checkpoints", ylabel="% of time lost", ylim=(0, 105))
    axes.set_xticks(ticks := [1, 3, 10, 30, 100, 300], [f"{tick}" for tick in ticks])
    axes.minorticks_off()
    axes.set_title(
        f"At the best interval (|) {', '.join(f'{share:.0%}' for share in least.values())} of the time is lost"
    )
    begins = f"Share of time lost against the interval; lines are Daly's, dots are means of {runs} simulated runs"
    return figure, f"{begins}. {'; '.join(by_count)}."
