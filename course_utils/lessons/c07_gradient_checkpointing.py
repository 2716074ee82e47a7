"""Chapter 07: how often blocks compute, the closed form of the peak, and the chapter's figures."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import sqrt

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import nn

from course_utils.techniques import blocks_of, segment_ranges
from course_utils.units import format_bytes
from course_utils.viz.parts import byte_unit, subplots
from course_utils.viz.style import COLORS

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


def idea_figure(blocks: int = 6, per_block: int = 8) -> tuple[Figure, str]:
    """Memory over one step: everything kept, and beside it each block's input kept and the rest computed again."""
    plain, again = walk(blocks, None, per_block), walk(blocks, blocks, per_block)
    figure, (left, right) = subplots(1, 2, figsize=(7.6, 3.0), layout="constrained", sharey=True)
    for axes, moments, forward in ((left, plain, blocks), (right, again, blocks)):
        times, boundaries, activations = zip(*moments, strict=True)
        above = [low + high for low, high in zip(boundaries, activations, strict=True)]
        color = COLORS["activations" if axes is left else "recomputed"]
        axes.fill_between(times, boundaries, above, step="post", linewidth=0, color=color)
        axes.fill_between(times, 0, boundaries, step="post", linewidth=0, color=COLORS["activations"])
        axes.axvline(forward, color=COLORS["ink"], linestyle=":", linewidth=1)
        axes.text(forward / 2, 1.03 * per_block * blocks, "forward", ha="center", fontsize=9)
        axes.text((forward + times[-1]) / 2, 1.03 * per_block * blocks, "backward", ha="center", fontsize=9)
        axes.set(
            xlabel="time, in forward passes of a block", ylim=(0, 1.15 * per_block * blocks), xlim=(0, again[-1][0])
        )
    left.set_ylabel("kept, in boundaries")
    highest = [max(low + high for _, low, high in moments) for moments in (plain, again)]
    left.set_title(f"Everything is kept: {highest[0]} at the peak", fontsize=10)
    right.set_title(f"Computed again from boundaries: {highest[1]}", fontsize=10)
    right.text(
        blocks + 1, highest[1] + 2, "one block's activations, for a moment", fontsize=9, color=COLORS["recomputed"]
    )
    right.text(blocks + 1, 1, "boundaries", fontsize=9)
    return figure, (
        f"Memory over one step of {blocks} blocks that save {per_block} boundaries each. Left, everything kept: it climbs to "
        f"{highest[0]} boundaries and falls in backward. Right, only boundaries kept: at most {highest[1]}, since one block at a "
        f"time computes its activations again; the step takes {again[-1][0]} units of time instead of {plain[-1][0]}."
    )


