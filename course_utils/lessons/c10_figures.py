"""Chapter 10's figures, and a step on paper to play with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from course_utils.lessons.c10_timeline import Activity, overlap
from course_utils.training.profile import PHASES
from course_utils.units import format_counted
from course_utils.viz.parts import draw_cell, hide_axes
from course_utils.viz.plots import Span, add_title, bars, layers, legend, panels, panels_of_lines, timeline
from course_utils.viz.style import COLORS

STAGES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
STYLES = {
    "forward": ("activations", ""),
    "backward": ("gradients", ""),
    "update": ("optimizer state", ""),
    "all-gather": ("parameters", "///"),
    "reduce-scatter": ("warning", "\\\\\\"),
    "all-reduce": ("temporaries", "xxx"),
}
"""Color and hatch of what a rank does."""


def sharding_figure() -> tuple[Figure, str]:
    """The idea: of parameters, gradients and optimizer state, what each of four ranks keeps under DDP and ZeRO-1 to 3."""
    figure, axes = panels(height=3.9)
    ranks, kinds = range(4), ("parameters", "gradients", "optimizer state")
    for row, stage in enumerate(STAGES):
        axes.text(-0.15, row + 0.38, stage, ha="right", va="center", fontsize=11)
        for rank, (column, kind), part in product(ranks, enumerate(kinds), ranks):
            is_kept = part == rank or row < len(kinds) - column
            corner = (1.15 * rank + 0.33 * column, row + 0.19 * part)
            draw_cell(axes, *corner, kind if is_kept else "grid", width=0.29, height=0.19, edgecolor=COLORS["paper"])
    for rank in ranks:
        axes.text(1.15 * rank + 0.48, -0.12, f"rank {rank}", ha="center")
    hide_axes(axes, (-0.9, 4.6), (3.95, -0.35))
    legend(axes, *zip(kinds, kinds, strict=True), ("kept by others", "grid"))
    text = "DDP: all of each kind on each rank. ZeRO-1: a share of the optimizer state. ZeRO-2: a share of the gradients too."
    return add_title(figure, "Each stage of ZeRO shards one kind more", text, "ZeRO-3: a share of the parameters too.")


def unit_life(unit: float, ranks: int, activations: float) -> list[tuple[str, str, dict[str, float]]]:
    """What happens to one unit in a step of ZeRO-3: (event, its lane, bytes of the unit on a rank meanwhile by kind).

    `unit` are the bytes of its parameters, `activations` those that it saves. Lanes are "wire", "computes" and "waits".
    """
    shard, gathered, saved = {"shard": unit / ranks}, {"gathered": unit}, {"activations": activations}
    three_times = {"gradient": unit, "flat row": unit, "gloo's copy": unit}
    return [
        ("all-gather", "wire", shard | gathered),
        ("forward", "computes", shard | gathered | saved),
        ("other units", "waits", shard | saved),
        ("all-gather", "wire", shard | gathered | saved),
        ("backward", "computes", shard | gathered | saved | {"gradient": unit}),
        ("reduce-scatter", "wire", shard | three_times | {"gradient shard": unit / ranks}),
        ("other units", "waits", shard | {"gradient shard": unit / ranks}),
    ]


LIFE_COLORS = {
    "shard": "parameters",
    "gathered": "recomputed",
    "activations": "activations",
    "gradient": "gradients",
    "flat row": "communication",
    "gloo's copy": "temporaries",
    "gradient shard": "inputs",
}
"""Colors of a unit's bytes on a rank, by kind."""


def unit_life_figure(unit: float, ranks: int, activations: float) -> tuple[Figure, str]:
    """The life of a unit from top to bottom: what is done with it, and its bytes on a rank."""
    life = unit_life(unit, ranks, activations)
    rows = {f"{number}. {event} ({lane})": sizes for number, (event, lane, sizes) in enumerate(life, 1)}
    title = "To be summed, a block's gradient is held three times"
    return bars(rows, title, "memory of this block on a rank", colors=LIFE_COLORS)


def lanes_figure(runs: Mapping[str, Sequence[Activity]]) -> tuple[Figure, str]:
    """What rank 0 did in a real step of each run, on one time axis: a lane for what it computed, one for its collectives."""
    jobs = []
    for row, activities in enumerate(runs.values()):
        start = min(activity.start for activity in activities)
        jobs += [(row, a.name, a.start - start, a.end - start) for a in activities]
    shares = ", ".join(f"{name} {overlap(activities):.0%}" for name, activities in runs.items())
    title = f"Communication of rank 0 that computing hides: {shares}"
    return _draw_lanes(jobs, list(runs), title, "time of a step of rank 0", unit="seconds")


