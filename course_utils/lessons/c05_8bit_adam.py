"""Chapter 05: what 8 bits do to an average, and the chapter's figures."""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

from course_utils.hardware import Machine, Work
from course_utils.optim import AdamW, AdamW8bit
from course_utils.optim.codebook import dynamic_codebook, linear_codebook, value_of_bits
from course_utils.optim.quantization import BLOCK, dequantize, nearest, quantize, stochastic
from course_utils.units import format_bytes
from course_utils.viz.parts import box, cell, drawing
from course_utils.viz.plots import add_title, dots, legend, lines, panels
from course_utils.viz.style import BIT_COLORS, COLORS, text_color


class LinearBook(AdamW8bit):
    """v in the linear codebook, m as before."""

    codebook = linear_codebook(signed=False)

    def codebooks(self, device: torch.device):
        """The codebook of m as before, and `codebook` for v."""
        return super().codebooks(device) | {2: self.codebook.to(device)}


class LinearWithoutZero(LinearBook):
    """v in the linear codebook, but the entry 0 is half of the smallest other one."""

    codebook = torch.cat([LinearBook.codebook[1:2] / 2, LinearBook.codebook[1:]])


class DynamicWithoutZero(LinearBook):
    """v in the dynamic codebook, whose entry 0 is half of the smallest other one."""

    codebook = torch.cat([dynamic_codebook(False)[1:2] / 2, dynamic_codebook(False)[1:]])


def rounding_errors(values: torch.Tensor, codebook: torch.Tensor, block_size: int) -> torch.Tensor:
    """|read back − written| / |written| for each value that is not 0, flat; 1 means that the value came back as 0."""
    back = dequantize(*quantize(values, codebook, block_size), codebook, block_size)
    written = values != 0
    return (back - values).abs()[written] / values.abs()[written]


def count_vanished(v: torch.Tensor, block_size: int = BLOCK) -> int:
    """How many values of `v` that are not 0 come back from the dynamic codebook as 0."""
    return int((rounding_errors(v.flatten(), dynamic_codebook(False, device=v.device), block_size) == 1).sum())


def spread_values(decades: float, count: int = 2**14, outliers: float = 0.0) -> torch.Tensor:
    """Squares of normal numbers whose scales are spread evenly (in the logarithm) over `decades` decades.

    A share `outliers` of them is 10⁶ times as large, as v is where a gradient is a thousand times its neighbors'.
    """
    generator = torch.Generator().manual_seed(0)
    scales = 10 ** (-decades * torch.rand(count, generator=generator))
    values = scales * torch.randn(count, generator=generator) ** 2
    return torch.where(torch.rand(count, generator=generator) < outliers, 1e6 * values, values)


class Walk(NamedTuple):
    """Where a parameter ended, its state there, and which of its v were rounded to 0 after some step."""

    end: torch.Tensor
    state: dict
    vanished: torch.Tensor


def walk(make_optimizer: Callable, decades: float, seed: int = 0, steps: int = 30, **options) -> Walk:
    """The way of a 96 × 64 parameter in `steps` of an optimizer at α = 0.001.

    Each element's gradients are normal numbers of a scale of its own; the scales are spread over `decades` decades.
    """
    draw = torch.Generator().manual_seed(seed)
    spread = 10 ** (-decades * torch.rand(96, 64, generator=draw))
    parameter = torch.zeros(96, 64, requires_grad=True)
    optimizer = make_optimizer([parameter], lr=1e-3, weight_decay=0, **options)
    zeros = torch.zeros(96, 64, dtype=torch.bool)
    for _ in range(steps):
        parameter.grad = spread * torch.randn(96, 64, generator=draw)
        optimizer.step()
        state = optimizer.state[parameter]
        codes = state.get("state2")
        if codes is not None and codes.dtype == torch.uint8:
            zeros |= state["qmap2"][codes.int()] == 0
    return Walk(parameter.detach(), state, zeros)


def off_by(make_optimizer: Callable, decades: float, seed: int = 0, **options) -> tuple[float, int, float]:
    """How far from AdamW's end the path of another optimizer ends, as a share of AdamW's way; how many v were 0 after some step.

    The last number is the first one without the parameters of those v.
    """
    right, rounded = walk(AdamW, decades, seed).end, walk(make_optimizer, decades, seed, **options)
    apart, length = rounded.end - right, right.norm()
    rest = apart[~rounded.vanished]
    return (apart.norm() / length).item(), int(rounded.vanished.sum()), (rest.norm() / length).item()


def single_parameter(shape: Sequence[int]) -> Callable[[], nn.ParameterList]:
    """A function that makes a module of one parameter of this shape, for `training.model_with_gradients`."""
    return lambda: nn.ParameterList([nn.Parameter(torch.zeros(shape))])


