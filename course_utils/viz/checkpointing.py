"""Figures about gradient checkpointing: what is kept, dropped and computed again, and what that saves."""

from collections.abc import Mapping, Sequence
from math import sqrt

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import MaxNLocator

from course_utils.techniques import pencil
from course_utils.units import format_bytes
from course_utils.viz.parts import byte_unit, subplots
from course_utils.viz.style import COLORS

_WIDTH, _TOKENS, _ITEMSIZE = 768, 128, 4  # of the boundary in the figure to play with: DistilBERT's


def recompute_figure(width: int = 768) -> tuple[Figure, str]:
    """C = A + B is kept, dropped, computed again; and what it costs to get one dropped byte back, by operation."""
    costs = {
        "sum C = A + B": 1 / _ITEMSIZE,
        "activation (about 10)": 10 / _ITEMSIZE,
        f"product, width {width}": 2 * width / _ITEMSIZE,
    }
    figure, (left, right) = subplots(1, 2, figsize=(7.6, 3.0), layout="constrained", width_ratios=(1.7, 1))
    _draw_moments(left)
    bars = right.barh(list(costs), list(costs.values()), color=COLORS["recomputed"])
    right.bar_label(bars, [f"{cost:g}" for cost in costs.values()], padding=3, fontsize=9)
    right.set(xscale="log", xlabel="operations to get\none dropped byte back", xlim=(0.1, 6000))
    right.invert_yaxis()
    right.grid(axis="y", visible=False)
    said = "; ".join(f"{name}: {cost:g}" for name, cost in costs.items())
    return figure, (
        "Left: of the sum C = A + B all three tensors are kept after forward; with a checkpoint C is dropped and A and B are "
        "kept; in backward C is added up again. Right: operations to get one dropped byte back, on a logarithmic axis: "
        f"{said}."
    )


def _draw_moments(axes) -> None:
    rows = (
        ("after forward", "C is kept"),
        ("between, with a checkpoint", "C is dropped"),
        ("in backward", "C = A + B, again"),
    )
    for row, (moment, state) in enumerate(rows):
        _sum_row(axes, 2 - row, moment, state, there=row != 1)
    axes.set(xlim=(-0.1, 4.6), ylim=(-0.5, 2.75))
    axes.axis("off")


def segment_curves_figure(curves: Mapping[str, Mapping[str, Mapping[int, float]]]) -> tuple[Figure, str]:
    """Peak bytes against the number of segments: a panel per model, a line per way to know it (predicted, measured, …).

    The lowest point of the last line is marked, and so is the root of the largest number of segments.
    """
    figure, panels = subplots(1, len(curves), figsize=(7.6, 3.1), layout="constrained", squeeze=False)
    said = []
    for axes, (title, lines) in zip(panels[0], curves.items(), strict=True):
        unit, size = byte_unit(max(max(line.values()) for line in lines.values()))
        styles = (("predicted", "-", "", 4.0), ("measured", "", "o", 1.0))
        for (name, line), (color, style, marker, width) in zip(lines.items(), styles, strict=False):
            y = [value / size for value in line.values()]
            axes.plot(list(line), y, linestyle=style, marker=marker, color=COLORS[color], linewidth=width, label=name)
        lowest, blocks = min(line, key=line.get), max(line)
        axes.axvline(sqrt(blocks), color=COLORS["warning"], linestyle=":", linewidth=1.4, label=f"√{blocks}")
        # Towards the middle, and where the line rises again from there, well above it.
        to_the_left = {"xytext": (-6, 20), "ha": "right"}
        to_the_right = {"xytext": (10, 60), "ha": "left"}
        place = {"textcoords": "offset points", **(to_the_left if lowest > blocks / 2 else to_the_right)}
        arrow = {"arrowstyle": "->", "color": COLORS["ink"]}
        axes.annotate(f"lowest at {lowest}", (lowest, line[lowest] / size), arrowprops=arrow, **place)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(title=title, xlabel="segments s", ylabel=f"peak, {unit}", ylim=(0, None))
        axes.legend()
        values = ", ".join(f"{segments}: {format_bytes(value)}" for segments, value in line.items())
        said.append(f"{title}, {name}: {values}; lowest at {lowest}.")
    return figure, "Peak memory against the number of segments. " + " ".join(said)


def time_and_memory_figure(ways: Mapping[str, tuple[float, float]]) -> tuple[Figure, str]:
    """A point per way to train: its memory and its time, both relative to the first one's."""
    figure, axes = subplots(figsize=(7.6, 3.2), layout="constrained")
    colors = ("ink", "first", "second", "third", "fourth", "recomputed", "activations")
    markers = ("s", "o", "^", "D", "v", "P", "X")
    for (name, (memory, seconds)), color, marker in zip(ways.items(), colors, markers, strict=False):
        axes.plot(
            memory, seconds, marker, color=COLORS[color], markersize=8, label=f"{name}: {memory:.2f}, {seconds:.2f}"
        )
    axes.set(xlabel="peak, relative", ylabel="seconds of a step, relative", xlim=(0, 1.1))
    axes.set_ylim(0, 1.15 * max(seconds for _, seconds in ways.values()))
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), title="memory, time", alignment="left")
    said = "; ".join(
        f"{name}: {memory:.2f} of the memory, {seconds:.2f} of the time" for name, (memory, seconds) in ways.items()
    )
    return figure, f"Time of a step against its peak, both relative. {said}."