def _draw_lanes(jobs: Sequence[tuple], names: Sequence[str], title: str, x: str, **options) -> tuple[Figure, str]:
    """Two lanes for each of `names`, what it computes and what it sends; `jobs` are (its row, kind, start, end)."""
    spans = [Span(2 * row + (kind not in PHASES), start, end, kind) for row, kind, start, end in jobs]
    lanes = [f"{name}: {work}" for name in names for work in ("computes", "sends, receives")]
    figure, text = timeline(spans, lanes, title, x, styles=STYLES, **options)
    styles = {kind: style for kind, style in STYLES.items() if any(span.kind == kind for span in spans)}
    paper = COLORS["paper"]
    handles = [Patch(facecolor=COLORS[color], hatch=hatch, edgecolor=paper) for color, hatch in styles.values()]
    figure.legend(handles, list(styles), loc="outside upper center", ncols=len(styles))
    return figure, text


def moments_figure(on_paper: pd.DataFrame, measured: pd.DataFrame, vocabulary: int) -> tuple[Figure, str]:
    """Bytes at two moments, `on_paper` (columns `strategy`, `tokens`, `loss`, `gradients`), and at the `measured` peak
    (`strategy`, `tokens`, `peak`), against tokens of a rank: a panel for each strategy."""
    peaks = dict(iter(measured.set_index("tokens").groupby("strategy")["peak"]))
    data = {}
    for strategy, moments in on_paper.set_index("tokens").groupby("strategy", sort=False):
        curves = {f"on paper: {name}": moments[name] for name in ("gradients", "loss")}
        data[strategy] = curves | {"measured": peaks[strategy]}
    styles = {
        "on paper: gradients": ("gradients", "--"),
        "on paper: loss": ("activations", "-"),
        "measured": ("measured", "o"),
    }
    options = {"unit": "bytes", "log": "x", "ticks": [32, 128, 256, 512]}
    title = f"Vocabulary {vocabulary:,}: with few tokens the gradients decide the peak, with many the loss"
    return panels_of_lines(data, title, "tokens", "memory of a rank", styles=styles, **options)


# A step on paper, to play with: equal units, a steady wire. Times are in forward passes of the model, memory in parameters.

ACTIVATIONS = 0.5  # of the whole model, in sizes of its parameters
KINDS = ("parameters", "optimizer state", "gathered", "gradients", "activations", "copies of gradients")
"""What a rank holds, from the bottom up; the copies are under way."""


