"""Figures about number formats and what training in narrow ones loses."""

from collections import Counter
from collections.abc import Iterable, Mapping
from math import inf, isfinite, log2, nextafter

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils.precision import FORMATS, Format, in_binary, loss_in
from course_utils.viz.parts import subplots
from course_utils.viz.style import BIT_COLORS, BIT_INK, COLORS

_FIELDS = tuple(BIT_COLORS.items())


def number_picker(name: str = "fp16", number: float = 0.1):
    """The control of `number_figure`; a widget whose value is (format, pattern, the number that was asked for)."""
    from course_utils.viz.picker import NumberPicker

    return NumberPicker(name, number)


def formats_figure() -> tuple[Figure, str]:
    """The fields of each format, bit by bit, and its range beside it."""
    figure, (left, right) = subplots(
        1, 2, figsize=(7.6, 3.1), layout="constrained", sharey=True, width_ratios=(1.35, 1)
    )
    said = []
    for row, number in enumerate(FORMATS.values()):
        _draw_fields(left, row, number)
        _draw_range(right, row, number)
        said.append(
            f"{number.name}: {number.exponent_bits} exponent and {number.mantissa_bits} mantissa bits, largest "
            f"{number.largest:.3g}, smallest normal {number.smallest_normal:.2g}, spacing at 1 {number.spacing(1):.2g}"
        )
    left.set(yticks=range(len(FORMATS)), yticklabels=FORMATS, xlim=(0, 32.5), xlabel="bits", ylim=(5.6, -0.6))
    right.set(xlabel="range, as powers of two")
    right.tick_params(left=False)
    left.grid(visible=False)
    right.grid(visible=False, axis="y")
    figure.legend(
        [Rectangle((0, 0), 1, 1, color=COLORS[color]) for _, color in _FIELDS],
        [name for name, _ in _FIELDS],
        loc="outside upper left",
        ncols=3,
    )
    return figure, f"Number formats. {'; '.join(said)}."


_WIDE, _NARROW = "parameters", "gradients"
_CYCLE = (
    (0.12, 0.76, "parameters θ\n(master weights)", _WIDE),
    (0.12, 0.22, "copy of θ", _NARROW),
    (0.37, 0.22, "forward:\nproducts", _NARROW),
    (0.59, 0.22, "loss × S", _WIDE),
    (0.85, 0.22, "backward: gradients,\nS times as large", _NARROW),
    (0.85, 0.76, "gradients ÷ S:\nall finite?", _WIDE),
    (0.47, 0.76, "yes: clip, update θ, S may grow\nno: leave the update out, halve S", _WIDE),
)


def mixed_precision_figure() -> tuple[Figure, str]:
    """One step of mixed precision: what is narrow, what is wide, where the loss scale comes in and goes out."""
    figure, axes = subplots(figsize=(7.6, 3.0), layout="constrained")
    boxes = [_box(axes, *station) for station in _CYCLE]
    for start, end in zip(boxes, [*boxes[1:], boxes[0]], strict=True):
        _arrow(axes, start, end)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.axis("off")
    handles = [Rectangle((0, 0), 1, 1, facecolor="none", edgecolor=COLORS[c], linewidth=2) for c in (_WIDE, _NARROW)]
    figure.legend(handles, ["32 bits", "16 bits"], loc="outside upper left", ncols=2)
    return figure, (
        "Cycle of one step. Parameters are kept in 32 bits, the master weights; a 16-bit copy goes through the products of "
        "the forward pass; the loss, in 32 bits, is multiplied by S; the backward pass computes 16-bit gradients that are S "
        "times as large; in 32 bits they are divided by S. If all are finite they are clipped and the parameters updated, and "
        "S may grow; if not, the update is left out and S is halved."
    )


