"""Chapter 08's figures, and the controls to pick a number of a format."""

from collections import Counter
from math import isfinite, log2

import pandas as pd
import torch
from ipywidgets import Box, Button, Dropdown, FloatText, IntSlider, VBox
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from traitlets import Tuple

from course_utils.lessons.c08_mixed_precision import in_binary
from course_utils.precision import FORMATS, Format
from course_utils.training.profile import ELSEWHERE, LOADING, PHASES, Trace
from course_utils.viz.labels import note
from course_utils.viz.parts import draw_arrow, draw_box, draw_cell, hide_axes, patches
from course_utils.viz.plots import Span, add_title, bars, lines, panels, timeline
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
    lanes = {LOADING: trace.spans_of(LOADING)} | {name: phases[phases["name"] == name] for name in PHASES}
    lanes |= {"model computes": trace.computing_spans(), "no operator runs": trace.gaps()}
    styles = {name: (PHASE_COLORS.get(name, "ink"), "") for name in lanes} | {"no operator runs": ("warning", "////")}
    spans = [
        Span(lane, span.start, span.end, name)
        for lane, (name, frame) in enumerate(lanes.items())
        for span in frame.itertuples()
    ]
    return timeline(spans, list(lanes), title, "time since the first recorded step", unit="seconds", styles=styles)


def operator_seconds_figure(table: pd.DataFrame, top: int = 8) -> tuple[Figure, str]:
    """The `top` slowest operators of `Trace.operator_seconds`, each bar split by phase; the rest is one bar."""
    shares = table[list(PHASE_COLORS)] / table["seconds"].sum()
    rest = shares.iloc[top:]
    rows = pd.concat([shares.iloc[:top], rest.sum().to_frame(f"{len(rest)} others").T]).to_dict("index")
    x = "share of all operators' own time"
    return bars(rows, "Time by operator, split by phase", x, unit="%", number=".0%", colors=PHASE_COLORS)


def formats_figure() -> tuple[Figure, str]:
    """The bits of each format by field, and beside them its range."""
    rows, ranges = {}, {}
    for name, fmt in FORMATS.items():
        rows[name] = {"sign": 1, "exponent": fmt.exponent_bits, "mantissa": fmt.mantissa_bits}
        ranges[name] = f"{fmt.smallest_normal:.3g} to {fmt.largest:.3g}"
    title = "Exponent bits buy range, mantissa bits buy precision"
    x = "bits; beside them the smallest normal and the largest number"
    return bars(rows, title, x, unit="", colors=BIT_COLORS, notes=ranges)


def mixed_precision_figure() -> tuple[Figure, str]:
    """The idea: one step of mixed precision, what is narrow in it and what is wide."""
    figure, axes = panels(height=3.6)
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
    boxes = [draw_box(axes, *station, ink="ink") for station in stations]
    for start, end in zip(boxes, [*boxes[1:], boxes[0]], strict=True):
        draw_arrow(axes, start, end)
    hide_axes(axes, ylim=(0.02, 1.04))
    text = "A cycle: parameters in 32 bits, a copy and the forward pass's products in 16, the loss times S in 32, gradients "
    text += "S times as large in 16, divided by S in 32. If all are finite, θ is updated; if not, S is halved."
    return add_title(figure, "Between the loss and the update, S keeps small gradients within fp16's range", text)


