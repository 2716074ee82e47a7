"""Chapter 07: how often blocks compute, the closed form of the peak, and the chapter's figures."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import sqrt

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

from course_utils.techniques import blocks_of, segment_ranges
from course_utils.units import format_bytes
from course_utils.viz.parts import unit_for
from course_utils.viz.plots import add_title, dots, layers, legend, lines, panels
from course_utils.viz.style import COLORS

ITEMSIZE = 4
"""Bytes of a float32 number."""


@contextmanager
def count_forwards(model: nn.Module) -> Iterator[Counter]:
    """Counts, by its number, how often each block of `model` computes, in forward and again in backward.

    It watches the first innermost module of each block, which runs even where recomputation stops early.
    """
    calls = Counter()
    hooks = []
    for number, block in enumerate(blocks_of(model)):
        first = next(module for module in block.modules() if not list(module.children()))
        hooks.append(first.register_forward_pre_hook(lambda *_, number=number: calls.update([number])))
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def peak(blocks: int, segments: int | None, per_block: float, gradients: float = 0.0) -> float:
    """The peak in boundaries, where a block saves `per_block` times what its input, a boundary, has.

    When segment j of n blocks is recomputed, j boundaries and n · `per_block` lie there, and the `gradients`, in boundaries,
    of every later block. 0 is for gradients that were there before. None is without a checkpoint; then gradients are left out.
    Only the moments of recomputing are looked at: with `gradients` above `per_block` the end of backward is higher still.
    """
    if segments is None:
        return blocks * per_block
    ranges = enumerate(segment_ranges(blocks, segments), 1)
    return max(j + len(run) * per_block + gradients * (blocks - run.stop) for j, run in ranges)


def walk(blocks: int, segments: int | None, per_block: float) -> list[tuple[int, float, float]]:
    """Forward and backward as moments: (time, boundaries, activations) kept from that time on.

    Time counts forward passes of one block; a backward takes two.
    """
    if segments is None:
        forward = [(block, 0, per_block * (block + 1)) for block in range(blocks)]
        return forward + [(blocks + 2 * (block + 1), 0, per_block * (blocks - block - 1)) for block in range(blocks)]
    ranges = segment_ranges(blocks, segments)
    moments = [(run[0], j, 0) for j, run in enumerate(ranges, 1)]
    time = blocks
    for j, run in reversed(list(enumerate(ranges, 1))):
        for count in range(1, len(run) + 1):
            moments.append((time, j, per_block * count))
            time += 1
        for left in reversed(range(len(run))):
            time += 2
            moments.append((time, j if left else j - 1, per_block * left))
    return moments


def idea_figure(blocks: int = 6, per_block: int = 8) -> tuple[Figure, str]:
    """Memory over one step: everything kept, and beside it each block's input kept and the rest computed again."""
    plain = walk(blocks, None, per_block)
    recomputing = walk(blocks, blocks, per_block)
    figure, grid = panels(1, 2, height=3.4, sharex=True, sharey=True)
    highest = [max(low + high for _, low, high in moments) for moments in (plain, recomputing)]
    titles = f"Everything is kept: {highest[0]} at the peak", f"Computed again from boundaries: {highest[1]}"
    uppers = {"activations": "activations"}, {"one block's activations": "recomputed"}
    for axes, moments, title, upper in zip(grid, (plain, recomputing), titles, uppers, strict=True):
        _draw_walk(axes, moments, title, "kept, in boundaries", {"kept": "activations"} | upper)
        axes.axvline(blocks, color=COLORS["ink"], linestyle=":")
        axes.text(blocks, per_block * blocks, "forward   backward", ha="center", va="bottom")
    grid[0].set(xlim=(0, recomputing[-1][0]), ylim=(0, 1.15 * highest[0]))
    legend(grid[1])
    return figure, (
        f"Memory over one step of {blocks} blocks that save {per_block} boundaries each. Left, everything kept: it climbs to "
        f"{highest[0]} boundaries and falls in backward. Right, only boundaries kept: at most {highest[1]}, since one block at a "
        f"time computes its activations again; the step takes {recomputing[-1][0]} units of time instead of {plain[-1][0]}."
    )


