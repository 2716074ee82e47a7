"""Chapter 05: what 8 bits do to an average, and the chapter's figures."""

from collections.abc import Callable, Sequence
from functools import partial
from math import sqrt
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

from course_utils.hardware import Machine, Work
from course_utils.optim import AdamW, AdamW8bit
from course_utils.optim.codebook import dynamic_codebook, linear_codebook
from course_utils.optim.quantization import BLOCK, dequantize, nearest, quantize, stochastic
from course_utils.viz.parts import draw_box, hide_axes
from course_utils.viz.plots import add_title, bars, lines, panels, panels_of_lines


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


def distance_from_adamw(make_optimizer: Callable, decades: float, seed: int = 0, **options) -> tuple[float, int, float]:
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
        Work("pointwise", bytes=size * elements, new_bytes=new * elements, elements=elements, reach=size * elements)
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


def averages_after_change(steps: int) -> dict[str, dict[str, dict[int, float]]]:
    """v by step after its g² has changed, with β₂ = 0.999: in 32 bits, and in 8 rounded to the nearest entry or by chance."""
    generator = torch.Generator().manual_seed(0)

    def round_by_chance(values: torch.Tensor, codebook: torch.Tensor):
        return stochastic(values, codebook, generator)

    averages = {}
    for case, start, target in (("g² has fallen to 0.01", 0.25, 0.01), ("g² has risen to 1", 0.11, 1.0)):
        feed = partial(feed_average, start, target, steps, 0.999)
        curves = {
            "32 bits": feed(None),
            "8 bits, nearest": feed(nearest),
            "stochastic, one run": feed(round_by_chance),
            "stochastic, mean of 200 runs": feed(round_by_chance, copies=200),
        }
        averages[case] = {name: dict(enumerate(curve.tolist(), 1)) for name, curve in curves.items()}
    return averages


def half_spacing(value: float) -> float:
    """Half the distance of the two entries of the unsigned dynamic book around `value`, relative to `value`."""
    codebook = dynamic_codebook(False)
    upper = torch.searchsorted(codebook, torch.tensor(value)).clamp(1, 255)
    return ((codebook[upper] - codebook[upper - 1]) / 2 / value).item()


def journey_figure(values: Sequence[float]) -> tuple[Figure, str]:
    """A block of m on its way into bytes and back, a row for each value."""
    codebook = dynamic_codebook(True)
    codes, scales = quantize(torch.tensor(values), codebook, len(values))
    back = dequantize(codes, scales, codebook, len(values))
    scale = scales.item()
    rows = [("a block of m", f"÷ {scale:g}", "nearest entry", "code: 1 byte", "read back", "off by")]
    for value, code, read in zip(values, codes.tolist(), back.tolist(), strict=True):
        numbers = map(_format_number, (value, value / scale, codebook[code].item()))
        rows.append((*numbers, str(code), _format_number(read), f"{abs(read - value) / abs(value):.1%}"))
    journeys = [f"{row[0]} is kept as {row[3]} and read back as {row[4]}" for row in rows[1:]]
    rows.append(("", "", "for the block", f"scale {scale:g}: 4 bytes", "", ""))
    figure, axes = panels(height=0.42 * len(rows) + 0.7)
    hide_axes(axes, (-0.5, 5.5), (len(rows) - 0.5, -0.5))
    for (y, x), text in np.ndenumerate(rows):
        if x == 3 and y > 0:
            draw_box(axes, x, y, text, "optimizer state", "ink")
        else:
            axes.text(x, y, text, ha="center", va="center")
    title = f"{len(values)} values are kept as {len(values)} bytes and one scale; the smallest is lost"
    return add_title(figure, title, f"A block of {len(values)} values with the scale {scale:g}: {'; '.join(journeys)}.")


def _format_number(value: float) -> str:
    return np.format_float_positional(value, precision=3, fractional=False, trim="-").replace("-", "−")


def codebooks_figure() -> tuple[Figure, str]:
    """The largest relative error of rounding to the linear and to the dynamic unsigned book, by size of the value."""
    values = torch.logspace(-7, 0, 20_000)
    errors = {}
    for name, codebook in {"linear": linear_codebook(False), "dynamic": dynamic_codebook(False)}.items():
        error = rounding_errors(values, codebook, len(values))
        errors[name] = zip(values.view(200, 100)[:, 50], error.view(200, 100).amax(1), strict=True)
    title = "The linear book errs less above 0.1, the dynamic over most of what is below"
    x, y = "value / largest of its block", "relative error (1: it becomes 0)"
    return lines(errors, title, x, y, log="xy")


def stagnation_figure(steps: int = 3000) -> tuple[Figure, str]:
    """The averages of `averages_after_change` over so many steps."""
    averages = averages_after_change(steps)
    short, long = (sqrt(curves["8 bits, nearest"][steps] / curves["32 bits"][steps]) for curves in averages.values())
    title = f"Rounded to the nearest, v freezes: steps {short:.1f} times too short, or {1 / long:.1f} times too long"
    return panels_of_lines(averages, title, y="v / largest of its block", number=".3f")


def codebook_figure(
    kind: str = "dynamic", total_bits: int = 8, exponent_bits: int = 7, block_size: int = 256
) -> tuple[Figure, str]:
    """A codebook of v, and how many values are lost that spread over six decades, some of them outliers."""
    codebook = linear_codebook(False, total_bits)
    if kind == "dynamic":
        codebook = dynamic_codebook(False, total_bits, exponent_bits)
    values = spread_values(decades=6, outliers=1 / 1024)
    is_lost = (rounding_errors(values, codebook, block_size) > 0.5).float()
    bits = total_bits + 32 * len(quantize(values, codebook, block_size)[1]) / values.numel()
    decades = values.log10().floor().clamp(-8, 0)
    names = {-8: "below 1e-07"} | {decade: f"from {10.0**decade:g}" for decade in range(-7, 1)}
    shares = {name: is_lost[decades == decade].mean().item() for decade, name in names.items()}
    figure, (top, below) = panels(2, 1, height=4.6, height_ratios=(1, 4))
    entries = codebook[codebook > 0]
    top.plot(entries, torch.ones_like(entries), "|", markersize=16)
    top.set(xscale="log", xlim=(3e-8, 1.5), yticks=(), xlabel=f"the {len(codebook)} entries of the codebook")
    bars(shares, "", "values of each size that lose more than half", unit="%", axes=below)
    below.set_xlim(0, 110)
    title = f"{kind}, blocks of {block_size:,}: {bits:.2f} bits a value, and {is_lost.mean():.1%} lose more than half"
    return add_title(figure, title, f"A codebook of {len(codebook)} entries.")
