"""Chapter 08: what formats lose of a model's gradients, which types a run computes in, a slow data loader; and the figures."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import frexp, inf, isfinite, log2, nextafter

import pandas as pd
import torch
from ipywidgets import Box, Button, Dropdown, FloatText, IntSlider, VBox
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset
from traitlets import Tuple

from course_utils.precision import FORMATS, Format
from course_utils.training.profile import ELSEWHERE, LOADING, PHASES, Trace
from course_utils.units import format_seconds
from course_utils.viz.parts import arrow, box, patches, second_unit, subplots
from course_utils.viz.style import BIT_COLORS, BIT_INK, COLORS, writing


def in_decimal(value: float) -> str:
    """`value` as sign, mantissa and a power of ten: "+1.25 · 10^-1"."""
    mantissa, exponent = f"{value:+.6e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')} · 10^{int(exponent)}"


def in_binary(value: float) -> str:
    """`value` as sign, mantissa and a power of two: "+1.0 · 2^-3"."""
    mantissa, exponent = frexp(value)
    return f"{2 * mantissa:+} · 2^{exponent - 1}" if value else "+0.0"


def gradients_of(model: nn.Module, loss: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """Every gradient that a backward pass of `loss()` computes at a linear layer: of its output and of its parameters.

    Those of the outputs are what autocast computes in a narrow type. Nothing is left in the parameters.
    """
    found: list[torch.Tensor] = []
    layers = nn.ModuleList(module for module in model.modules() if isinstance(module, nn.Linear))

    def watch_output(module, inputs, output):
        if output.requires_grad:
            output.register_hook(lambda gradient: found.append(gradient.detach()))

    hooks = [layer.register_forward_hook(watch_output) for layer in layers]
    model.zero_grad()
    loss().backward()
    for hook in hooks:
        hook.remove()
    found += [p.grad.clone() for p in layers.parameters() if p.grad is not None]  # a shared weight comes once
    model.zero_grad()
    return found


def exponent_counts(tensors: Iterable[torch.Tensor]) -> Counter:
    """How many elements have |x| in [2ᵉ, 2ᵉ⁺¹), by e; zeros, infinities and NaN are not counted."""
    counts: Counter = Counter()
    for tensor in tensors:
        values = tensor.double()
        exponents = torch.frexp(values[values.isfinite() & (values != 0)])[1] - 1
        levels, numbers = exponents.unique(return_counts=True)
        counts.update(dict(zip(levels.tolist(), numbers.tolist(), strict=True)))
    return counts


@dataclass(frozen=True)
class RoundingLoss:
    """Shares of the numbers that were neither 0 nor infinite: become 0, lose mantissa bits, become too large."""

    vanished: float
    subnormal: float
    overflowed: float


def underflow_in(tensors: Iterable[torch.Tensor], number: Format, scale: float = 1.0) -> RoundingLoss:
    """What rounding `scale` times each tensor to the format loses."""
    total = vanished = subnormal = overflowed = 0
    for tensor in tensors:
        values = tensor.double()
        values = values[values.isfinite() & (values != 0)] * scale
        rounded = number.nearest(values)
        total += values.numel()
        vanished += (rounded == 0).sum().item()
        subnormal += ((rounded != 0) & (rounded.abs() < number.smallest_normal)).sum().item()
        overflowed += (~rounded.isfinite()).sum().item()
    return RoundingLoss(vanished / max(1, total), subnormal / max(1, total), overflowed / max(1, total))


class OperatorTypes(TorchDispatchMode):
    """While it is entered, counts every operator by the floating-point types that go in and that come out."""

    def __init__(self):
        super().__init__()
        self.calls: Counter = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.removeprefix("_")
        self.calls[name, self._types_in((args, kwargs)), self._types_in(result)] += 1
        return result

    def frame(self) -> pd.DataFrame:
        """A row per operator and types, with its calls; operators without floating-point numbers are left out."""
        rows = [(*key, calls) for key, calls in sorted(self.calls.items()) if key[1] or key[2]]
        return pd.DataFrame(rows, columns=["operator", "types in", "types out", "calls"]).set_index("operator")

    @property
    def of_linear_layers(self) -> set[str]:
        """The types of the factors of x Wᵀ and of its two gradients: `{"bfloat16"}`. Attention is not among them."""
        products = {"mm", "addmm", "linear", "linear_backward"}
        return {into for (name, into, _), _ in self.calls.items() if name in products and into}

    @staticmethod
    def _types_in(tree) -> str:
        tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
        return ", ".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors}))


def unmoved_share(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> float:
    """The share of all elements that are the same in both lists of tensors."""
    same = sum((b == a).sum().item() for b, a in zip(before, after, strict=True))
    return same / sum(b.numel() for b in before)


def relative_error(approximate: torch.Tensor, exact: torch.Tensor) -> float:
    """|approximate − exact| / |exact|, 2-norms over all elements."""
    return ((approximate - exact).norm() / exact.norm()).item()


class Waiting(Dataset):
    """A data set that is slow now and then: it waits for `seconds` before every `every`-th batch, as for a busy disk."""

    def __init__(self, rows: Dataset, seconds: float, every: int = 1):
        self.rows, self.seconds, self.every, self.fetched = rows, seconds, every, 0

    def __getitems__(self, indices: list[int]) -> list:
        """The rows of one batch: a loader asks for them together."""
        self.fetched += 1
        if self.fetched % self.every == 0:
            time.sleep(self.seconds)
        return [self.rows[index] for index in indices]

    def __getitem__(self, index: int):
        return self.__getitems__([index])[0]

    def __len__(self) -> int:
        return len(self.rows)


def slow_to_read(batches: DataLoader, seconds: float, every: int = 1, workers: int = 0) -> DataLoader:
    """The batches of `batches` in the same order, read with waits as of `Waiting`.

    With `workers` that many processes read ahead, each two batches, and each counts `every` for itself.
    """
    rows = Waiting(batches.dataset, seconds, every)
    options = {name: getattr(batches, name) for name in ("sampler", "collate_fn", "generator", "drop_last")}
    return DataLoader(rows, batches.batch_size, num_workers=workers, **options)


PHASE_COLORS = {
    LOADING: "inputs",
    "forward": "activations",
    "backward": "gradients",
    "update": "optimizer state",
    ELSEWHERE: "not attributed",
}


def trace_figure(trace: Trace, title: str = "") -> tuple[Figure, str]:
    """What ran when: a row each for the data loader, the phases and the model's operators; the gaps are hatched."""
    unit, size = second_unit(trace.end)
    gaps, phases = trace.gaps(), trace.of("phase")
    rows = {LOADING: trace.of(LOADING)} | {name: phases[phases["name"] == name] for name in PHASES}
    figure, axes = subplots(figsize=(7.6, 2.9), layout="constrained")
    for row, (name, spans) in enumerate({**rows, "model computes": trace.computing()}.items()):
        bars = zip(spans["start"] / size, (spans["end"] - spans["start"]) / size, strict=True)
        axes.broken_barh(list(bars), (row - 0.36, 0.72), facecolor=COLORS[PHASE_COLORS.get(name, "ink")])
    for start in trace.of("step")["start"][1:]:
        axes.axvline(start / size, color=COLORS["not attributed"], linewidth=0.8, linestyle=":")
    look = {"facecolor": "none", "edgecolor": COLORS["warning"], "hatch": "////", "linewidth": 0.8}
    for gap in gaps.itertuples():
        axes.add_patch(Rectangle((gap.start / size, -0.5), gap.seconds / size, 5.0, **look))
        if gap.seconds >= 0.04 * trace.end:  # there is room for its length
            middle = (gap.start + gap.end) / 2 / size
            axes.text(middle, -0.55, format_seconds(gap.seconds), ha="center", va="bottom", color=writing("warning"))
    axes.set(yticks=range(5), yticklabels=[*rows, "model computes"], ylim=(4.6, -1.0), xlim=(0, trace.end / size))
    axes.set(xlabel=f"time since the first recorded step, {unit}; dotted: a new step begins", title=title)
    axes.grid(axis="y", visible=False)
    figure.legend([Rectangle((0, 0), 1, 1, **look)], ["no operator of the model runs"], loc="outside upper right")
    sums = {name: (spans["end"] - spans["start"]).sum() for name, spans in rows.items()}
    split = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in sums.items())
    found = "; ".join(f"{format_seconds(gap.seconds)} ({gap.where})" for gap in gaps.itertuples())
    return figure, (
        f"A timeline of {len(trace.of('step'))} steps in {format_seconds(trace.end)}: {split}. "
        f"Gaps in which no operator of the model ran: {found or 'none'}."
    )