def segments_figure(blocks: int = 12, segments: int = 4, batch: int = 8, per_block: float = 36.0) -> tuple[Figure, str]:
    """What is kept through one forward and backward pass in segments, beside no checkpoint, and the peak for every s.

    A boundary has `batch` × 128 × 768 float32 numbers; a block saves `per_block` times that. More segments than blocks
    count as one per block.
    """
    segments, boundary = min(segments, blocks), batch * _TOKENS * _WIDTH * _ITEMSIZE
    figure, (left, right) = subplots(1, 2, figsize=(7.8, 3.5), layout="constrained", width_ratios=(2, 1))
    plain, kept = (pencil.walk(blocks, count, per_block) for count in (None, segments))
    unit, size = byte_unit(boundary * pencil.peak(blocks, None, per_block))
    _draw_walk(left, plain, kept, boundary / size)
    peaks = {count: boundary * pencil.peak(blocks, count, per_block) for count in range(1, blocks + 1)}
    right.plot(list(peaks), [value / size for value in peaks.values()], ".-", color=COLORS["predicted"])
    right.plot(segments, peaks[segments] / size, "o", color=COLORS["warning"], markersize=9)
    best = _listed([count for count, value in peaks.items() if value == min(peaks.values())])
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.set(xlabel="segments s", ylabel=f"peak, {unit}", title=f"Lowest at s = {best}", ylim=(0, None))
    left.set(
        xlabel="time, in forward passes of a block", ylabel=f"activations kept, {unit}", ylim=(0, None), xlim=(0, None)
    )
    whole, now, end = boundary * pencil.peak(blocks, None, per_block), peaks[segments], kept[-1].time
    left.set_title(f"{format_bytes(now)} instead of {format_bytes(whole)}, time {end} instead of {plain[-1].time}")
    left.legend(loc="upper right")
    return figure, (
        f"{blocks} blocks in {segments} segments, batch {batch}, {per_block:g} boundaries to a block: at most "
        f"{format_bytes(now)} are kept instead of {format_bytes(whole)}; {blocks} blocks are computed "
        f"again, so that a step takes {end} units of time instead of {plain[-1].time}. The lowest peak has {best} segments."
    )


def _listed(counts: Sequence[int]) -> str:
    """Ascending numbers in words, three and more neighbors as a range: `5 to 8`, `4, 6 or 7`."""
    runs: list[list[int]] = []
    for count in counts:
        if runs and count == runs[-1][-1] + 1:
            runs[-1].append(count)
        else:
            runs.append([count])
    said = [word for run in runs for word in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    return " or ".join(filter(None, [", ".join(said[:-1]), said[-1]]))


def _draw_walk(axes, plain: Sequence[pencil.Moment], kept: Sequence[pencil.Moment], scale: float) -> None:
    times = [moment.time for moment in kept]
    below = [scale * moment.boundaries for moment in kept]
    top = [low + scale * moment.activations for low, moment in zip(below, kept, strict=True)]
    axes.fill_between(times, below, top, step="post", color=COLORS["recomputed"], label="computed again", linewidth=0)
    axes.fill_between(
        times,
        0,
        below,
        step="post",
        color=COLORS["activations"],
        label="boundaries",
        linewidth=0.6,
        edgecolor=COLORS["ink"],
    )
    heights = [scale * moment.activations for moment in plain]
    axes.step(
        [moment.time for moment in plain],
        heights,
        where="post",
        color=COLORS["ink"],
        linestyle="--",
        label="no checkpoint",
    )


def _sum_row(axes, height: float, moment: str, state: str, *, there: bool) -> None:
    """One line of the picture: A + B = C, with C drawn solid or as an outline."""
    axes.text(0, height + 0.42, f"{moment}: {state}", fontsize=9.5, va="bottom")
    for place, (name, solid) in enumerate((("A", True), ("B", True), ("C", there))):
        color = COLORS["activations" if name != "C" else "recomputed"]
        box = FancyBboxPatch(
            (1.6 * place, height - 0.22), 0.8, 0.5, boxstyle="round,pad=0.04", linewidth=1.6, edgecolor=color
        )
        box.set(facecolor=color if solid else COLORS["paper"], linestyle="-" if solid else "--")
        axes.add_patch(box)
        ink = COLORS["paper"] if solid and name == "C" else COLORS["ink"]
        axes.text(1.6 * place + 0.4, height + 0.03, name, ha="center", va="center", fontsize=11, color=ink)
        if place < 2:
            axes.text(1.6 * place + 1.2, height + 0.03, "+="[place], ha="center", va="center", fontsize=13)
