"""Chapter 08's figures, and the controls to pick a number of a format."""

from collections import Counter
from collections.abc import Sequence
from math import inf, isfinite, log2, nextafter

import pandas as pd
import torch
from ipywidgets import Box, Button, Dropdown, FloatText, IntSlider, VBox
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from traitlets import Tuple

from course_utils.lessons.c08_mixed_precision import in_binary, underflow_in
from course_utils.precision import FORMATS, Format
from course_utils.training.profile import ELSEWHERE, LOADING, PHASES, Trace
from course_utils.units import format_seconds
from course_utils.viz.parts import arrow, box, cell, drawing
from course_utils.viz.plots import Span, add_title, bars, dots, lines, panels, timeline
from course_utils.viz.style import BIT_COLORS, BIT_INK, COLORS, text_color

PHASE_COLORS = {
    LOADING: "inputs",
    "forward": "activations",
    "backward": "gradients",
    "update": "optimizer state",
    ELSEWHERE: "not attributed",
}


def trace_figure(trace: Trace, title: str = "") -> tuple[Figure, str]:
    """What ran when: a lane each for the data loader, the phases and the model's operators, and one for their gaps."""
    phases = trace.spans_of("phase")
    gaps = trace.gaps()
    lanes = {LOADING: trace.spans_of(LOADING)} | {name: phases[phases["name"] == name] for name in PHASES}
    lanes |= {"model computes": trace.computing_spans(), "no operator runs": gaps}
    styles = {name: (PHASE_COLORS.get(name, "ink"), "") for name in lanes} | {"no operator runs": ("warning", "////")}
    spans = [
        Span(lane, span.start, span.end, name)
        for lane, (name, frame) in enumerate(lanes.items())
        for span in frame.itertuples()
    ]
    x = "time since the first recorded step"
    figure, alt = timeline(spans, list(lanes), title, x, unit="seconds", styles=styles)
    lengths = "; ".join(f"{format_seconds(gap.seconds)} ({gap.where})" for gap in gaps.itertuples())
    steps = f"{len(trace.spans_of('step'))} steps in {format_seconds(trace.end)}"
    return figure, f"{alt} {steps}; gaps in which no operator of the model ran: {lengths or 'none'}."


def operator_seconds_figure(table: pd.DataFrame, top: int = 8) -> tuple[Figure, str]:
    """The `top` slowest operators of `Trace.operator_seconds`, each bar split by phase; the rest is one bar."""
    rest = table.iloc[top:]
    slowest = pd.concat([table.iloc[:top], rest.sum().to_frame(f"{len(rest)} others").T])
    shares = {name: f"{share:.0%}" for name, share in (slowest["seconds"] / table["seconds"].sum()).items()}
    rows = slowest[list(PHASE_COLORS)].to_dict("index")
    x = "its own time in all recorded steps"
    figure, alt = bars(rows, "", x, unit="seconds", colors=PHASE_COLORS, notes=shares)
    percentages = ", ".join(f"{name} {share}" for name, share in shares.items())
    return figure, f"Bars of time by operator, split by phase. {alt} Shares of all operators' time: {percentages}."


def formats_figure() -> tuple[Figure, str]:
    """The fields of each format, bit by bit, and its range beside it."""
    figure, (left, right) = panels(1, 2, height=3.5, sharey=True, width_ratios=(1.35, 1))
    facts = []
    for row, fmt in enumerate(FORMATS.values()):
        _draw_fields(left, row, fmt)
        _draw_range(right, row, fmt)
        facts.append(
            f"{fmt.name}: {fmt.exponent_bits} exponent and {fmt.mantissa_bits} mantissa bits, largest "
            f"{fmt.largest:.3g}, smallest normal {fmt.smallest_normal:.2g}, spacing at 1 {fmt.spacing(1):.2g}"
        )
    _name_fields(left, FORMATS["fp32"], -0.75, 0.56)
    last = len(FORMATS) - 0.5
    left.set(yticks=range(len(FORMATS)), yticklabels=FORMATS, xlim=(0, 32.5), xlabel="bits", ylim=(last, -1.3))
    right.text(24, last - 1.5, "subnormal\nnumbers are pale", va="center", fontsize=8)
    right.set(xlabel="range, as powers of two", xlim=(-158, 138))
    right.tick_params(left=False)
    left.grid(visible=False)
    right.grid(visible=False, axis="y")
    return add_title(figure, "Exponent bits buy range, mantissa bits buy precision", f"{'; '.join(facts)}.")