def operator_seconds_figure(table: pd.DataFrame, top: int = 8) -> tuple[Figure, str]:
    """The `top` slowest operators of `Trace.operator_seconds`, each bar split by phase; the rest is one bar."""
    rest = table.iloc[top:]
    shown = pd.concat([table.iloc[:top], rest.sum().to_frame(f"{len(rest)} others").T])
    unit, size = second_unit(shown["seconds"].max())
    figure, axes = subplots(figsize=(7.6, 1.2 + 0.3 * len(shown)), layout="constrained")
    left = 0.0
    for phase, color in PHASE_COLORS.items():
        axes.barh(shown.index, shown[phase] / size, 0.7, left=left, color=COLORS[color])
        left = left + shown[phase] / size
    shares = shown["seconds"] / table["seconds"].sum()
    for row, (length, share) in enumerate(zip(left, shares, strict=True)):
        axes.text(length, row, f"  {share:.0%}", va="center")
    axes.set(xlabel=f"its own time in all recorded steps, {unit}", xlim=(0, 1.12 * left.max()))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    figure.legend(*patches(*PHASE_COLORS.items()), loc="outside upper center", ncols=len(PHASE_COLORS))
    said = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    return figure, f"Bars of time by operator, split by phase. Shares of all operators' time: {said}."