def exponents_figure(outputs: Counter, parameters: Counter) -> tuple[Figure, str]:
    """How many gradients of layers' outputs and of parameters lie in each power of two, and where formats make them 0."""
    # What is smaller than half of a format's smallest number is rounded to 0.
    edges = {name: log2(FORMATS[name].smallest_subnormal) - 1 for name in ("fp16", "fp8 e5m2", "fp8 e4m3")}
    data, vanishing = {}, []
    for name, counts in {"gradients of outputs": outputs, "gradients of parameters": parameters}.items():
        data[name] = {power + 0.5: count / counts.total() for power, count in sorted(counts.items())}
        vanishing.append(sum(share for place, share in data[name].items() if place < edges["fp16"]))
    title = "Without a scale, {:.1%} of outputs' gradients vanish in fp16, {:.1%} of parameters'".format(*vanishing)
    x, y = "size of a gradient, as a power of two; left of a format's line it vanishes", "share of gradients"
    return lines(data, title, x, y, unit="%", verticals=edges, labels="legend")


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
    """Play: a number of a format, its bits, its neighbors on the number line, its place in the range.

    `number` is (format name, bit pattern, the number that was asked for).
    """
    name, pattern, request = number
    fmt = FORMATS[name]
    value = fmt.value(pattern)
    figure, (bits, line, span) = panels(3, 1, height=4.4, height_ratios=(1.3, 1.2, 0.8))
    _draw_bits(bits, fmt, pattern)
    if isfinite(value):
        _draw_neighbors(line, fmt, value, request)
        error = f", relative error {abs(value / request - 1):.2g}" if request else ""
        result, detail = f"{value:.9g} = {in_binary(value)}", f"spacing here {fmt.spacing(value):.3g}{error}"
    else:
        result, detail = value, f"no finite number; the largest is {fmt.largest:.5g}"
        line.axis("off")
    line.set_title(detail)
    low, normal, high = (log2(x) for x in (fmt.smallest_subnormal, fmt.smallest_normal, fmt.largest))
    for end, opacity in ((high, 1), (low, 0.35)):
        span.barh(0, end - normal, left=normal, height=0.5, color=COLORS["fourth"], alpha=opacity)
    if value and isfinite(value):
        span.plot([log2(abs(value))], [0], "o", color=COLORS["first"], markersize=9)
    x = "range of the format, as powers of two; subnormal numbers are pale"
    span.set(yticks=(), xlim=(-155, 135), ylim=(-0.6, 0.6), xlabel=x)
    text = f"Pattern {pattern:0{fmt.bits}b}, {detail}. Largest number {fmt.largest:.5g}, smallest normal "
    text += f"{fmt.smallest_normal:.3g}, smallest above zero {fmt.smallest_subnormal:.3g}."
    return add_title(figure, f"{request:.9g} in {name} is {result}", text)


def _draw_bits(axes: Axes, fmt: Format, pattern: int) -> None:
    widths = zip(BIT_COLORS.values(), (1, fmt.exponent_bits, fmt.mantissa_bits), strict=True)
    colors = [color for color, width in widths for _ in range(width)]
    for index, (bit, color) in enumerate(zip(f"{pattern:0{fmt.bits}b}", colors, strict=True)):
        draw_cell(axes, index, -0.35, color, bit, width=0.9, height=0.7)
    sign, exponent, mantissa = fmt.fields(pattern)
    power = max(exponent, 1) - fmt.bias
    caption = f"sign {sign}; exponent field {exponent}, so times 2^{power}; mantissa field {mantissa}"
    axes.text(0, 0.8, caption, va="center", fontsize=9)
    hide_axes(axes, (-0.5, 32.5), (1.2, -1.2))
    axes.legend(*patches(*BIT_COLORS.items()), loc="upper left", ncols=3, borderpad=0, borderaxespad=0)


def _draw_neighbors(axes: Axes, fmt: Format, value: float, request: float) -> None:
    reach = 5 * fmt.spacing(value)
    numbers = fmt.nearest(torch.linspace(value - reach, value + reach, 401, dtype=torch.float64)).unique()
    axes.plot(numbers, 0 * numbers, "|", color=COLORS["ink"], markersize=22)
    axes.plot([value], [0], "o", color=COLORS["first"], markersize=9)
    note(axes, "the number stored", (value, -0.42), (0, 0), color=text_color("first"))
    if abs(request - value) < 0.9 * reach:
        axes.plot([request], [0.3], "v", color=COLORS["second"], markersize=9)
        note(axes, "the number asked for", (request, 0.52), (0, 0), color=text_color("second"))
    axes.set(xlim=(value - 0.9 * reach, value + 0.9 * reach), ylim=(-0.6, 0.7), yticks=())
    axes.set_xlabel(f"numbers of {fmt.name}")
    axes.ticklabel_format(axis="x", useOffset=False)
    axes.locator_params(axis="x", nbins=5)
    axes.grid(visible=False)