def exponents_figure(
    counts: Mapping[int, int], names: Iterable[str] = ("fp16", "bf16", "fp8 e4m3", "fp8 e5m2"), scale: float = 1.0
) -> tuple[Figure, str]:
    """How many numbers lie in each power of two, under bars with the ranges of formats; `scale` moves the numbers."""
    names, shift = list(names), round(log2(scale))
    total = sum(counts.values())
    figure, (top, below) = subplots(
        2, 1, figsize=(7.6, 4.2), layout="constrained", sharex=True, height_ratios=(0.32 * len(names), 2)
    )
    levels = sorted(counts)
    below.bar([e + shift + 0.5 for e in levels], [100 * counts[e] / total for e in levels], 0.9, color=COLORS["first"])
    below.set(xlabel="size of the gradients, as power of two", ylabel="% of those that are not 0")
    for row, name in enumerate(names):
        _draw_range(top, row, FORMATS[name])
    low, high = min(levels) + min(shift, 0) - 2, max(max(levels) + shift, 18) + 2
    below.set(xlim=(max(low, -64), high))
    top.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.4, -0.6))
    top.grid(visible=False, axis="y")
    top.set_title("Ranges of formats (pale: subnormal numbers, which lose mantissa bits)")
    middle = _median(Counter(counts)) + shift + 1  # the upper end of its power of two
    below_fp16 = sum(n for e, n in counts.items() if e + shift < -25) / total
    return figure, (
        f"Histogram of {total:,} gradients over powers of two, times S = {scale:g}: from 2^{min(levels) + shift} to "
        f"2^{max(levels) + shift + 1}, half of them below 2^{middle}; {below_fp16:.1%} lie below 2^-25, half of fp16's smallest."
    )


def scale_window_figure(
    gradients: Iterable[torch.Tensor], number: Format, powers: Iterable[int] = range(-8, 41, 2)
) -> tuple[Figure, str]:
    """The shares of gradients that vanish, lose bits and overflow in a format, against the loss scale."""
    gradients, powers = list(gradients), list(powers)
    losses = [loss_in(gradients, number, 2.0**power) for power in powers]
    figure, axes = subplots(figsize=(7.6, 3.2), layout="constrained")
    for label, color in (("vanished", "first"), ("subnormal", "third"), ("overflowed", "second")):
        shares = [100 * vars(loss)[label] for loss in losses]
        axes.plot(powers, shares, color=COLORS[color], label=label, marker="o", markersize=3)
    axes.set(xlabel="loss scale S, as power of two", ylabel="% of the gradients that are not 0")
    axes.legend()
    best = [p for p, loss in zip(powers, losses, strict=True) if loss.vanished < 0.01 and loss.overflowed == 0]
    window = f"from 2^{best[0]} to 2^{best[-1]} less than 1 % vanish and none overflows" if best else "no S suits all"
    return figure, (
        f"Shares of the gradients in {number.name} against S. At 2^{powers[0]} {losses[0].vanished:.1%} vanish, at "
        f"2^{powers[-1]} {losses[-1].overflowed:.1%} overflow; {window}."
    )


def number_figure(number: tuple[str, int, float]) -> tuple[Figure, str]:
    """A number of a format: its bits, its neighbors on the number line, its place in the range.

    `number` is (format name, bit pattern, the number that was asked for).
    """
    name, pattern, wanted = number
    kind = FORMATS[name]
    value = kind.value(pattern)
    figure, (bits, line, span) = subplots(3, 1, figsize=(7.6, 4.4), layout="constrained", height_ratios=(1, 1.2, 0.9))
    _draw_bits(bits, kind, pattern)
    said = f"{_short(value)} = {in_binary(value)}" if isfinite(value) else _short(value)
    bits.set_title(f"{name}: {said}")
    if isfinite(value):
        _draw_neighbors(line, kind, value, wanted)
        error = f", off by {abs(value - wanted) / abs(wanted):.2g} of it" if wanted else ""
        line.set_title(f"{_short(wanted)} becomes {_short(value)}{error}; spacing here {kind.spacing(value):.3g}")
    else:
        line.set_title(f"{_short(wanted)} becomes {_short(value)}: the largest number is {kind.largest:.5g}")
        line.axis("off")
    _draw_place(span, kind, value)
    return figure, (
        f"{name}, pattern {pattern:0{kind.bits}b}: {said}. Asked for {_short(wanted)}. Spacing "
        f"{kind.spacing(value) if isfinite(value) else inf:.3g}, largest {kind.largest:.5g}, smallest normal "
        f"{kind.smallest_normal:.3g}, smallest above zero {kind.smallest_subnormal:.3g}."
    )