LIBRARY_UPDATE = {
    "read back m": (5, 4),
    "read back v": (5, 4),
    "scale g": (8, 4),
    "m ← β₁m + (1 − β₁)g": (20, 0),
    "v ← β₂v + (1 − β₂)g²": (20, 0),
    "√v, correction, ε": (24, 8),
    "decay, step": (24, 0),
    "quantize m": (7, 1),
    "quantize v": (7, 1),
}
"""What bitsandbytes 0.50 does on a CPU (`backends/cpu/ops.py`): bytes read or written for each value, and those in new memory."""


def library_seconds(machine: Machine, elements: int) -> float:
    """Seconds of `LIBRARY_UPDATE` on so many values, at the machine's rates of memory."""
    works = (
        Work("pointwise", bytes=moved * elements, new=new * elements, elements=elements, reach=moved * elements)
        for moved, new in LIBRARY_UPDATE.values()
    )
    return sum(map(machine.seconds, works))


def feed_average(
    start: float, target: float, steps: int, beta: float, rounding: Callable | None, copies: int = 1
) -> torch.Tensor:
    """An average that starts at `start` and is fed `target`: its mean over `copies` after each of `steps` steps (steps,).

    It shares a block with an average that stays at 1, and is kept in the unsigned dynamic book: `rounding(values, codebook)`
    returns codes. With None it is kept as it is.
    """
    codebook = dynamic_codebook(False)
    average = torch.full((copies,), start)
    means = []
    for _ in range(steps):
        average = beta * average + (1 - beta) * target
        if rounding is not None:
            average = codebook[rounding(average, codebook).long()]
        means.append(average.mean())
    return torch.stack(means)


def half_spacing(value: float) -> float:
    """Half the distance of the two entries of the unsigned dynamic book around `value`, relative to `value`."""
    codebook = dynamic_codebook(False)
    upper = torch.searchsorted(codebook, torch.tensor(value)).clamp(1, 255)
    return ((codebook[upper] - codebook[upper - 1]) / 2 / value).item()


def journey_figure(values: Sequence[float] = (0.8, -0.2, 0.01, 2e-7)) -> tuple[Figure, str]:
    """A block of m on its way into bytes and back, a row for each value."""
    codebook = dynamic_codebook(True)
    codes, scale = quantize(torch.tensor(values), codebook, len(values))
    back = dequantize(codes, scale, codebook, len(values))
    scale = scale.item()
    heads = ("a block of m", f"÷ {scale:g}", "nearest entry", "code: 1 byte", "read back", "off by")
    places = (0.07, 0.25, 0.44, 0.62, 0.79, 0.94)
    figure, axes = panels(height=0.42 * len(values) + 1.5)
    middle = {"ha": "center", "va": "center"}
    journeys = []
    for row, (value, code, read) in enumerate(zip(values, codes.tolist(), back.tolist(), strict=True)):
        error = abs(read - value) / abs(value)
        texts = [*map(_write, (value, value / scale, codebook[code].item())), "", _write(read), f"{error:.1%}"]
        colors = ["ink"] * 5 + ["warning" if error > 0.5 else "ink"]
        for place, text, color in zip(places, texts, colors, strict=True):
            axes.text(place, -row, text, color=text_color(color), **middle)
        box(axes, places[3], -row, str(code), "optimizer state", "ink")
        journeys.append(f"{_write(value)} is kept as {code} and read back as {_write(read)}")
    for place, head in zip(places, heads, strict=True):
        axes.text(place, 0.85, head, fontsize=9.5, fontweight="bold", **middle)
    box(axes, places[3], -len(values) - 0.05, f"scale {scale:g}: 4 bytes", "optimizer state", "ink")
    axes.text(0.5, -len(values) - 0.05, "kept for the block  ", ha="right", va="center")
    drawing(axes, ylim=(-len(values) - 0.6, 1.2))
    title = f"{len(values)} values are kept as {len(values)} bytes and one scale; the smallest is lost"
    return add_title(figure, title, f"A block of {len(values)} values with the scale {scale:g}: {'; '.join(journeys)}.")


def _write(value: float) -> str:
    return np.format_float_positional(value, precision=3, fractional=False, trim="-").replace("-", "−")


