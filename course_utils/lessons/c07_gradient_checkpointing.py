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
from course_utils.units import format_bytes, format_counted
from course_utils.viz.parts import unit_for
from course_utils.viz.plots import add_title, layers, legend, lines, panels
from course_utils.viz.style import COLORS

ITEMSIZE = 4
"""Bytes of a float32 number."""
_COLORS = {"kept": "activations", "computed again": "recomputed"}


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


def list_moments(blocks: int, segments: int | None, per_block: float) -> list[tuple[int, float, float]]:
    """Forward and backward as moments: (time, kept, computed again) in boundaries, from that time on.

    Time counts forward passes of one block; a backward takes two.
    """
    if segments is None:
        forward = [(block, per_block * (block + 1), 0) for block in range(blocks)]
        return forward + [(blocks + 2 * (block + 1), per_block * (blocks - block - 1), 0) for block in range(blocks)]
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
    """The idea: memory over one step with everything kept, and with boundaries kept and each block computed again."""
    figure, grid = panels(1, 2, sharex=True, sharey=True)
    for axes, segments, title in zip(grid, (None, blocks), ("Everything is kept", "Boundaries are kept"), strict=True):
        _draw_moments(axes, list_moments(blocks, segments, per_block), title)
        axes.axvline(blocks, color=COLORS["ink"], linestyle=":")
        axes.text(blocks, per_block * blocks, "forward   backward", ha="center", va="bottom")
    grid[0].set(xlim=(0, 4 * blocks), ylim=(0, 1.15 * per_block * blocks))
    legend(grid[1])
    title = "The peak falls from {:g} boundaries to {:g}"
    title = title.format(*(peak(blocks, segments, per_block) for segments in (None, blocks)))
    return add_title(figure, title, f"A step takes {4 * blocks} units of time instead of {3 * blocks}.")


def segment_curves_figure(
    curves: Mapping[str, tuple[float, Mapping[str, Mapping[int, float]]]],
) -> tuple[Figure, str]:
    """Peak bytes against the number of segments: a panel per model with r · n, and the lines `predicted` and `measured`."""
    figure, grid = panels(1, len(curves), height=3.3, squeeze=False)
    options = {"unit": "bytes", "styles": {"predicted": ("predicted", "-"), "measured": ("measured", "o")}}
    for axes, (title, (product, data)) in zip(grid[0], curves.items(), strict=True):
        root = {"√(r·n)": sqrt(product)}
        title += f"\nlowest at {min(data['measured'], key=data['measured'].get)}"
        lines(data, title, "segments c", "peak", verticals=root, labels="none", axes=axes, **options)
    legend(axes)
    return add_title(figure, "The peak is lowest near √(r·n) segments, at most one per block")


def segments_figure(blocks: int = 12, segments: int = 4, batch: int = 8, per_block: float = 36.0) -> tuple[Figure, str]:
    """Play: what is kept through one step in segments, beside no checkpoint, and the peak for every number of segments.

    A boundary is DistilBERT's: `batch` × 128 tokens × 768 float32 numbers. More segments than blocks count as one per block.
    """
    segments = min(segments, blocks)
    boundary = batch * 128 * 768 * ITEMSIZE
    peaks = {count: boundary * peak(blocks, count, per_block) for count in range(1, blocks + 1)}
    without = boundary * peak(blocks, None, per_block)
    figure, (left, right) = panels(1, 2, height=3.5, width_ratios=(2, 1))
    _draw_moments(left, list_moments(blocks, segments, per_block), "", boundary)
    times, activations, _ = np.transpose(list_moments(blocks, None, per_block))
    size = unit_for(peaks[segments])[1]
    left.step(times, boundary * activations / size, "--", color=COLORS["ink"], where="post", label="no checkpoint")
    left.set(xlim=(0, None), ylim=(0, 1.1 * max(without, peaks[segments]) / size))
    legend(left)
    your_count = {f"c = {segments}": segments}
    lines({"peak": peaks}, "", "segments c", "peak", unit="bytes", verticals=your_count, labels="none", axes=right)
    title = f"{format_counted(blocks, 'block')} in {format_counted(segments, 'segment')}: at most "
    title += f"{format_bytes(peaks[segments])} are kept instead of {format_bytes(without)}"
    return add_title(figure, title)


def _draw_moments(axes: Axes, moments: Sequence[tuple], title: str, boundary: float = 0) -> None:
    """What is kept at each moment and above it what is computed again, in boundaries or in bytes of one `boundary`."""
    times, *heights = np.transpose(moments)
    heights = {kind: (boundary or 1) * height for kind, height in zip(_COLORS, heights, strict=True)}
    y, unit = ("activations kept", "bytes") if boundary else ("kept, in boundaries", "")
    layers(times, heights, title, "time, in forward passes of a block", y, unit=unit, colors=_COLORS, axes=axes)