def mixed_precision_figure() -> tuple[Figure, str]:
    """One step of mixed precision: what is narrow, what is wide; below, what the loss scale does to a small gradient."""
    figure, (axes, line) = panels(2, 1, height=4.6, height_ratios=(2.4, 1))
    wide, narrow = "parameters", "gradients"
    stations = (
        (0.20, 0.76, "parameters θ\n(master weights)", wide),
        (0.20, 0.24, "copy of θ", narrow),
        (0.41, 0.24, "forward:\nproducts", narrow),
        (0.59, 0.62, "loss × S", wide),
        (0.80, 0.24, "backward: gradients,\nS times as large", narrow),
        (0.84, 0.76, "gradients ÷ S:\nall finite?", wide),
        (0.50, 0.90, "yes: update θ; S may grow\nno: skip the update, halve S", wide),
    )
    for low, high, color, name in ((0.48, 1.02, wide, "32 bits"), (0.04, 0.44, narrow, "16 bits")):
        axes.axhspan(low, high, color=COLORS[color], alpha=0.1, linewidth=0)
        axes.text(0.01, (low + high) / 2, name, va="center", color=text_color(color), fontsize=11, fontweight="bold")
    boxes = [box(axes, *station, ink="ink") for station in stations]
    for start, end in zip(boxes, [*boxes[1:], boxes[0]], strict=True):
        arrow(axes, start, end)
    drawing(axes, ylim=(0.02, 1.04))
    _draw_rescue(line)
    add_title(figure, "Between the loss and the update, S keeps small gradients within fp16's range")
    return figure, (
        "Cycle of one step. Parameters are kept in 32 bits, the master weights; a 16-bit copy goes through the products of "
        "the forward pass; the loss, in 32 bits, is multiplied by S; the backward pass computes 16-bit gradients that are S "
        "times as large; in 32 bits they are divided by S. If all are finite the parameters are updated, and S may "
        "grow; if not, the update is skipped and S is halved. Below, fp16's range from 2^-24 to 2^16: a gradient of "
        "2^-28 lies left of it and becomes 0; times S = 2^16 it is 2^-12 and lies inside."
    )


def _draw_rescue(axes: Axes) -> None:
    """fp16's range on a line of powers of two, a gradient below it, and where the loss scale takes it."""
    _draw_range(axes, 0, FORMATS["fp16"])
    axes.plot([-28, -12], [0, 0], "o", color=COLORS["warning"])
    axes.annotate("", (-12, 0.1), (-28, 0.1), arrowprops={"arrowstyle": "-|>", "connectionstyle": "arc3,rad=-0.3"})
    texts = (-20, 0.95, "× S = 2¹⁶"), (-28, -0.65, "a gradient 2⁻²⁸\nbecomes 0"), (-12, -0.65, "2⁻¹²\nis kept")
    for x, y, text in texts:
        axes.text(x, y, text, ha="center", va="center", fontsize=9)
    x = "size of a gradient, as a power of two; bar: range of fp16, subnormal numbers pale"
    axes.set(xlim=(-34, 18), ylim=(-1, 1.2), yticks=(), xlabel=x)