def formats_figure() -> tuple[Figure, str]:
    """The fields of each format, bit by bit, and its range beside it."""
    figure, (left, right) = subplots(
        1, 2, figsize=(7.6, 3.1), layout="constrained", sharey=True, width_ratios=(1.35, 1)
    )
    facts = []
    for row, number in enumerate(FORMATS.values()):
        _draw_fields(left, row, number)
        _draw_range(right, row, number)
        facts.append(
            f"{number.name}: {number.exponent_bits} exponent and {number.mantissa_bits} mantissa bits, largest "
            f"{number.largest:.3g}, smallest normal {number.smallest_normal:.2g}, spacing at 1 {number.spacing(1):.2g}"
        )
    left.set(yticks=range(len(FORMATS)), yticklabels=FORMATS, xlim=(0, 32.5), xlabel="bits", ylim=(5.6, -0.6))
    right.set(xlabel="range, as powers of two")
    right.tick_params(left=False)
    left.grid(visible=False)
    right.grid(visible=False, axis="y")
    squares = [Rectangle((0, 0), 1, 1, color=COLORS[color]) for color in BIT_COLORS.values()]
    figure.legend(squares, list(BIT_COLORS), loc="outside upper left", ncols=3)
    return figure, f"Number formats. {'; '.join(facts)}."


def mixed_precision_figure() -> tuple[Figure, str]:
    """One step of mixed precision: what is narrow, what is wide, where the loss scale comes in and goes out."""
    wide, narrow = "parameters", "gradients"
    stations = (
        (0.12, 0.76, "parameters θ\n(master weights)", wide),
        (0.12, 0.22, "copy of θ", narrow),
        (0.37, 0.22, "forward:\nproducts", narrow),
        (0.59, 0.22, "loss × S", wide),
        (0.85, 0.22, "backward: gradients,\nS times as large", narrow),
        (0.85, 0.76, "gradients ÷ S:\nall finite?", wide),
        (0.47, 0.76, "yes: clip, update θ, S may grow\nno: skip the update, halve S", wide),
    )
    figure, axes = subplots(figsize=(7.6, 3.0), layout="constrained")
    boxes = [box(axes, *station, letters="ink") for station in stations]
    for start, end in zip(boxes, [*boxes[1:], boxes[0]], strict=True):
        arrow(axes, start, end)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.axis("off")
    handles = [
        Rectangle((0, 0), 1, 1, facecolor="none", edgecolor=COLORS[color], linewidth=2) for color in (wide, narrow)
    ]
    figure.legend(handles, ["32 bits", "16 bits"], loc="outside upper left", ncols=2)
    return figure, (
        "Cycle of one step. Parameters are kept in 32 bits, the master weights; a 16-bit copy goes through the products of "
        "the forward pass; the loss, in 32 bits, is multiplied by S; the backward pass computes 16-bit gradients that are S "
        "times as large; in 32 bits they are divided by S. If all are finite they are clipped and the parameters updated, and "
        "S may grow; if not, the update is skipped and S is halved."
    )


