"""Chapter 12's figures, and a schedule to play with."""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
from matplotlib.figure import Figure

from course_utils import viz
from course_utils.distributed.pipeline_schedules import Schedule, gpipe, one_f_one_b, zero_bubble
from course_utils.hardware import A100, LINKS
from course_utils.lessons.c12_on_paper import (
    PARTS,
    PUBLISHED,
    MeshStep,
    asks_of_cuts,
    predicted_flops,
    select_steps,
    shares_lost,
)
from course_utils.viz.parts import draw_cell, hide_axes
from course_utils.viz.plots import Span, add_title, bars, dots, legend, lines, panels, timeline
from course_utils.viz.style import COLORS

AXES = {
    "data": ("nothing", "examples", "gradients, once an update"),
    "sharded": ("pieces", "examples", "every block's weights,\nand gradients"),
    "tensor": ("columns", "nothing", "activations and gradients,\n4 times a block and micro-batch"),
    "pipeline": ("blocks", "nothing", "activations and gradients,\nat each boundary"),
    "context": ("nothing", "tokens", "keys and values,\nevery block"),
    "expert": ("experts", "examples", "tokens to their expert\nand back, every MLP"),
}
"""How each axis cuts the model, how the batch, and what travels."""
_RANK_COLORS = ("first", "gradients", "third", "fourth")


def axes_figure() -> tuple[Figure, str]:
    """The idea: an axis cuts the model, the batch or both; a color is a rank, gray is on all four."""
    figure, grid = panels(2, 3, height=5.4)
    for axes, (name, (model, batch, travels)) in zip(grid.flat, AXES.items(), strict=True):
        for (row, column), (left, cut) in product(product(range(4), repeat=2), ((0, model), (5.2, batch))):
            ranks = {"examples": row, "tokens": column, "blocks": row, "columns": column, "pieces": (row + column) % 4}
            ranks |= {"nothing": None, "experts": column if row % 2 else None}  # every other block has experts
            draw_cell(axes, left + column, row, "grid" if ranks[cut] is None else _RANK_COLORS[ranks[cut]])
        for left, part, across, down in ((0, "model", "width →", "blocks →"), (5.2, "batch", "tokens →", "examples →")):
            axes.text(left + 2, -0.5, part, ha="center", fontsize=9)
            axes.text(left + 2, 4.7, across, ha="center", fontsize=8)
            axes.text(left - 0.35, 2, down, rotation=270, ha="center", va="center", fontsize=8)
        axes.text(4.6, 5.4, f"sent: {travels}", ha="center", va="top", fontsize=9)
        hide_axes(axes, (-0.7, 9.3), (6.9, -1.0), name)
    legend(axes, *((f"rank {rank}", color) for rank, color in enumerate(_RANK_COLORS)), ("all ranks", "grid"))
    by_axis = "; ".join(
        f"{name}: the model is cut by {model}, the batch by {batch}, sent are {' '.join(travels.split())}"
        for name, (model, batch, travels) in AXES.items()
    )
    return add_title(figure, "An axis cuts the model, the batch or both", f"Four ranks. {by_axis}.")


PASSES = {
    "F": ("forward", "activations"),
    "B": ("backward", "gradients"),
    "W": ("W: gradients of weights", "optimizer state"),
}
"""Name and color of each kind of action."""


class DrawnSchedule(Schedule):
    """A schedule that a notebook shows as a picture."""

    def _ipython_display_(self) -> None:
        viz.show(*self.figure())

    def figure(self) -> tuple[Figure, str]:
        """A lane for each stage with the most micro-batches that it holds, slots from left to right; what is empty is bubble."""
        kinds = {kind: PASSES[kind] for kind in PASSES if (kind, 0) in self.orders[0]}
        if "W" in kinds:
            kinds["B"] = "B: gradients of inputs", PASSES["B"][1]
        spans = [
            Span(stage, begin, end, kinds[kind][0], str(i) if self.end <= 70 else "")
            for (stage, kind, i), (begin, end) in self.spans.items()
        ]
        lanes = [f"stage {stage} holds {count}" for stage, count in enumerate(self.in_flight)]
        empty = f"{self.end} slots, of which {self.bubble} are empty ({float(self.bubble):.0%})"
        title = f"{empty}; most micro-batches held: {max(self.in_flight)}"
        styles = {name: (color, "") for name, color in kinds.values()}
        figure, alt = timeline(spans, lanes, title, "slots", styles=styles)
        legend(figure.axes[0], *kinds.values())
        return figure, alt


SCHEDULES = {"GPipe": gpipe, "1F1B": one_f_one_b, "zero bubble": zero_bubble}