def exponents_figure(outputs: Counter, parameters: Counter) -> tuple[Figure, str]:
    """How many gradients of layers' outputs and of parameters lie in each power of two, under the ranges of formats."""
    names = ("fp16", "bf16", "fp8 e5m2", "fp8 e4m3")
    edge = log2(FORMATS["fp16"].smallest_subnormal) - 1  # what is smaller than half of the smallest is rounded to 0
    figure, (top, *histograms) = panels(3, 1, height=5.2, sharex=True, height_ratios=(1.1, 1.5, 1.5))
    vanishing, tails = [], []
    for axes, counts, name in zip(histograms, (outputs, parameters), ("outputs", "parameters"), strict=True):
        total = sum(counts.values())
        share = _percent(sum(n for e, n in counts.items() if e < edge) / total)
        colors = [COLORS["warning" if e < edge else "first"] for e in counts]
        axes.bar([e + 0.5 for e in counts], [100 * n / total for n in counts.values()], 0.9, color=colors)
        axes.set(ylabel="% of them", title=f"gradients of {name}: {share} vanish")
        vanishing.append(share)
        tails.append(f"of {total:,} gradients of {name} {share} lie below 2^{edge:.0f}")
    for row, name in enumerate(names):
        _draw_range(top, row, FORMATS[name])
    for axes in (top, *histograms):
        axes.axvline(edge, color=COLORS["ink"], linestyle="--")
    top.set(yticks=range(len(names)), yticklabels=names, title="ranges; subnormal numbers are pale")
    x = "size of a gradient, as a power of two; dashed: half of fp16's smallest"
    histograms[1].set(xlabel=x, xlim=(max(min(outputs | parameters) - 2, -52), 20))
    title = f"Without a scale, {vanishing[0]} of the outputs' gradients vanish in fp16, and {vanishing[1]} of the parameters'"
    return add_title(figure, title, f"Histograms over powers of two: {'; '.join(tails)}, half of fp16's smallest.")


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.095 or share == 0 else f"{share:.2%}"


def scale_window_figure(
    gradients: Sequence[torch.Tensor], fmt: Format, powers: Sequence[int] = range(-8, 41, 2)
) -> tuple[Figure, str]:
    """The shares of gradients that vanish, lose bits and overflow in a format, against the loss scale."""
    losses = [underflow_in(gradients, fmt, 2.0**power) for power in powers]
    kinds = {"vanished": "vanish", "subnormal": "lose bits", "overflowed": "overflow"}
    styles = {name: (color, ".-") for name, color in zip(kinds.values(), ("warning", "fourth", "ink"), strict=True)}
    data = {
        label: {power: getattr(loss, name) for power, loss in zip(powers, losses, strict=True)}
        for name, label in kinds.items()
    }
    good = [p for p, loss in zip(powers, losses, strict=True) if loss.vanished < 0.01 and loss.overflowed == 0]
    title = f"No scale suits all in {fmt.name}"
    if good:
        title = f"From S = 2^{good[0]} to 2^{good[-1]} less than 1 % vanish in {fmt.name}, and none overflows"
    x, y = "loss scale S, as a power of two", "all gradients that are not 0"
    figure, alt = lines(data, title, x, y, unit="%", styles=styles, labels="legend")
    if good:
        figure.axes[0].axvspan(good[0], good[-1], color=COLORS["third"], alpha=0.15, linewidth=0)
    return figure, alt


def speed_figure(times: pd.DataFrame) -> tuple[Figure, str]:
    """How many times as fast as in float32 each call is in the narrow types, measured and predicted.

    `times` has a row for each call and type, such as ("product", "bfloat16"), and the columns "predicted" and "measured".
    """
    calls, (wide, *narrow) = (list(dict.fromkeys(times.index.get_level_values(level))) for level in (0, 1))
    speed = {(call, dtype): times.loc[(call, wide)] / times.loc[(call, dtype)] for dtype in narrow for call in calls}
    sources = "measured", "predicted"
    rows = {"{} in {}".format(*key): {source: [speeds[source]] for source in sources} for key, speeds in speed.items()}
    figure, axes = panels(height=1.2 + 0.5 * len(rows))
    x = "speed as a multiple of float32's, logarithmic axis"
    _, alt = dots(rows, x=x, log=True, number=".2g", axes=axes)
    axes.axvline(1, color=COLORS["ink"], linestyle="--")
    return add_title(figure, _speed_conclusion(speed, calls, narrow), alt)