def exponents_figure(counts: Counter) -> tuple[Figure, str]:
    """How many numbers lie in each power of two, under bars with the ranges of formats."""
    names = ("fp16", "bf16", "fp8 e4m3", "fp8 e5m2")
    total, levels = sum(counts.values()), sorted(counts)
    figure, (top, below) = subplots(
        2, 1, figsize=(7.6, 4.2), layout="constrained", sharex=True, height_ratios=(1.28, 2)
    )
    below.bar([e + 0.5 for e in levels], [100 * counts[e] / total for e in levels], 0.9, color=COLORS["first"])
    below.set(xlabel="size of the gradients, as power of two", ylabel="% of those that are not 0")
    below.set(xlim=(max(levels[0] - 2, -64), max(levels[-1], 18) + 2))
    for row, name in enumerate(names):
        _draw_range(top, row, FORMATS[name])
    top.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.4, -0.6))
    top.grid(visible=False, axis="y")
    top.set_title("Ranges of formats (pale: subnormal numbers, which lose mantissa bits)")
    vanishing = sum(n for e, n in counts.items() if e < -25) / total
    return figure, (
        f"Histogram of {total:,} gradients over powers of two, from 2^{levels[0]} to 2^{levels[-1] + 1}; "
        f"{vanishing:.1%} lie below 2^-25, half of fp16's smallest."
    )


def scale_window_figure(
    gradients: Sequence[torch.Tensor], number: Format, powers: Sequence[int] = range(-8, 41, 2)
) -> tuple[Figure, str]:
    """The shares of gradients that vanish, lose bits and overflow in a format, against the loss scale."""
    losses = [underflow_in(gradients, number, 2.0**power) for power in powers]
    figure, axes = subplots(figsize=(7.6, 3.2), layout="constrained")
    for label, color in (("vanished", "first"), ("subnormal", "third"), ("overflowed", "second")):
        shares = [100 * getattr(loss, label) for loss in losses]
        axes.plot(powers, shares, color=COLORS[color], label=label, marker="o", markersize=3)
    axes.set(xlabel="loss scale S, as power of two", ylabel="% of the gradients that are not 0")
    axes.legend()
    good = [p for p, loss in zip(powers, losses, strict=True) if loss.vanished < 0.01 and loss.overflowed == 0]
    window = f"from 2^{good[0]} to 2^{good[-1]} less than 1 % vanish and none overflows" if good else "no S suits all"
    return figure, (
        f"Shares of the gradients in {number.name} against S. At 2^{powers[0]} {losses[0].vanished:.1%} vanish, at "
        f"2^{powers[-1]} {losses[-1].overflowed:.1%} overflow; {window}."
    )


class NumberPicker(VBox):
    """Its `value` is (format name, bit pattern, the number that was asked for); the pattern is that number, rounded."""

    value = Tuple()

    def __init__(self, name: str = "fp16", number: float = 0.1):
        self.format = Dropdown(options=list(FORMATS), value=name, description="format")
        self.number = FloatText(number, description="number")
        self.power = IntSlider(0, -60, 60, description="times 2 to the power")
        self.bits = Box(layout={"display": "flex", "flex_flow": "row wrap"})
        self._flipped = False
        super().__init__([self.format, self.number, self.power, self.bits])
        for control in (self.format, self.number, self.power):
            control.observe(self._read, names="value")
        self._read()

    @property
    def wanted(self) -> float:
        """The typed number times the slider's power of two."""
        return self.number.value * 2.0**self.power.value

    def flip(self, place: int) -> None:
        """Turn the bit at `place`, counted from the left, and ask for the number that the pattern then is."""
        number = FORMATS[self.format.value]
        pattern = self.value[1] ^ 1 << (number.bits - 1 - place)
        self._flipped = True
        if isfinite(number.value(pattern)):  # else the field keeps the last number that can be typed
            self.number.value, self.power.value = number.value(pattern), 0
        self._flipped = False
        self._show(pattern, number.value(pattern))

    def _read(self, _=None) -> None:
        if not self._flipped:
            self._show(FORMATS[self.format.value].pattern(self.wanted), self.wanted)

    def _show(self, pattern: int, wanted: float) -> None:
        number = FORMATS[self.format.value]
        if len(self.bits.children) != number.bits:
            self.bits.children = [self._button(place) for place in range(number.bits)]
        for place, bit in enumerate(f"{pattern:0{number.bits}b}"):
            button = self.bits.children[place]
            part = list(BIT_COLORS)[(place > 0) + (place > number.exponent_bits)]
            button.description, button.style.button_color = bit, COLORS[BIT_COLORS[part]]
            button.tooltip = f"{part} bit {place + 1}, {bit}: press to flip"
        self.value = (number.name, pattern, wanted)

    def _button(self, place: int) -> Button:
        button = Button(layout={"width": "2.1em", "padding": "0", "margin": "1px"}, style={"text_color": BIT_INK})
        button.on_click(lambda _: self.flip(place))
        return button