@dataclass
class PaperStep:
    """A step of `units` equal units under ZeRO `stage` 0 to 3, simulated for the first and the last rank.

    A collective sends N − 1 messages on a ring, an all-reduce twice as many. Only stage 0 makes an all-reduce; the others have
    its two halves. Gradients are copied to be sent as in `FSDP` and `DDP`. `sizes` are by kind, from each of `times` on.
    """

    stage: int
    ranks: int
    units: int
    wire: float = 1.0  # time to send all parameters to another rank
    latency: float = 0.002  # of each message on top
    prefetch: bool = True  # the next unit is gathered while this one computes
    slowest: float = 1.0  # times as long as the others the last rank computes

    def __post_init__(self):
        self.jobs: list[tuple[int, str, float, float]] = []  # rank, kind, start, end
        self._pace = np.array([1.0, self.slowest][: self.ranks])
        self._free = {lane: np.zeros(len(self._pace)) for lane in ("compute", "wire")}
        self._share = 1 / self.ranks if self.stage >= 2 else 1
        averages = 2 / self.ranks if self.stage else 2  # AdamW's, each as large as the parameters
        self._changes = [(0.0, "parameters", self._share), (0.0, "optimizer state", averages)]
        shards = self.ranks > 1
        self._run_units("forward", 1 / self.units, shards and self.stage >= 2, self._end_forward)
        self._run_units("backward", 2 / self.units, shards and self.stage == 3, self._end_backward)
        self._update()
        self.times, self.sizes = _add_up(self._changes)

    @property
    def memory(self) -> list[float]:
        """What the first rank holds of all kinds together, from each of `times` on."""
        return [sum(sizes) for sizes in zip(*self.sizes.values(), strict=True)]

    @property
    def end(self) -> float:
        return max(end for *_, end in self.jobs)

    @property
    def waiting_share(self) -> float:
        """The share of the step in which the first rank computes nothing."""
        return 1 - sum(end - start for rank, kind, start, end in self.jobs if rank == 0 and kind in PHASES) / self.end

    def _run_units(self, phase: str, seconds: float, gathers: bool, end_unit: Callable) -> None:
        """One unit after the other, each of them gathered first if the phase `gathers`."""
        ready = self._gather(self._free["compute"]) if gathers else self._free["compute"]
        for left in reversed(range(self.units)):
            start, end = self._run_job(phase, ready, seconds)
            gathers_next = gathers and left > 0
            ready = self._gather(start) if gathers_next and self.prefetch else end
            end_unit(start, end)
            if gathers_next and not self.prefetch:
                ready = self._gather(end)

    def _end_forward(self, start: np.ndarray, end: np.ndarray) -> None:
        self._hold(start, "activations", ACTIVATIONS / self.units)
        if self.stage == 3:
            self._reshard(end)

    def _end_backward(self, start: np.ndarray, end: np.ndarray) -> None:
        self._hold(end, "activations", -ACTIVATIONS / self.units)
        self._reshard(end)
        self._hold(start, "gradients", 1 / self.units)  # the unit's whole gradient, until it is reduced
        if self.ranks > 1:
            kind, times = ("reduce-scatter", 1) if self.stage else ("all-reduce", 2)
            arrival = self._run_job(kind, end, times * self._ring_time)[1]
            copies = (1, 0, 2, 2)[self.stage] / self.units  # DDP's bucket; the flat row and gloo's copy
            self._hold(end, "copies of gradients", copies)
            if self.stage >= 2:
                self._hold(arrival, "copies of gradients", -copies)
                self._hold(arrival, "gradients", self._share / self.units - 1 / self.units)

    def _update(self) -> None:
        ready = np.maximum(self._free["compute"], self._free["wire"])
        begin, end = self._run_job("update", ready, 0.1 / (self.ranks if self.stage else 1))
        if self.stage == 0 and self.ranks > 1:
            self._hold(begin, "copies of gradients", -1)  # DDP's buckets
        if self.stage == 1 and self.ranks > 1:
            self._run_job("all-gather", end, self._ring_time * self.units)

    @property
    def _ring_time(self) -> float:
        """Time that a unit takes once around the ring."""
        return self.wire * (self.ranks - 1) / self.ranks / self.units + self.latency * (self.ranks - 1)

    def _run_job(self, kind: str, ready: np.ndarray, seconds: float) -> tuple[np.ndarray, np.ndarray]:
        """Starts and ends of a job that begins on each rank as soon as its lane is free; a collective waits for all ranks."""
        lane = "compute" if kind in PHASES else "wire"
        start = np.maximum(ready, self._free[lane])
        start = start if lane == "compute" else np.full(len(start), start.max())
        end = self._free[lane] = start + seconds * (self._pace if lane == "compute" else 1)
        self.jobs += [(rank, kind, float(a), float(b)) for rank, (a, b) in enumerate(zip(start, end, strict=True))]
        return start, end

    def _hold(self, start: np.ndarray, kind: str, size: float) -> None:
        self._changes.append((float(start[0]), kind, size))

    def _gather(self, ready: np.ndarray) -> np.ndarray:
        start, end = self._run_job("all-gather", ready, self._ring_time)
        self._hold(start, "gathered", 1 / self.units)
        return end

    def _reshard(self, time: np.ndarray) -> None:
        if self.ranks > 1 and self.stage >= 2:
            self._hold(time, "gathered", -1 / self.units)


def _add_up(changes: Sequence[tuple[float, str, float]]) -> tuple[list[float], dict[str, list[float]]]:
    """Times, and by kind the sum from each of them on; changes at one instant count together."""
    totals = {}
    total = dict.fromkeys(KINDS, 0.0)
    last = -1.0
    for time_, kind, change in sorted(changes):
        total[kind] += change
        last = time_ if time_ - last > 1e-6 else last
        totals[last] = dict(total)
    return list(totals), {kind: [sizes[kind] for sizes in totals.values()] for kind in KINDS}


def play_sharding(stage: int = 3, ranks: int = 8, units: int = 6, **options: float) -> tuple[Figure, str]:
    """Play: the lanes of the first and the last rank in a `PaperStep`; below, the first rank's memory by kind."""
    plan = PaperStep(stage, ranks, units, **options)
    drawn_ranks = [0, ranks - 1][:ranks]
    ratios = (0.75 * len(drawn_ranks), 2.0)
    figure, (above, below) = panels(2, height=4.0 + 0.8 * len(drawn_ranks), sharex=True, height_ratios=ratios)
    title = f"{STAGES[stage]}, {format_counted(ranks, 'rank')}: a step takes {plan.end:.2f}"
    title += f", of which rank 0 waits {plan.waiting_share:.0%}"
    x, y = "time (forward pass of the model = 1)", "memory of rank 0\n(parameters = 1)"
    _draw_lanes(plan.jobs, [f"rank {rank}" for rank in drawn_ranks], title, x, axes=above)
    above.set_xlabel("")
    sizes = {kind: np.round([*line, line[-1]], 9) for kind, line in plan.sizes.items()}
    colors = {"gathered": "recomputed", "copies of gradients": "communication"}
    title = f"rank 0: the memory peaks at {max(plan.memory):.2f}"
    layers([*plan.times, plan.end], sizes, title, x, y, colors=colors, axes=below)
    below.set_ylim(0, max(2.0, below.get_ylim()[1]))  # one height for most settings
    legend(below)
    return figure, " ".join(figure.panel_texts)
