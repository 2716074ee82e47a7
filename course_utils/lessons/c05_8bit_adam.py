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
from course_utils.viz.plots import add_title, bars, dots, legend, lines, panels
from course_utils.viz.style import BIT_COLORS, COLORS, SERIES


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
    nonzero = values != 0
    return (back - values).abs()[nonzero] / values.abs()[nonzero]


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
    """Train a 96 × 64 parameter for `steps` updates of an optimizer at α = 0.001.

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
    """The distance between the ends of another optimizer's path and AdamW's, relative to AdamW's displacement.

    With it, how many v were 0 after some step, and the distance without the parameters of those v.
    """
    right = walk(AdamW, decades, seed).end
    rounded = walk(make_optimizer, decades, seed, **options)
    differences = (rounded.end - right) / right.norm()
    others = differences[~rounded.vanished]
    return differences.norm().item(), int(rounded.vanished.sum()), others.norm().item()


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
        Work("pointwise", bytes=size * elements, new=new * elements, elements=elements, reach=size * elements)
        for size, new in LIBRARY_UPDATE.values()
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
    rows, journeys = [heads], []
    for value, code, read in zip(values, codes.tolist(), back.tolist(), strict=True):
        numbers = map(_write, (value, value / scale, codebook[code].item()))
        rows.append([*numbers, str(code), _write(read), f"{abs(read - value) / abs(value):.1%}"])
        journeys.append(f"{_write(value)} is kept as {code} and read back as {_write(read)}")
    figure, axes = panels(height=0.42 * len(values) + 1.5)
    for y, texts in enumerate(rows):
        for x, text in enumerate(texts):
            if x == 3 and y > 0:
                box(axes, x, y, text, "optimizer state", "ink")
            else:
                axes.text(x, y, text, ha="center", va="center")
    axes.text(1.5, len(rows), "kept for the block", ha="center", va="center")
    box(axes, 3, len(rows), f"scale {scale:g}: 4 bytes", "optimizer state", "ink")
    drawing(axes, (-0.5, 5.5), (len(rows) + 0.5, -0.5))
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
            for index in range(edge, edge + width):
                cell(axes, index + 0.05, y, color, bits[index])
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
    ends, limits, errors = [], {}, {}
    for row, (name, codebook) in enumerate(books.items()):
        _draw_entries(top, codebook, row, SERIES[row])
        error = rounding_errors(values, codebook, len(values))
        errors[name] = zip(values.view(200, 100)[:, 50], error.view(200, 100).amax(1), strict=True)
        limits[name] = values[error > 0.5].max().item()
        decades = [(codebook > 10.0**-d).sum() - (codebook > 10.0 ** (1 - d)).sum() for d in (1, 2, 3)]
        counts = ", ".join(str(int(count)) for count in decades)
        ends.append(
            f"the {name} book has {counts} entries in the three uppermost decades and loses more than half of a value "
            f"below {limits[name]:.2g}"
        )
    top.set(yticks=(0, 1), yticklabels=books, ylim=(1.6, -0.6), title="Where the 256 entries lie")
    title, x = "Error of the nearest entry; 1: the value becomes 0", "value / largest of its block"
    lines(errors, title, x, "largest relative error", log="xy", labels="legend", axes=below)
    linear, dynamic = limits.values()
    title = f"Off by more than half below {linear:.2g} in the linear book, below {_power(dynamic)} in the dynamic"
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
    return dots(data, title, x, unit="%", log=True, number=".2%", axes=panels(height=2.8)[1])


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
        panel.lines[0].set_linewidth(5)  # so that it is seen beneath the mean
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
    lost_share = (error > 0.5).float().mean().item()
    scales = quantize(values, codebook, block_size)[1]
    bits = total_bits + 32 * len(scales) / values.numel()
    figure, (top, below) = panels(2, 1, height=4.6, height_ratios=(1, 4))
    _draw_entries(top, codebook, 0, "first")
    top.set(xscale="log", xlim=(3e-8, 1.5), yticks=(), xlabel="entry of the codebook (logarithmic)")
    colors = {"lose up to 10 %": "first", "10 to 50 %": "activations", "more than 50 %": "second"}
    shares = _shares_by_decade(values, error, list(colors))
    notes = {name: f"{parts['more than 50 %']:.0%}" for name, parts in shares.items()}
    x = "share of the values; at the end: more than 50 % lost"
    bars(shares, "", x, unit="%", colors=colors, notes=notes, show_legend=False, axes=below)
    legend(below, *colors.items())
    title = f"{kind}, blocks of {block_size:,}: {bits:.2f} bits a value, and {lost_share:.1%} lose more than half"
    text = f"{len(codebook)} entries. Of {format_bytes(values.nbytes)} of values over six decades the median relative error is"
    return add_title(figure, title, f"{text} {error.median():.1%}.")


def _shares_by_decade(values: torch.Tensor, error: torch.Tensor, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """The shares of `values` in each decade that lose up to a tenth, up to a half, and more, by these names."""
    groups = values.log10().floor().clamp(-8, 0)
    labels = {-8: "less", **{decade: f"$10^{{{decade}}}$" for decade in range(-7, 0)}, 0: "≥ 1"}
    shares = {}
    for decade, label in labels.items():
        errors = error[groups == decade]
        parts = (errors <= 0.1), (errors > 0.1) & (errors <= 0.5), (errors > 0.5)
        shares[label] = {name: part.float().mean().item() for name, part in zip(names, parts, strict=True)}
    return shares


def _draw_entries(axes: Axes, codebook: torch.Tensor, row: int, color: str) -> None:
    entries = codebook[codebook > 0]
    axes.plot(entries, torch.full_like(entries, row), "|", color=COLORS[color], markersize=16, markeredgewidth=0.8)
    axes.grid(visible=False)
