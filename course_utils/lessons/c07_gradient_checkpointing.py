"""Chapter 07: how often blocks compute, the closed form of the peak, and the chapter's figures."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import sqrt

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import MaxNLocator
from torch import nn

from course_utils.techniques import blocks_of, segment_ranges
from course_utils.units import format_bytes
from course_utils.viz.parts import byte_unit, subplots
from course_utils.viz.style import COLORS, MARKS, SERIES

ITEMSIZE = 4  # bytes of a float32 number


@contextmanager
def count_forwards(model: nn.Module) -> Iterator[Counter]:
    """Counts, by its number, how often each block of `model` computes, in forward and again in backward.

    It watches the first innermost module of each block, which runs even where recomputation stops early.
    """
    calls, hooks = Counter(), []
    for number, block in enumerate(blocks_of(model)):
        first = next(module for module in block.modules() if not list(module.children()))
        hooks.append(first.register_forward_pre_hook(lambda *_, number=number: calls.update([number])))
    yield calls
    for hook in hooks:
        hook.remove()


def peak(blocks: int, segments: int | None, per_block: float) -> float:
    """The peak in boundaries, where a block saves `per_block` times what its input, a boundary, has.

    When segment j of n blocks is recomputed, j boundaries and n · `per_block` lie there. None is without a checkpoint.
    """
    if segments is None:
        return blocks * per_block
    return max(j + len(run) * per_block for j, run in enumerate(segment_ranges(blocks, segments), 1))


def walk(blocks: int, segments: int | None, per_block: float) -> list[tuple[int, float, float]]:
    """Forward and backward as moments: (time, boundaries, activations) kept from that time on.

    Time counts forward passes of one block; a backward takes two.
    """
    if segments is None:
        forward = [(done, 0, per_block * (done + 1)) for done in range(blocks)]
        return forward + [(blocks + 2 * (done + 1), 0, per_block * (blocks - done - 1)) for done in range(blocks)]
    ranges = segment_ranges(blocks, segments)
    moments = [(run[0], j, 0) for j, run in enumerate(ranges, 1)]
    time = blocks
    for j, run in reversed(list(enumerate(ranges, 1))):
        for again in range(len(run)):
            moments.append((time, j, per_block * (again + 1)))
            time += 1
        for left in reversed(range(len(run))):
            time += 2
            moments.append((time, j if left else j - 1, per_block * left))
    return moments


def recompute_figure(width: int = 768) -> tuple[Figure, str]:
    """C = A + B is kept, dropped, computed again; and what it costs to get one dropped byte back, by operation."""
    costs = {
        "sum C = A + B": 1 / ITEMSIZE,
        "activation (about 10)": 10 / ITEMSIZE,
        f"product, width {width}": 2 * width / ITEMSIZE,
    }
    figure, (left, right) = subplots(1, 2, figsize=(7.6, 3.0), layout="constrained", width_ratios=(1.7, 1))
    rows = (
        ("after forward: C is kept", True),
        ("between, with a checkpoint: C is dropped", False),
        ("in backward: C = A + B, again", True),
    )
    for height, (text, there) in zip((2, 1, 0), rows, strict=True):
        left.text(0, height + 0.42, text, fontsize=9.5, va="bottom")
        _draw_sum(left, height, there)
    left.set(xlim=(-0.1, 4.6), ylim=(-0.5, 2.75))
    left.axis("off")
    bars = right.barh(list(costs), list(costs.values()), color=COLORS["recomputed"])
    right.bar_label(bars, [f"{cost:g}" for cost in costs.values()], padding=3, fontsize=9)
    right.set(xscale="log", xlabel="operations to get\none dropped byte back", xlim=(0.1, 6000))
    right.invert_yaxis()
    right.grid(axis="y", visible=False)
    listed = "; ".join(f"{name}: {cost:g}" for name, cost in costs.items())
    return figure, (
        "Left: of the sum C = A + B all three tensors are kept after forward; with a checkpoint C is dropped and A and B are "
        "kept; in backward C is added up again. Right: operations to get one dropped byte back, on a logarithmic axis: "
        f"{listed}."
    )


def _draw_sum(axes, height: float, there: bool) -> None:
    """A + B = C, with C drawn solid, or as an outline where it is not there."""
    for place, (name, solid) in enumerate((("A", True), ("B", True), ("C", there))):
        color = COLORS["recomputed" if name == "C" else "activations"]
        look = {"boxstyle": "round,pad=0.04", "linewidth": 1.6, "linestyle": "-" if solid else "--"}
        face = color if solid else COLORS["paper"]
        axes.add_patch(FancyBboxPatch((1.6 * place, height - 0.22), 0.8, 0.5, facecolor=face, edgecolor=color, **look))
        ink = COLORS["paper" if solid and name == "C" else "ink"]
        axes.text(1.6 * place + 0.4, height + 0.03, name, ha="center", va="center", fontsize=11, color=ink)
    for place, sign in enumerate("+="):
        axes.text(1.6 * place + 1.2, height + 0.03, sign, ha="center", va="center", fontsize=13)


def segment_curves_figure(curves: Mapping[str, Mapping[str, Mapping[int, float]]]) -> tuple[Figure, str]:
    """Peak bytes against the number of segments: a panel per model, with the lines `predicted` and `measured`.

    The lowest measured point is marked, and so is the root of the largest number of segments.
    """
    figure, panels = subplots(1, len(curves), figsize=(7.6, 3.1), layout="constrained", squeeze=False)
    texts = []
    for axes, (title, lines) in zip(panels[0], curves.items(), strict=True):
        unit, size = byte_unit(max(max(line.values()) for line in lines.values()))
        for name, look in (("predicted", {"linewidth": 4.0}), ("measured", {"linestyle": "", "marker": "o"})):
            line = lines[name]
            axes.plot(list(line), [value / size for value in line.values()], color=COLORS[name], label=name, **look)
        lowest, most = min(line, key=line.get), max(line)
        axes.axvline(sqrt(most), color=COLORS["warning"], linestyle=":", linewidth=1.4, label=f"√{most}")
        # The note stands to the left of a point on the right, else to its right and well above the line.
        place = {"xytext": (-6, 20), "ha": "right"} if lowest > most / 2 else {"xytext": (10, 60), "ha": "left"}
        look = {"textcoords": "offset points", "arrowprops": {"arrowstyle": "->", "color": COLORS["ink"]}}
        axes.annotate(f"lowest at {lowest}", (lowest, line[lowest] / size), **look, **place)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(title=title, xlabel="segments s", ylabel=f"peak, {unit}", ylim=(0, None))
        axes.legend()
        values = ", ".join(f"{segments}: {format_bytes(value)}" for segments, value in line.items())
        texts.append(f"{title}, measured: {values}; lowest at {lowest}.")
    return figure, "Peak memory against the number of segments. " + " ".join(texts)


def time_and_memory_figure(ways: Mapping[str, tuple[float, float]]) -> tuple[Figure, str]:
    """A point per way to train: its memory and its time, both relative to the first one's."""
    figure, axes = subplots(figsize=(7.6, 3.2), layout="constrained")
    for (name, (memory, seconds)), color, mark in zip(ways.items(), ("ink", *SERIES), MARKS, strict=False):
        label = f"{name}: {memory:.2f}, {seconds:.2f}"
        axes.plot(memory, seconds, mark, color=COLORS[color], markersize=8, label=label)
    axes.set(xlabel="peak, relative", ylabel="seconds of a step, relative", xlim=(0, 1.1))
    axes.set_ylim(0, 1.15 * max(seconds for _, seconds in ways.values()))
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), title="memory, time", alignment="left")
    listed = "; ".join(f"{name}: {m:.2f} of the memory, {s:.2f} of the time" for name, (m, s) in ways.items())
    return figure, f"Time of a step against its peak, both relative. {listed}."