def _draw_fields(axes, row: int, number: Format) -> None:
    left = 0
    for (_, color), width in zip(_FIELDS, (1, number.exponent_bits, number.mantissa_bits), strict=True):
        for place in range(width):
            box = Rectangle((left + place, row - 0.35), 0.9, 0.7, color=COLORS[color])
            axes.add_patch(box)
        left += width


def _draw_range(axes, row: int, number: Format) -> None:
    """A bar from the smallest normal to the largest number, and a pale one for the subnormal numbers below."""
    low, normal, high = (log2(x) for x in (number.smallest_subnormal, number.smallest_normal, number.largest))
    axes.barh(row, high - normal, left=normal, height=0.5, color=COLORS["fourth"])
    axes.barh(row, normal - low, left=low, height=0.5, color=COLORS["fourth"], alpha=0.35)


def _draw_bits(axes, number: Format, pattern: int) -> None:
    _draw_fields(axes, 0, number)
    for place, bit in enumerate(f"{pattern:0{number.bits}b}"):
        axes.text(place + 0.45, 0, bit, ha="center", va="center", color=BIT_INK, fontsize=10)
    sign, exponent, mantissa = number.fields(pattern)
    power = max(exponent, 1) - number.bias
    caption = f"sign {sign}; exponent field {exponent}, so times 2^{power}; mantissa field {mantissa}"
    axes.text(0, 0.8, caption, va="center", fontsize=9)
    axes.set(xlim=(-0.5, 32.5), ylim=(1.2, -0.6))
    axes.axis("off")


def _draw_neighbors(axes, number: Format, value: float, wanted: float) -> None:
    spacing = number.spacing(value)
    low, high = value - 4.5 * spacing, value + 4.5 * spacing
    start = number.nearest(torch.tensor(low, dtype=torch.float64), saturate=True).item()
    marks = [start]
    while marks[-1] < min(high, number.largest):
        below = nextafter(abs(marks[-1]), 0) if marks[-1] < 0 else marks[-1]
        marks.append(marks[-1] + number.spacing(below))
    axes.plot(marks, [0] * len(marks), "|", color=COLORS["ink"], markersize=22, label=f"numbers of {number.name}")
    axes.plot([value], [0], "o", color=COLORS["first"], markersize=9, label="the number it is")
    if low <= wanted <= high:
        axes.plot([wanted], [0.25], "v", color=COLORS["second"], markersize=9, label="the number asked for")
    axes.set(xlim=(low, high), ylim=(-0.5, 0.6), yticks=())
    axes.ticklabel_format(axis="x", useOffset=False)
    axes.locator_params(axis="x", nbins=5)
    axes.grid(visible=False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=3)


def _draw_place(axes, number: Format, value: float) -> None:
    _draw_range(axes, 0, number)
    if value and isfinite(value):
        axes.plot([log2(abs(value))], [0], "o", color=COLORS["first"], markersize=9)
    axes.set(
        yticks=(), xlim=(-155, 135), ylim=(-0.6, 0.6), xlabel="range of the format, as powers of two (pale: subnormal)"
    )
    axes.grid(visible=False, axis="y")


def _median(counts: Counter) -> int:
    half, seen = sum(counts.values()) / 2, 0
    for level in sorted(counts):
        seen += counts[level]
        if seen >= half:
            break
    return level


def _short(value: float) -> str:
    return f"{value:.9g}"


def _box(axes, x: float, y: float, text: str, color: str):
    frame = {"boxstyle": "round,pad=0.4", "facecolor": COLORS["paper"], "edgecolor": COLORS[color], "linewidth": 2}
    return axes.text(x, y, text, ha="center", va="center", bbox=frame, color=COLORS["ink"], fontsize=9)


def _arrow(axes, start, end) -> None:
    shape = {"arrowstyle": "-|>", "color": COLORS["ink"], "linewidth": 1.4}
    ends = {"patchA": start.get_bbox_patch(), "patchB": end.get_bbox_patch()}
    axes.annotate("", xy=end.get_position(), xytext=start.get_position(), arrowprops=shape | ends)