def segment_curves_figure(
    curves: Mapping[str, tuple[float, Mapping[str, Mapping[int, float]]]],
) -> tuple[Figure, str]:
    """Peak bytes against the number of segments: a panel per model with r · n, and the lines `predicted` and `measured`.

    The root of r · n is marked, and the title says how far the lowest measured point is from it.
    """
    figure, panels = subplots(1, len(curves), figsize=(7.8, 3.1), layout="constrained", squeeze=False)
    texts, off = [], []
    for axes, (title, (product, lines)) in zip(panels[0], curves.items(), strict=True):
        unit, size = byte_unit(max(max(line.values()) for line in lines.values()))
        for name, look in (("predicted", {"linewidth": 4.0}), ("measured", {"linestyle": "", "marker": "o"})):
            line = lines[name]
            axes.plot(list(line), [value / size for value in line.values()], color=COLORS[name], label=name, **look)
        lowest, root = min(line, key=line.get), sqrt(product)
        off.append(abs(lowest / min(root, max(line)) - 1))
        axes.axvline(root, color=COLORS["warning"], linestyle=":", linewidth=1.4, label="√(r·n)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel="segments c", ylabel=f"peak, {unit}", ylim=(0, None))
        axes.set_title(f"{title}\nlowest at {lowest}, √(r·n) = {root:.3g}", fontsize=10)
        values = ", ".join(f"{segments}: {format_bytes(value)}" for segments, value in line.items())
        texts.append(f"{title}, √(r·n) = {root:.3g}, measured: {values}; lowest at {lowest}.")
    panels[0][-1].legend(fontsize=8, loc="upper right")
    conclusion = f"The peak is lowest within {max(off):.0%} of √(r·n) segments, or at one per block where that is fewer"
    figure.suptitle(conclusion, x=0.01, ha="left", fontsize=11)
    return figure, f"{conclusion}. Peak memory against the number of segments. " + " ".join(texts)


def time_and_memory_figure(ways: Mapping[str, tuple[float, float]]) -> tuple[Figure, str]:
    """A row per way to train: its memory and its time, both relative to the first one's."""
    figure, panels = subplots(1, 2, figsize=(7.8, 0.9 + 0.31 * len(ways)), layout="constrained", sharey=True)
    rows, saving = range(len(ways)), list(ways)[1:]
    for panel, side, xlabel in ((0, -1, "peak, relative"), (1, 1, "seconds of a step, relative")):
        axes, values = panels[panel], [point[panel] for point in ways.values()]
        axes.axvline(1, color=COLORS["ink"], linestyle=":", linewidth=1)
        axes.hlines(rows, 1, values, color=COLORS["activations" if panel == 0 else "recomputed"], linewidth=2)
        axes.plot(values, rows, "o", color=COLORS["measured"], markersize=6)
        for row, value in zip(rows, values, strict=True):
            place = {"xytext": (8 * side, 0), "textcoords": "offset points", "ha": "right" if side < 0 else "left"}
            axes.annotate(f"{value:.2f}", (value, row), **place, va="center", fontsize=9)
        axes.set(xlabel=xlabel, yticks=list(rows), yticklabels=list(ways), ylim=(len(ways) - 0.5, -0.5))
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.28)
    least, fastest = (min(saving, key=lambda name: ways[name][panel]) for panel in (0, 1))
    both = f"{least}: least memory and, of those that save memory, least time"
    title = both if least == fastest else f"{least}: least memory; {fastest}: least time of those that save memory"
    figure.suptitle(title[0].upper() + title[1:], x=0.01, ha="left", fontsize=11)
    listed = "; ".join(f"{name}: {m:.2f} of the memory, {s:.2f} of the time" for name, (m, s) in ways.items())
    return figure, f"{title[0].upper() + title[1:]}. Both relative to the first. {listed}."


def segments_figure(blocks: int = 12, segments: int = 4, batch: int = 8, per_block: float = 36.0) -> tuple[Figure, str]:
    """What is kept through one step in segments, beside no checkpoint, and the peak for every number of segments.

    A boundary is DistilBERT's: `batch` × 128 tokens × 768 float32 numbers. More segments than blocks count as one per block.
    """
    segments, boundary = min(segments, blocks), batch * 128 * 768 * ITEMSIZE
    plain, again = walk(blocks, None, per_block), walk(blocks, segments, per_block)
    without = boundary * peak(blocks, None, per_block)
    peaks = {count: boundary * peak(blocks, count, per_block) for count in range(1, blocks + 1)}
    lowest = _join_counts([count for count, value in peaks.items() if value == min(peaks.values())])
    unit, size = byte_unit(without)
    figure, (left, right) = subplots(1, 2, figsize=(7.8, 3.5), layout="constrained", width_ratios=(2, 1))
    times, boundaries, activations = zip(*again, strict=True)
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
    now, end, plain_end = peaks[segments], again[-1][0], plain[-1][0]
    left.set_title(f"{format_bytes(now)} instead of {format_bytes(without)}, time {end} instead of {plain_end}")
    left.legend(loc="upper right")
    right.plot(list(peaks), [value / size for value in peaks.values()], ".-", color=COLORS["predicted"])
    right.plot(segments, now / size, "o", color=COLORS["warning"], markersize=9)
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.set(xlabel="segments c", ylabel=f"peak, {unit}", title=f"Lowest at c = {lowest}", ylim=(0, None))
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
