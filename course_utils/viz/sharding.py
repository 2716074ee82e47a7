"""Figures of sharded training: who keeps what, the lanes of a real step and of one on paper, units, lengths of sequences."""

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from course_utils.training.sharded_trace import Activity
from course_utils.units import format_bytes, format_counted, format_seconds
from course_utils.viz.parts import byte_unit, patches, second_unit, subplots
from course_utils.viz.sharded_schedule import COMPUTE, Schedule, sharded_schedule
from course_utils.viz.style import COLORS, writing

STAGES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
_KEPT = ("parameters", "gradients", "optimizer state")
_LOOKS = {
    "forward": ("activations", ""),
    "backward": ("gradients", ""),
    "update": ("optimizer state", ""),
    "all-gather": ("parameters", "///"),
    "reduce-scatter": ("warning", "\\\\\\"),
    "all-reduce": ("temporaries", "xxx"),
    "broadcast": ("not attributed", "..."),
}


def sharding_figure(ranks: int = 4) -> tuple[Figure, str]:
    """The idea: of parameters, gradients and optimizer state, what each rank keeps under DDP and ZeRO-1 to 3."""
    figure, axes = subplots(figsize=(7.6, 3.9), layout="constrained")
    for row, stage in enumerate(STAGES):
        for rank in range(ranks):
            for place, kind in enumerate(_KEPT):
                shared = row >= len(_KEPT) - place
                _draw_kept(axes, (1.15 * rank + 0.33 * place, row), kind, rank if shared else None, ranks)
        axes.text(-0.15, row + 0.38, stage, ha="right", va="center", fontsize=11)
    for rank in range(ranks):
        axes.text(1.15 * rank + 0.48, -0.12, f"rank {rank}", ha="center")
    axes.set(xlim=(-0.9, 1.15 * ranks), ylim=(len(STAGES) - 0.05, -0.35))
    axes.axis("off")
    handles, labels = patches(*((kind, kind) for kind in _KEPT), ("kept by others", "grid"))
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure, (
        f"What each of {ranks} ranks keeps. DDP: all parameters, gradients and optimizer state on each. ZeRO-1: a share of "
        "the optimizer state. ZeRO-2: a share of the gradients too. ZeRO-3: a share of the parameters too."
    )


def lanes_figure(ranks: Sequence[Sequence[Activity]], title: str = "") -> tuple[Figure, str]:
    """What each rank did in a real step: a lane for what it computed, and one for its collectives.

    The lanes share one clock, which begins with the first activity of any rank.
    """
    zero = min(activity.start for lane in ranks for activity in lane)
    end = max(activity.end for lane in ranks for activity in lane) - zero
    unit, size = second_unit(end)
    figure, axes = subplots(figsize=(7.6, 1.2 + 0.85 * len(ranks)), layout="constrained")
    for rank, activities in enumerate(ranks):
        for activity in activities:
            row = 2 * rank + (not activity.computes)
            _draw_job(axes, row, activity.what, (activity.start - zero) / size, activity.seconds / size)
    names = [name for rank in range(len(ranks)) for name in (f"rank {rank} computes", "sends, receives")]
    axes.set(yticks=range(len(names)), yticklabels=names, xlim=(0, end / size), xlabel=f"time, {unit}", title=title)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    whats = [what for what in _LOOKS if any(a.what == what for lane in ranks for a in lane)]
    figure.legend(*_legend(whats), loc="outside upper center", ncols=len(whats))
    return figure, f"{title}: {_said_of(ranks)}".removeprefix(": ")


def _said_of(ranks: Sequence[Sequence[Activity]]) -> str:
    """In words, what the lanes of each rank hold."""
    said = []
    for rank, activities in enumerate(ranks):
        counts = pd.Series([a.what for a in activities if not a.computes]).value_counts(sort=False)
        sent = ", ".join(f"{count} {what}" for what, count in counts.items())
        computed = sum(a.seconds for a in activities if a.computes)
        said.append(f"rank {rank} computes {format_seconds(computed)} and takes part in {sent}")
    return "; ".join(said) + "."


def play_sharding(
    stage: int = 3, ranks: int = 8, units: int = 6, wire: float = 1.0, latency: float = 0.02, prefetch: bool = True,
    slowest: float = 1.0,
) -> tuple[Figure, str]:  # fmt: skip
    """Play: the lanes of the first and the last rank in a step on paper; below, rank 0's memory in sizes of the parameters."""
    schedule = sharded_schedule(stage, ranks, units, wire, latency, prefetch, slowest=slowest)
    lanes = len(schedule.paces)
    figure, (above, below) = subplots(
        2, 1, figsize=(7.6, 3.6 + 0.8 * lanes), layout="constrained", sharex=True, height_ratios=(0.75 * lanes, 1.7)
    )
    _draw_lanes(above, schedule, ranks)
    _draw_memory(below, schedule)
    whats = [what for what in _LOOKS if any(job.what == what for job in schedule.jobs)]
    figure.legend(*_legend(whats), loc="outside upper center", ncols=len(whats))
    counted = f"{STAGES[stage]}, {format_counted(ranks, 'rank')}"
    said = f"{counted}: a step takes {schedule.end:.2f}, of which rank 0 waits {schedule.waiting:.0%}"
    above.set_title(said)
    slow = f"; the last rank computes {slowest:g} times as long" if ranks > 1 and slowest > 1 else ""
    jobs = sum(job.rank == 0 for job in schedule.jobs)
    made = f"{jobs} jobs of a rank with {format_counted(units, 'unit')}{slow}"
    return figure, f"{said}; {made}; the memory peaks at {schedule.peak:.2f}."