def segment_curves_figure(
    curves: Mapping[str, tuple[float, Mapping[str, Mapping[int, float]]]],
) -> tuple[Figure, str]:
    """Peak bytes against the number of segments: a panel per model with r · n, and the lines `predicted` and `measured`.

    The root of r · n is marked. The title says by how much the peak there, or at one segment per block where blocks are
    fewer than the root, is above the lowest measured one.
    """
    figure, grid = panels(1, len(curves), height=3.3, squeeze=False)
    texts, above = [], []
    styles = {"predicted": ("predicted", "-"), "measured": ("measured", "o")}
    for axes, (title, (product, data)) in zip(grid[0], curves.items(), strict=True):
        line = data["measured"]
        lowest = min(line, key=line.get)
        root = sqrt(product)
        nearest = min(line, key=lambda segments: abs(segments - root))
        above.append(line[nearest] / line[lowest] - 1)
        title = f"{title}\nlowest at {lowest}, √(r·n) = {root:.3g}{' > n' if root > max(line) else ''}"
        _, alt = lines(data, title, "segments c", "peak", unit="bytes", styles=styles, labels="none", axes=axes)
        axes.axvline(root, color=COLORS["warning"], linestyle=":", label="√(r·n)")
        texts.append(alt)
    legend(axes)
    verdict = f"within {max(above):.0%} of the lowest" if max(above) >= 0.005 else "the lowest"
    title = f"At √(r·n) segments, at most one per block, the peak is {verdict} that we tried"
    return add_title(figure, title, *texts)


def time_and_memory_figure(relative_costs: Mapping[str, tuple[float, float]]) -> tuple[Figure, str]:
    """A row for each method: its memory and its seconds, both relative to the first one's."""
    memory, seconds = ({name: costs[i] for name, costs in relative_costs.items()} for i in (0, 1))
    figure, grid = panels(1, 2, height=0.9 + 0.4 * len(memory), sharey=True)
    texts = []
    for axes, quantity, values in zip(grid, ("peak", "seconds of a step"), (memory, seconds), strict=True):
        data = {name: [value] for name, value in values.items()}
        texts.append(dots(data, x=f"{quantity},\nrelative to no checkpoint", axes=axes)[1])
        axes.axvline(1, color=COLORS["ink"], linestyle=":")
        axes.set_xlim(0, 1.1 * max(values.values()))
    saving = list(memory)[1:]
    lowest = min(saving, key=memory.get)
    *others, slowest = sorted(saving, key=seconds.get)
    title = f"The allocator's peak falls by at least {1 - max(map(memory.get, saving)):.0%}; lowest: {lowest}"
    if seconds[slowest] > 1.05 * max(map(seconds.get, others)):  # nearer ones may swap places
        title += ", the slowest" if slowest == lowest else f"; slowest: {slowest}"
    return add_title(figure, title, "Both relative to the first.", *texts)


def segments_figure(blocks: int = 12, segments: int = 4, batch: int = 8, per_block: float = 36.0) -> tuple[Figure, str]:
    """What is kept through one step in segments, beside no checkpoint, and the peak for every number of segments.

    A boundary is DistilBERT's: `batch` × 128 tokens × 768 float32 numbers. More segments than blocks count as one per block.
    """
    segments = min(segments, blocks)
    boundary = batch * 128 * 768 * ITEMSIZE
    plain = walk(blocks, None, per_block)
    recomputing = walk(blocks, segments, per_block)
    without = boundary * peak(blocks, None, per_block)
    peaks = {count: boundary * peak(blocks, count, per_block) for count in range(1, blocks + 1)}
    lowest = _join_counts([count for count, value in peaks.items() if value == min(peaks.values())])
    end, plain_end = (moments[-1][0] for moments in (recomputing, plain))
    figure, (left, right) = panels(1, 2, height=3.5, width_ratios=(2, 1))
    colors = {"kept": "activations", "computed again": "recomputed"}
    sized = [(time, boundary * low, boundary * high) for time, low, high in recomputing]
    title = f"{format_bytes(peaks[segments])} instead of {format_bytes(without)}, time {end} instead of {plain_end}"
    _draw_walk(left, sized, title, "activations kept", colors, unit="bytes")
    size = unit_for(max(low + high for _, low, high in sized))[1]
    times, _, activations = np.transpose(plain)
    left.step(times, boundary * activations / size, "--", color=COLORS["ink"], where="post", label="no checkpoint")
    left.set(xlim=(0, None), ylim=(0, 1.1 * without / size))
    left.legend(loc="upper right")
    data = {"peak": peaks, "yours": {segments: peaks[segments]}}
    styles = {"peak": ("predicted", ".-"), "yours": ("warning", "o")}
    title = f"The dot is your c = {segments}"
    lines(data, title, "segments c", "peak", unit="bytes", styles=styles, labels="none", axes=right)
    return figure, (
        f"{blocks} blocks in {segments} segments, batch {batch}, {per_block:g} boundaries per block: at most "
        f"{format_bytes(peaks[segments])} are kept instead of {format_bytes(without)}; {blocks} blocks are computed "
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
    parts = [word for run in runs for word in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    return " or ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def _draw_walk(
    axes: Axes, moments: Sequence[tuple], title: str, y: str, colors: Mapping[str, str], unit: str = ""
) -> None:
    """What is kept at each moment, in boundaries, and above it what is computed again."""
    times, boundaries, activations = zip(*moments, strict=True)
    upper = next(kind for kind in colors if kind != "kept")
    heights = {"kept": boundaries, upper: activations}
    x = "time, in forward passes of a block"
    layers(times, heights, title, x, y, unit=unit, colors=colors, axes=axes)