def number_figure(number: tuple[str, int, float]) -> tuple[Figure, str]:
    """A number of a format: its bits, its neighbors on the number line, its place in the range.

    `number` is (format name, bit pattern, the number that was asked for).
    """
    name, pattern, asked_for = number
    kind = FORMATS[name]
    value = kind.value(pattern)
    figure, (bits, line, span) = subplots(3, 1, figsize=(7.6, 4.4), layout="constrained", height_ratios=(1, 1.2, 0.9))
    _draw_bits(bits, kind, pattern)
    text = f"{value:.9g} = {in_binary(value)}" if isfinite(value) else f"{value}"
    bits.set_title(f"{name}: {text}")
    if isfinite(value):
        _draw_neighbors(line, kind, value, asked_for)
        error = f", off by {abs(value - asked_for) / abs(asked_for):.2g} of it" if asked_for else ""
        line.set_title(f"{asked_for:.9g} becomes {value:.9g}{error}; spacing here {kind.spacing(value):.3g}")
    else:
        line.set_title(f"{asked_for:.9g} becomes {value}: the largest number is {kind.largest:.5g}")
        line.axis("off")
    _draw_range(span, 0, kind)
    if value and isfinite(value):
        span.plot([log2(abs(value))], [0], "o", color=COLORS["first"], markersize=9)
    span.set(yticks=(), xlim=(-155, 135), ylim=(-0.6, 0.6))
    span.set(xlabel="range of the format, as powers of two (pale: subnormal)")
    span.grid(visible=False, axis="y")
    return figure, (
        f"{name}, pattern {pattern:0{kind.bits}b}: {text}. Asked for {asked_for:.9g}. Spacing "
        f"{kind.spacing(value) if isfinite(value) else inf:.3g}, largest {kind.largest:.5g}, smallest normal "
        f"{kind.smallest_normal:.3g}, smallest above zero {kind.smallest_subnormal:.3g}."
    )


def _draw_fields(axes, row: int, number: Format) -> None:
    left = 0
    for color, width in zip(BIT_COLORS.values(), (1, number.exponent_bits, number.mantissa_bits), strict=True):
        for place in range(left, left + width):
            axes.add_patch(Rectangle((place, row - 0.35), 0.9, 0.7, color=COLORS[color]))
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


def _draw_neighbors(axes, number: Format, value: float, asked_for: float) -> None:
    spacing = number.spacing(value)
    low, high = value - 4.5 * spacing, value + 4.5 * spacing
    marks = [number.nearest(torch.tensor(max(low, -number.largest), dtype=torch.float64)).item()]
    while marks[-1] < min(high, number.largest):
        below = nextafter(abs(marks[-1]), 0) if marks[-1] < 0 else marks[-1]
        marks.append(marks[-1] + number.spacing(below))
    axes.plot(marks, [0] * len(marks), "|", color=COLORS["ink"], markersize=22, label=f"numbers of {number.name}")
    axes.plot([value], [0], "o", color=COLORS["first"], markersize=9, label="the number it is")
    if low <= asked_for <= high:
        axes.plot([asked_for], [0.25], "v", color=COLORS["second"], markersize=9, label="the number asked for")
    axes.set(xlim=(low, high), ylim=(-0.5, 0.6), yticks=())
    axes.ticklabel_format(axis="x", useOffset=False)
    axes.locator_params(axis="x", nbins=5)
    axes.grid(visible=False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=3)