def play_schedule(
    schedule: str = "1F1B", stages: int = 4, micro_batches: int = 8, backward: int = 4, wire: int = 0
) -> tuple[Figure, str]:
    """Play: a forward pass takes two slots, a backward pass `backward`, a message to another stage `wire`."""
    cost = {"F": 2, "B": backward} if schedule != "zero bubble" else {"F": 2, "B": backward // 2, "W": backward // 2}
    return DrawnSchedule(SCHEDULES[schedule](stages, micro_batches), cost, wire).figure()


# On paper.

QUANTITIES = {
    "data": "tokens an update",
    "ZeRO-3": "tokens a micro-batch",
    "tensor": "width",
    "pipeline": "width × blocks",
}
"""What each cut asks for."""


def cuts_figure(flops: float, names: Sequence[str], has: Mapping[str, float]) -> tuple[Figure, str]:
    """What each cut over 8 cards of `flops` a second asks for on each of `LINKS`, beside what a run `has`."""
    asks = {link: asks_of_cuts(flops, LINKS[link].bandwidth, 8) for link in names}
    figure, grid = panels(2, 2, height=5.6, sharey=True)
    for axes, (cut, quantity) in zip(grid.flat, QUANTITIES.items(), strict=True):
        rounded = {link: [float(f"{by_cut[cut]:.2g}")] for link, by_cut in asks.items()}
        title = f"{cut}: this run has {has[cut]:,} (dashed)"
        dots(rounded, title, f"{quantity}, at least", log=True, number=",.10g", axes=axes)
        axes.axvline(has[cut], color=COLORS["ink"], linestyle="--", linewidth=1.2, zorder=0)
        axes.margins(x=0.3)
    paying = [cut for cut, size in asks["400 Gb/s"].items() if size <= has[cut]]
    return add_title(figure, f"At 400 Gb/s, only the cuts by {' and '.join(paying)} pay")


def meshes_figure(by_model: Mapping[str, Sequence[MeshStep]]) -> tuple[Figure, str]:
    """The parts of the seconds of each model's `select_steps`; bars longer than about three times the quickest are cut."""
    figure, grid = panels(1, len(by_model), height=4.8, squeeze=False)
    for axes, (name, steps) in zip(grid[0], by_model.items(), strict=True):
        rows = {step.name: {part: s for part, s in step.seconds.items() if s} for step in select_steps(steps)}
        title = f"{name}: {sum(step.fits for step in steps)} of {len(steps)} meshes fit"
        bars(rows, title, "seconds (longer bars are cut)", unit="", colors=PARTS, show_legend=False, axes=axes)
        axes.set_xlim(0, 3.2 * steps[0].total)
        for text in axes.texts:
            text.set_x(min(text.get_position()[0], 2.7 * steps[0].total))
        axes.tick_params(axis="y", labelsize=8)
    legend(axes, *PARTS.items())
    best = ", ".join(f"{steps[0].name.partition(',')[0]} ({name})" for name, steps in by_model.items())
    return add_title(figure, f"Predicted best, data × tensor × pipeline: {best}")


def published_figure() -> tuple[Figure, str]:
    """FLOP/s a card of the published runs against their parameters, beside `predicted_flops` and half of the peak."""
    sizes = [round(run.model.parameters / 1e9, 1) for run in PUBLISHED]
    achieved = np.array([run.flops for run in PUBLISHED]) / 1e12
    predicted = np.array([predicted_flops(run) for run in PUBLISHED]) / 1e12
    half = 0.5 * A100.flop_rates["bfloat16"] / 1e12
    off = [np.sqrt(np.mean((rates / achieved - 1) ** 2)) for rates in (half, predicted)]
    title = f"Half of the peak is off by {off[0]:.0%} (root mean square), our prediction by {off[1]:.0%}"
    data = {"published": zip(sizes, achieved, strict=True), "predicted": zip(sizes, predicted, strict=True)}
    levels, ticks = {"half of the peak": half}, [1, 10, 100, 1000]
    return lines(data, title, "billions of parameters", "teraFLOP/s a card", log="x", levels=levels, ticks=ticks)


def failures_figure(cards: Sequence[int], saving: float, restart: float, runs: int = 200) -> tuple[Figure, str]:
    """`shares_lost` against the interval for several numbers of `cards`; `saving` and `restart` take so many seconds."""
    data, points = {}, []
    for count in cards:
        simulated, data[f"{count:,} cards"] = shares_lost(count, saving, restart, runs)
        points += simulated.items()
    most_cards, curve = list(data.items())[-1]
    title = f"At the best interval, {most_cards} lose {min(curve.values()):.0%} of the time"
    data["simulated"] = points
    styles, ticks = {"simulated": ("ink", "o")}, [0.1, 0.3, 1, 3, 10, 30, 100, 300]
    x, y = "minutes of work between checkpoints", "time lost (lines: Daly's formula)"
    return lines(data, title, x, y, unit="%", log="x", styles=styles, ticks=ticks)