def _power(value: float) -> str:
    digit, power = f"{value:.0e}".split("e")
    return f"{digit}·10{str(int(power)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def byte_figure(bits: str) -> tuple[Figure, str]:
    """One byte read in the book of m, which has a sign, and in that of v, which has none; a color for each part."""
    figure, axes = panels(height=3.3)
    readings = []
    for row, signed in enumerate((True, False)):
        y = -2.2 * row
        first = int(signed)
        zeros = len(bits[first:]) - len(bits[first:].lstrip("0"))
        rest = bits[first + zeros + 1 :]
        value = value_of_bits(bits, signed)
        steps, step = 2 ** len(rest), int(rest, 2)
        middle = 0.1 + 0.9 * (step + 0.5) / steps
        parts = [
            (BIT_COLORS["sign"], 1, f"sign {'−' if bits[0] == '1' else '+'}"),
            (BIT_COLORS["exponent"], zeros, f"{zeros} zeros:\n× $10^{{-{zeros}}}$"),
            ("grid", 1, "end of\nzeros"),
            (BIT_COLORS["mantissa"], len(rest), f"step {step} of {steps}\nfrom 0.1 to 1: {middle:.4f}"),
        ][1 - first :]
        edge = 0
        for color, width, text in parts:
            for place in range(edge, edge + width):
                cell(axes, place + 0.05, y, color, bits[place])
            axes.text(edge + width / 2, y - 0.12, text, ha="center", va="top", fontsize=8.5)
            edge += width
        name = "m" if signed else "v"
        axes.text(-0.3, y + 0.45, f"in the book of {name}", ha="right", va="center")
        axes.text(edge + 0.3, y + 0.45, f"= {value:{'+' * signed}.4g}", va="center", fontsize=12)
        readings.append(f"in the book of {name}, {zeros} zeros, a 1 and step {step} of {steps} make it {value:.4g}")
    drawing(axes, xlim=(-3.4, 11.4), ylim=(-3.2, 1.2))
    title = "Zeros say how many powers of ten down, the rest counts steps"
    return add_title(figure, title, f"The byte {bits}: {'; '.join(readings)}.")


def codebooks_figure() -> tuple[Figure, str]:
    """Linear beside dynamic unsigned book: where their entries lie, and the relative error of rounding to them."""
    books = {"linear": linear_codebook(False), "dynamic": dynamic_codebook(False)}
    values = torch.logspace(-7, 0, 20_000)
    figure, (top, below) = panels(2, 1, height=4.6, sharex=True, height_ratios=(1, 2))
    ends, lost, errors = [], {}, {}
    for row, (name, codebook), color in zip((1, 0), books.items(), ("second", "first"), strict=True):
        _draw_entries(top, codebook, row, color)
        error = rounding_errors(values, codebook, len(values))
        errors[name] = zip(values.view(200, 100)[:, 50], error.view(200, 100).amax(1), strict=True)
        lost[name] = values[error > 0.5].max().item()
        decades = [(codebook > 10.0**-d).sum() - (codebook > 10.0 ** (1 - d)).sum() for d in (1, 2, 3)]
        counts = ", ".join(str(int(count)) for count in decades)
        ends.append(
            f"the {name} book has {counts} entries in the three uppermost decades and loses more than half of a value "
            f"below {lost[name]:.2g}"
        )
    top.set(yticks=(1, 0), yticklabels=books, ylim=(-0.6, 1.6), title="Where the 256 entries lie")
    styles = {"linear": ("second", "-"), "dynamic": ("first", "-")}
    title, x = "Error of the nearest entry; 1: the value becomes 0", "value / largest of its block"
    lines(errors, title, x, "largest relative error", log="xy", styles=styles, labels="none", axes=below)
    below.set_ylim(1e-3, 2)
    for name, x, y in (("linear", 0.012, 0.2), ("dynamic", 8e-5, 0.3)):
        below.text(x, y, name, color=text_color(styles[name][0]), va="bottom")
    title = f"Off by more than half below {lost['linear']:.2g} in the linear book, below {_power(lost['dynamic'])} in the dynamic"
    return add_title(figure, title, f"Entries on a logarithmic axis and the relative error below: {'; '.join(ends)}.")


def blocks_figure(values: torch.Tensor) -> tuple[Figure, str]:
    """Median relative error of `values` in the dynamic book, by size of the block, with one outlier and without.

    The outlier is one value, 10⁶ times the largest. The last row is one scale for the whole tensor.
    """
    with_outlier = values.clone().flatten()
    with_outlier[0] = 1e6 * values.max()
    rows = {"blocks of 256": 256, "blocks of 2,048": 2048, "one scale for all": values.numel()}

    def error(tensor: torch.Tensor, size: int) -> list[float]:
        return [rounding_errors(tensor, dynamic_codebook(False), size).median().item()]

    data = {
        name: {"no outlier": error(values.flatten(), size), "with one outlier": error(with_outlier, size)}
        for name, size in rows.items()
    }
    title, x = "With one scale for all, one outlier spoils the median", "median relative error of v"
    figure, alt = dots(data, title, x, unit="%", log=True, number=".2%", axes=panels(height=2.8)[1])
    for text in figure.axes[0].texts:
        text.set_zorder(1)  # below the marks
    figure.axes[0].xaxis.set_major_formatter("{x:g}")
    figure.axes[0].lines[1].set_markersize(9)
    figure.axes[0].set_ylim(2.6, -0.7)
    return figure, alt