def _draw_lanes(axes, schedule: Schedule, ranks: int) -> None:
    for job in schedule.jobs:
        length = job.end - job.start
        edge = 0.4 if length > 0.01 * schedule.end else 0.1  # a wide one would leave little of a short job's color
        _draw_job(axes, 2 * job.rank + (job.lane != COMPUTE), job.what, job.start, length, edge)
    followed = [0, ranks - 1][: len(schedule.paces)]
    names = [name for rank in followed for name in (f"rank {rank} computes", "sends, receives")]
    axes.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.4, -0.6))
    axes.grid(axis="y", visible=False)


def _draw_memory(axes, schedule: Schedule) -> None:
    times, totals = schedule.curve
    axes.fill_between(times, totals, step="post", color=COLORS["activations"], alpha=0.5)
    axes.step(times, totals, where="post", color=COLORS["ink"], linewidth=1.2)
    axes.axhline(schedule.peak, color=COLORS["warning"], linestyle="--", linewidth=1.2)
    place = {"ha": "right", "va": "bottom", "color": writing("warning")}
    axes.text(schedule.end, schedule.peak, f"peak {schedule.peak:.2f} ", **place)
    axes.set(
        ylabel="memory of rank 0\n(parameters = 1)", ylim=(0, max(2.0, 1.2 * schedule.peak)), xlim=(0, schedule.end)
    )
    axes.set_xlabel("time (forward pass of the model = 1)")


def units_figure(table: pd.DataFrame) -> tuple[Figure, str]:
    """Peak and predicted seconds against the number of units: `table` has columns `units`, `peak`, `gathered` (bytes) and
    one of seconds for each network."""
    figure, (left, right) = subplots(1, 2, figsize=(7.6, 3.2), layout="constrained")
    unit, size = byte_unit(table["peak"].max())
    left.plot(table["units"], table["peak"] / size, "o-", color=COLORS["measured"], label="peak of a rank, measured")
    left.plot(table["units"], table["gathered"] / size, "s--", color=COLORS["temporaries"], label="largest unit")
    left.set(xlabel="units", ylabel=unit, ylim=(0, None), xscale="log")
    networks = [name for name in table if name not in ("units", "peak", "gathered")]
    for name, marker, color in zip(networks, "ovD", ("first", "second", "third"), strict=False):
        right.plot(table["units"], table[name], f"{marker}-", color=COLORS[color], label=name)
    right.set(xlabel="units", ylabel="seconds of a step on the wire", yscale="log", xscale="log")
    for axes in (left, right):
        axes.set_xticks(table["units"], [f"{count}" for count in table["units"]])
        axes.minorticks_off()
        axes.legend()
    said = "; ".join(
        f"{format_counted(row.units, 'unit')}: peak {format_bytes(row.peak)}, largest unit {format_bytes(row.gathered)}, "
        + ", ".join(f"{name} {format_seconds(table.loc[row.Index, name])}" for name in networks)
        for row in table.itertuples()
    )
    return figure, f"Peak of a rank and seconds on the wire against the number of units. {said}."


def lengths_figure(consistent: Mapping[str, tuple[int, int] | None], longest: int) -> tuple[Figure, str]:
    """For each row of a table of largest batches, the lengths of a sequence (shortest, longest) that agree with it, or None.

    `longest` is the most tokens that the model takes.
    """
    figure, axes = subplots(figsize=(7.6, 0.9 + 0.4 * len(consistent)), layout="constrained")
    said = []
    for row, (name, lengths) in enumerate(consistent.items()):
        words = f"{lengths[0]} to {lengths[1]}" if lengths else "none"
        start, end = lengths or (0, 0)
        axes.barh(row, end - start + bool(lengths), left=start, height=0.6, color=COLORS["measured"])
        axes.text(end + 0.012 * longest, row, words, va="center")
        said.append(f"{name}: {words}")
    axes.set(yticks=range(len(consistent)), yticklabels=list(consistent), ylim=(len(consistent) - 0.5, -0.5))
    axes.set(xlabel="tokens of a sequence that agree with the row", xlim=(0, _nice(consistent, longest)))
    axes.grid(axis="y", visible=False)
    return figure, "Lengths of the sequence that agree with each row. " + "; ".join(said) + "."


def _nice(consistent: Mapping[str, tuple[int, int] | None], longest: int) -> float:
    """Where the axis ends: a third beyond the longest bar, or at the model's longest sequence."""
    return min(longest, 1.35 * max((lengths[1] for lengths in consistent.values() if lengths), default=longest))


def _draw_kept(axes, corner: tuple[float, float], kind: str, rank: int | None, ranks: int) -> None:
    x, y = corner
    height = 0.76 / ranks
    for part in range(ranks):
        kept = rank is None or part == rank
        color = COLORS[kind if kept else "grid"]
        axes.add_patch(Rectangle((x, y + part * height), 0.29, height, facecolor=color, edgecolor=COLORS["paper"]))


def _draw_job(axes, row: int, what: str, start: float, length: float, edge: float = 0.4) -> None:
    color, hatch = _LOOKS[what]
    look = {"facecolor": COLORS[color], "edgecolor": COLORS["paper"], "hatch": hatch, "linewidth": edge}
    axes.add_patch(Rectangle((start, row - 0.38), length, 0.76, **look))


def _legend(whats: Sequence[str]) -> tuple[list, list[str]]:
    looks = [_LOOKS[what] for what in whats]
    return [Patch(facecolor=COLORS[c], hatch=h, edgecolor=COLORS["paper"]) for c, h in looks], list(whats)