def _speed_conclusion(speed: dict, calls: Sequence[str], narrow: Sequence[str]) -> str:
    """The calls that are faster in every narrow type, and how many times as fast the others are in each."""
    faster = [call for call in calls if all(speed[call, dtype]["measured"] > 1.1 for dtype in narrow)]
    title = f"{' and '.join(faster).capitalize()}: faster in both" if faster else "No call is faster in both types"
    for call in (call for call in calls if call not in faster):
        times = ", ".join(f"{_say_speed(speed[call, dtype]['measured'])} in {dtype}" for dtype in narrow)
        title += f". {call.capitalize()}: {times}"
    return title


def _say_speed(multiple: float) -> str:
    return f"{multiple:.2g} × as fast" if multiple >= 1 else f"{1 / multiple:.2g} × slower"


def outlier_figure(errors: pd.DataFrame) -> tuple[Figure, str]:
    """The error of a product's other rows against one value of a factor, which grows; a line for each quantizer.

    `errors` has a row for each size of that value, as a multiple of the largest of the others, and a column for each quantizer.
    """
    x, y = "one value of x, as a multiple of the largest other one, logarithmic axis", "error of the other rows"
    figure, alt = lines(dict(errors.items()), "", x, y, unit="%", log="x")
    worst, best = (errors.iloc[-1].filter(like=part).max() for part in ("one scale", "block"))
    title = f"One large value: errors up to {worst:.0%} with one scale per tensor, up to {best:.1%} with blocks"
    return add_title(figure, title, alt)


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
    def request(self) -> float:
        """The typed number times the slider's power of two."""
        return self.number.value * 2.0**self.power.value

    def flip(self, index: int) -> None:
        """Turn the bit at `index`, counted from the left, and ask for the number that the pattern then is."""
        fmt = FORMATS[self.format.value]
        pattern = self.value[1] ^ 1 << (fmt.bits - 1 - index)
        self._flipped = True
        if isfinite(fmt.value(pattern)):  # else the field keeps the last number that can be typed
            self.number.value = fmt.value(pattern)
            self.power.value = 0
        self._flipped = False
        self._show(pattern, fmt.value(pattern))

    def _read(self, _: dict | None = None) -> None:
        if not self._flipped:
            self._show(FORMATS[self.format.value].pattern(self.request), self.request)

    def _show(self, pattern: int, request: float) -> None:
        fmt = FORMATS[self.format.value]
        if len(self.bits.children) != fmt.bits:
            self.bits.children = [self._button(index) for index in range(fmt.bits)]
        for index, bit in enumerate(f"{pattern:0{fmt.bits}b}"):
            button = self.bits.children[index]
            part = list(BIT_COLORS)[(index > 0) + (index > fmt.exponent_bits)]
            button.description = bit
            button.style.button_color = COLORS[BIT_COLORS[part]]
            button.tooltip = f"{part} bit {index + 1}, {bit}: press to flip"
        self.value = (fmt.name, pattern, request)

    def _button(self, index: int) -> Button:
        button = Button(layout={"width": "2.1em", "padding": "0", "margin": "1px"}, style={"text_color": BIT_INK})
        button.on_click(lambda _: self.flip(index))
        return button


def number_figure(number: tuple[str, int, float]) -> tuple[Figure, str]:
    """A number of a format: its bits, its neighbors on the number line, its place in the range.

    `number` is (format name, bit pattern, the number that was asked for).
    """
    name, pattern, request = number
    fmt = FORMATS[name]
    value = fmt.value(pattern)
    figure, (bits, line, span) = panels(3, 1, height=4.4, height_ratios=(1.3, 1.2, 0.8))
    _draw_bits(bits, fmt, pattern)
    text = f"{value:.9g} = {in_binary(value)}" if isfinite(value) else f"{value}"
    bits.set_title(f"{name}: {text}")
    if isfinite(value):
        _draw_neighbors(line, fmt, value, request)
        error = f", relative error {abs(value - request) / abs(request):.2g}" if request else ""
        line.set_title(f"{request:.9g} becomes {value:.9g}{error}; spacing here {fmt.spacing(value):.3g}")
    else:
        line.set_title(f"{request:.9g} becomes {value}: the largest number is {fmt.largest:.5g}")
        line.axis("off")
    _draw_range(span, 0, fmt)
    if value and isfinite(value):
        span.plot([log2(abs(value))], [0], "o", color=COLORS["first"], markersize=9)
    x = "range of the format, as powers of two; subnormal numbers are pale"
    span.set(yticks=(), xlim=(-155, 135), ylim=(-0.6, 0.6), xlabel=x)
    return figure, (
        f"{name}, pattern {pattern:0{fmt.bits}b}: {text}. Asked for {request:.9g}. Spacing "
        f"{fmt.spacing(value) if isfinite(value) else inf:.3g}, largest {fmt.largest:.5g}, smallest normal "
        f"{fmt.smallest_normal:.3g}, smallest above zero {fmt.smallest_subnormal:.3g}."
    )