def segments_figure(blocks: int = 12, segments: int = 4, batch: int = 8, per_block: float = 36.0) -> tuple[Figure, str]:
    """What is kept through one step in segments, beside no checkpoint, and the peak for every number of segments.

    A boundary is DistilBERT's: `batch` × 128 tokens × 768 float32 numbers. More segments than blocks count as one per block.
    """
    segments, boundary = min(segments, blocks), batch * 128 * 768 * ITEMSIZE
    plain, kept = walk(blocks, None, per_block), walk(blocks, segments, per_block)
    without = boundary * peak(blocks, None, per_block)
    peaks = {count: boundary * peak(blocks, count, per_block) for count in range(1, blocks + 1)}
    lowest = _join_counts([count for count, value in peaks.items() if value == min(peaks.values())])
    unit, size = byte_unit(without)
    figure, (left, right) = subplots(1, 2, figsize=(7.8, 3.5), layout="constrained", width_ratios=(2, 1))
    times, boundaries, activations = zip(*kept, strict=True)
    below = [boundary / size * value for value in boundaries]
    above = [low + boundary / size * value for low, value in zip(below, activations, strict=True)]
    area = {"step": "post", "linewidth": 0}
    left.fill_between(times, below, above, color=COLORS["recomputed"], label="computed again", **area)
    left.fill_between(times, 0, below, color=COLORS["activations"], label="boundaries", **area)
    heights = [boundary / size * moment[2] for moment in plain]
    dashed = {"where": "post", "color": COLORS["ink"], "linestyle": "--"}
    left.step([moment[0] for moment in plain], heights, label="no checkpoint", **dashed)
    left.set(xlabel="time, in forward passes of a block", ylabel=f"activations kept, {unit}")
    left.set(xlim=(0, None), ylim=(0, None))
    now, end, plain_end = peaks[segments], kept[-1][0], plain[-1][0]
    left.set_title(f"{format_bytes(now)} instead of {format_bytes(without)}, time {end} instead of {plain_end}")
    left.legend(loc="upper right")
    right.plot(list(peaks), [value / size for value in peaks.values()], ".-", color=COLORS["predicted"])
    right.plot(segments, now / size, "o", color=COLORS["warning"], markersize=9)
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.set(xlabel="segments s", ylabel=f"peak, {unit}", title=f"Lowest at s = {lowest}", ylim=(0, None))
    return figure, (
        f"{blocks} blocks in {segments} segments, batch {batch}, {per_block:g} boundaries to a block: at most "
        f"{format_bytes(now)} are kept instead of {format_bytes(without)}; {blocks} blocks are computed "
        f"again, so that a step takes {end} units of time instead of {plain_end}. The lowest peak has {lowest} segments."
    )


def _join_counts(counts: Sequence[int]) -> str:
    """Ascending numbers in words, three and more neighbors as a range: `5 to 8`, `4, 6 or 7`."""
    runs: list[list[int]] = []
    for count in counts:
        if runs and count == runs[-1][-1] + 1:
            runs[-1].append(count)
        else:
            runs.append([count])
    words = [word for run in runs for word in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