def stagnation_figure(steps: int = 3000) -> tuple[Figure, str]:
    """Averages whose input has changed, kept in 32 bits, in 8 rounded to the nearest entry, and stochastically."""
    cases = {"g² has fallen to 0.01": (0.25, 0.01), "g² has risen to 1": (0.11, 1.0)}
    beta = 0.999
    generator = torch.Generator().manual_seed(0)

    def by_chance(values: torch.Tensor, codebook: torch.Tensor):
        return stochastic(values, codebook, generator)

    figure, grid = panels(1, len(cases), height=3.8, squeeze=False)
    texts = [f"With β₂ = {beta:g}."]
    colors = ("predicted", "second", "activations", "first")
    for panel, (title, (start, target)) in zip(grid[0], cases.items(), strict=True):
        curves = {
            "32 bits": feed_average(start, target, steps, beta, None),
            "8 bits, nearest": feed_average(start, target, steps, beta, nearest),
            "stochastic, one run": feed_average(start, target, steps, beta, by_chance),
            "stochastic, mean of 200 runs": feed_average(start, target, steps, beta, by_chance, copies=200),
        }
        ratio = sqrt(curves["32 bits"][-1] / curves["8 bits, nearest"][-1])
        step = f"steps too {'long' if ratio > 1 else 'short'} by a factor of {max(ratio, 1 / ratio):.1f}"
        styles = {name: (color, "-") for name, color in zip(curves, colors, strict=True)}
        data = {name: enumerate(curve, 1) for name, curve in curves.items()}
        title = f"{title}:\nin the end {step}"
        y = "v / largest of its block"
        texts.append(lines(data, title, y=y, styles=styles, labels="none", number=".3f", axes=panel)[1])
        panel.lines[0].set_linewidth(5)
        panel.lines[2].set_linewidth(1)
    legend(panel)
    return add_title(figure, "Rounded to the nearest entry, v freezes: too high or too low", *texts)


def codebook_figure(
    kind: str = "dynamic", total_bits: int = 8, exponent_bits: int = 7, block_size: int = 256
) -> tuple[Figure, str]:
    """A codebook of v, and what comes back of values spread over six decades, some of them outliers."""
    codebook = linear_codebook(False, total_bits)
    if kind == "dynamic":
        codebook = dynamic_codebook(False, total_bits, exponent_bits)
    values = spread_values(decades=6, outliers=1 / 1024)
    error = rounding_errors(values, codebook, block_size)
    lost = (error > 0.5).float().mean().item()
    scales = quantize(values, codebook, block_size)[1]
    bits = total_bits + 32 * len(scales) / values.numel()
    figure, (top, below) = panels(2, 1, height=4.6, height_ratios=(1, 4))
    _draw_entries(top, codebook, 0, "first")
    top.set(xscale="log", xlim=(3e-8, 1.5), yticks=(), xlabel="entry of the codebook (logarithmic)")
    _draw_shares(below, values, error)
    title = f"{kind}, blocks of {block_size:,}: {bits:.2f} bits a value, and {lost:.1%} lose more than half"
    about = f"{len(codebook)} entries. Of {format_bytes(values.nbytes)} of values over six decades"
    return add_title(figure, title, f"{about} the median relative error is {error.median():.1%}.")


def _draw_shares(axes: Axes, values: torch.Tensor, error: torch.Tensor) -> None:
    """A bar for each decade of `values`: how many lose up to a tenth, up to a half, and more."""
    decades = list(range(-8, 1))
    groups = values.log10().floor().clamp(decades[0], decades[-1])
    bottom = np.zeros(len(decades))
    limits = (
        ("lose up to 10 %", -1, 0.1, "first"),
        ("10 to 50 %", 0.1, 0.5, "activations"),
        ("more than 50 %", 0.5, 9, "second"),
    )
    for label, low, high, color in limits:
        inside = (error > low) & (error <= high)
        share = np.array([(inside & (groups == decade)).sum() / max(1, (groups == decade).sum()) for decade in decades])
        axes.bar(decades, share, 0.85, bottom=bottom, color=COLORS[color], label=label)
        bottom += share
    axes.set_xticks(decades, ["less", *(f"$10^{{{decade}}}$" for decade in decades[1:-1]), "≥ 1"])
    axes.set(xlabel="value, by the lower edge of its decade", ylabel="share of the values", ylim=(0, 1))
    axes.grid(visible=False)
    legend(axes)


def _draw_entries(axes: Axes, codebook: torch.Tensor, row: int, color: str) -> None:
    entries = codebook[codebook > 0]
    mark_style = {"color": COLORS[color], "markersize": 16, "markeredgewidth": 0.8}
    axes.plot(entries, torch.full_like(entries, row), "|", **mark_style)
    axes.grid(visible=False)