def _draw_fields(axes: Axes, row: int, fmt: Format) -> None:
    left = 0
    for color, width in zip(BIT_COLORS.values(), _widths(fmt), strict=True):
        for index in range(left, left + width):
            cell(axes, index, row - 0.35, color, width=0.9, height=0.7)
        left += width


def _name_fields(axes: Axes, fmt: Format, y: float, letter: float) -> None:
    """The names of the fields of `fmt` above its bits, side by side; a letter is about `letter` bits wide."""
    left = end = 0.0
    for name, width in zip(BIT_COLORS, _widths(fmt), strict=True):
        start = max(left, end)
        axes.text(start, y, name, va="center", fontsize=9)
        end = start + letter * (len(name) + 1)
        left += width


def _widths(fmt: Format) -> tuple[int, int, int]:
    return 1, fmt.exponent_bits, fmt.mantissa_bits


def _draw_range(axes: Axes, row: int, fmt: Format) -> None:
    """A bar from the smallest normal to the largest number, and a pale one for the subnormal numbers below."""
    low, normal, high = (log2(x) for x in (fmt.smallest_subnormal, fmt.smallest_normal, fmt.largest))
    axes.barh(row, high - normal, left=normal, height=0.5, color=COLORS["fourth"])
    axes.barh(row, normal - low, left=low, height=0.5, color=COLORS["fourth"], alpha=0.35)


def _draw_bits(axes: Axes, fmt: Format, pattern: int) -> None:
    _draw_fields(axes, 0, fmt)
    for index, bit in enumerate(f"{pattern:0{fmt.bits}b}"):
        axes.text(index + 0.45, 0, bit, ha="center", va="center", color=BIT_INK, fontsize=10)
    sign, exponent, mantissa = fmt.fields(pattern)
    power = max(exponent, 1) - fmt.bias
    _name_fields(axes, fmt, -0.75, 0.33)
    caption = f"sign {sign}; exponent field {exponent}, so times 2^{power}; mantissa field {mantissa}"
    axes.text(0, 0.8, caption, va="center", fontsize=9)
    drawing(axes, (-0.5, 32.5), (1.2, -1.2))


def _draw_neighbors(axes: Axes, fmt: Format, value: float, request: float) -> None:
    spacing = fmt.spacing(value)
    low, high = value - 4.5 * spacing, value + 4.5 * spacing
    marks = [fmt.nearest(torch.tensor(max(low, -fmt.largest), dtype=torch.float64)).item()]
    while marks[-1] < min(high, fmt.largest):
        below = nextafter(abs(marks[-1]), 0) if marks[-1] < 0 else marks[-1]
        marks.append(marks[-1] + fmt.spacing(below))
    axes.plot(marks, [0] * len(marks), "|", color=COLORS["ink"], markersize=22)
    axes.plot([value], [0], "o", color=COLORS["first"], markersize=9)
    axes.text(value, -0.42, "the number stored", ha="center", va="center", color=text_color("first"))
    if low <= request <= high:
        axes.plot([request], [0.3], "v", color=COLORS["second"], markersize=9)
        axes.text(request, 0.52, "the number asked for", ha="center", va="center", color=text_color("second"))
    axes.set(xlim=(low, high), ylim=(-0.6, 0.7), yticks=(), xlabel=f"numbers of {fmt.name}")
    axes.ticklabel_format(axis="x", useOffset=False)
    axes.locator_params(axis="x", nbins=5)
    axes.grid(visible=False)
