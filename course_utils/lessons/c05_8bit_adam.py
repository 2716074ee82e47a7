"""Chapter 05: what 8 bits do to an average, and the chapter's figures."""

from collections.abc import Callable, Sequence

import torch
from matplotlib.figure import Figure

from course_utils.optim.codebook import dynamic_codebook, linear_codebook
from course_utils.optim.quantization import dequantize, nearest, quantize, stochastic
from course_utils.units import format_bytes
from course_utils.viz.parts import arrow, box, subplots
from course_utils.viz.style import COLORS


def relative_error(values: torch.Tensor, codes: torch.Tensor, block_size: int) -> torch.Tensor:
    """|read back − written| / |written| for each value that is not 0, flat; 1 means that the value came back as 0."""
    back = dequantize(*quantize(values, codes, block_size), codes, block_size)
    written = values != 0
    return (back - values).abs()[written] / values.abs()[written]


def spread_values(decades: float, count: int = 2**14, outliers: float = 0.0, seed: int = 0) -> torch.Tensor:
    """Squares of normal numbers whose scales are spread evenly (in the logarithm) over `decades` decades.

    A share `outliers` of them is 10⁶ times as large, as v is where a gradient is a thousand times its neighbors'.
    """
    generator = torch.Generator().manual_seed(seed)
    scales = 10 ** (-decades * torch.rand(count, generator=generator))
    values = scales * torch.randn(count, generator=generator) ** 2
    return torch.where(torch.rand(count, generator=generator) < outliers, 1e6 * values, values)


def follow(
    start: float, target: float, steps: int, beta: float, rounding: Callable | None, copies: int = 1
) -> torch.Tensor:
    """An average that starts at `start` and is fed `target`: its mean over `copies` after each of `steps` steps (steps,).

    It shares a block with an average that stays at 1, and is kept in the unsigned dynamic book: `rounding(values, codes)`
    gives codes in it. With None it is kept as it is.
    """
    codes, kept, means = dynamic_codebook(False), torch.full((copies,), start), []
    for _ in range(steps):
        kept = beta * kept + (1 - beta) * target
        if rounding is not None:
            kept = codes[rounding(kept, codes).long()]
        means.append(kept.mean())
    return torch.stack(means)


def half_spacing(value: float) -> float:
    """Half the distance of the two entries of the unsigned dynamic book around `value`, relative to `value`."""
    codes = dynamic_codebook(False)
    upper = torch.searchsorted(codes, torch.tensor(value)).clamp(1, 255)
    return ((codes[upper] - codes[upper - 1]) / 2 / value).item()


def state_cycle_figure() -> tuple[Figure, str]:
    """What is 8 bits wide and when: the averages between two steps, and nothing else."""
    figure, axes = subplots(figsize=(7.6, 2.9), layout="constrained")
    kept = box(axes, 0.13, 0.74, "m and v, kept:\n1 byte a value\n+ 4 bytes a block", "optimizer state", "ink")
    wide = box(axes, 0.5, 0.74, "m and v, at work:\n32-bit floats", "ink")
    new = box(axes, 0.87, 0.74, "m and v, kept:\n1 byte a value\n+ 4 bytes a block", "optimizer state", "ink")
    theta = box(axes, 0.13, 0.18, "parameter θ and\ngradient g: 32 bits", "parameters", "ink")
    update = box(axes, 0.5, 0.18, "Adam's update,\nas in chapter 03", "ink")
    moved = box(axes, 0.87, 0.18, "parameter θ:\n32 bits", "parameters", "ink")
    for start, end, text, place in (
        (kept, wide, "codebook[code]\n× scale", (0.315, 0.76)),
        (wide, new, "÷ largest,\nnearest entry", (0.685, 0.76)),
        (theta, update, "", None),
        (update, moved, "", None),
        (wide, update, "", None),
    ):
        arrow(axes, start, end, both_ways=(start, end) == (wide, update))
        if text:
            axes.text(*place, text, ha="center", va="bottom", fontsize=8.5)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.axis("off")
    return figure, (
        "Flow chart of one step. The averages m and v are kept as one byte a value and four bytes a block; for the update "
        "they are looked up in the codebook and scaled to 32-bit floats; afterwards each is divided by its block's largest "
        "and the nearest entry's code is kept. Parameter and gradient are 32 bits wide throughout."
    )


def codebooks_figure() -> tuple[Figure, str]:
    """Linear beside dynamic unsigned book: where their entries lie, and the relative error of rounding to them."""
    books = {"linear": linear_codebook(False), "dynamic": dynamic_codebook(False)}
    values = torch.logspace(-7, 0, 20_000)
    at = values.view(200, 100)[:, 50]
    figure, (top, below) = subplots(2, 1, figsize=(7.6, 4.6), layout="constrained", sharex=True, height_ratios=(1, 2))
    ends = []
    for row, (name, codes), color in zip((1, 0), books.items(), ("second", "first"), strict=True):
        above_zero = codes[codes > 0]
        top.plot(
            above_zero, torch.full_like(above_zero, row), "|", color=COLORS[color], markersize=16, markeredgewidth=0.8
        )
        error = relative_error(values, codes, len(values))
        below.plot(at, error.view(200, 100).amax(1), color=COLORS[color], label=f"{name} codebook")
        usable = values[error > 0.5].max().item()
        decades = [(codes >= 10.0**-d).sum() - (codes >= 10.0 ** (1 - d)).sum() for d in (1, 2, 3)]
        counts = ", ".join(str(int(count)) for count in decades)
        ends.append(
            f"the {name} book has {counts} entries in the three uppermost decades and loses more than half of a value "
            f"below {usable:.1g}"
        )
    top.set(yticks=(1, 0), yticklabels=("linear", "dynamic"), ylim=(-0.6, 1.6), title="Where the entries lie")
    top.grid(visible=False)
    below.set(xscale="log", yscale="log", ylim=(1e-3, 2), xlabel="value / largest of its block")
    below.set(ylabel="largest relative error", title="Error of the nearest entry (1: the value becomes 0)")
    below.legend(loc="lower left")
    return figure, f"Entries on a logarithmic axis and the relative error below: {'; '.join(ends)}."


def blocks_figure(values: torch.Tensor, sizes: Sequence[int] = (256, 2048)) -> tuple[Figure, str]:
    """Median relative error of `values` in the dynamic book, by size of the block, with one outlier and without.

    The outlier is one value, 10⁶ times the largest. The last column is one scale for the whole tensor.
    """
    with_outlier = values.clone().flatten()
    with_outlier[0] = 1e6 * values.max()
    names = [*(f"blocks of {size:,}" for size in sizes), "one scale\nfor the tensor"]
    figure, axes = subplots(figsize=(7.6, 3.2), layout="constrained")
    said = []
    for shift, (label, tensor, color) in enumerate(
        (("as they are", values.flatten(), "first"), ("with one outlier", with_outlier, "second"))
    ):
        errors = [
            relative_error(tensor, dynamic_codebook(False), size).median().item() for size in (*sizes, values.numel())
        ]
        bars = axes.bar(
            [i + 0.38 * shift - 0.19 for i in range(len(names))], errors, 0.36, color=COLORS[color], label=label
        )
        axes.bar_label(bars, [f"{error:.1%}" for error in errors], fontsize=9)
        said.append(f"{label}: " + ", ".join(f"{error:.1%}" for error in errors))
    axes.set(xticks=range(len(names)), xticklabels=names, ylabel="median relative error", ylim=(0, 1.12))
    axes.grid(visible=False, axis="x")
    figure.legend(loc="outside upper center", ncols=2)
    return (
        figure,
        f"Median relative error for blocks of {', '.join(map(str, sizes))} and the whole tensor. {'; '.join(said)}.",
    )


def stagnation_figure(
    start: float = 0.25, target: float = 0.01, steps: int = 3000, beta: float = 0.999
) -> tuple[Figure, str]:
    """An average whose input falls from `start` to `target`, kept in 32 bits, in 8 rounded to nearest, and stochastically."""
    generator = torch.Generator().manual_seed(0)

    def by_chance(values, codes):
        return stochastic(values, codes, generator)

    curves = {
        "32 bits": ("predicted", follow(start, target, steps, beta, None)),
        "8 bits, nearest entry": ("second", follow(start, target, steps, beta, nearest)),
        "8 bits, stochastic (mean of 200)": ("first", follow(start, target, steps, beta, by_chance, copies=200)),
    }
    figure, axes = subplots()
    for name, (color, curve) in curves.items():
        width = 5 if name == "32 bits" else 1.8  # the mean of the stochastic ones lies on it
        axes.plot(range(1, steps + 1), curve, color=COLORS[color], linewidth=width, label=name)
    axes.axhline(target, color=COLORS["ink"], linestyle=":", linewidth=1.2, label="what g² is now")
    axes.set(xlabel="step", ylabel="v, relative to its block's largest", ylim=(0, 1.15 * max(start, target)))
    axes.legend()
    ends = "; ".join(f"{name} {curve[-1]:.3f}" for name, (_, curve) in curves.items())
    return (
        figure,
        f"v starts at {start:g} and its input is {target:g}; after {steps} steps with β₂ = {beta:g} it is: {ends}.",
    )


def codebook_figure(
    kind: str = "dynamic", total_bits: int = 8, exponent_bits: int = 7, block_size: int = 256
) -> tuple[Figure, str]:
    """A codebook of v, and what comes back of values spread over six decades, some of them outliers."""
    codes = (
        dynamic_codebook(False, total_bits, exponent_bits) if kind == "dynamic" else linear_codebook(False, total_bits)
    )
    values = spread_values(decades=6, outliers=1 / 1024)
    error = relative_error(values, codes, block_size)
    lost = (error > 0.5).float().mean().item()
    scales = quantize(values, codes, block_size)[1]
    bits = total_bits + 32 * len(scales) / values.numel()
    figure, (top, below) = subplots(2, 1, figsize=(7.6, 4.6), layout="constrained", height_ratios=(1, 3))
    top.plot(
        codes[codes > 0],
        torch.zeros_like(codes[codes > 0]),
        "|",
        color=COLORS["first"],
        markersize=22,
        markeredgewidth=0.8,
    )
    top.set(xscale="log", xlim=(3e-8, 1.5), yticks=(), xlabel="entry of the codebook (logarithmic)")
    top.set(title=f"{kind}, {total_bits} bits, blocks of {block_size:,}: {bits:.2f} bits a value")
    below.plot(values, error.clamp(min=1e-4), ".", color=COLORS["first"], markersize=2, rasterized=True)
    below.set(xscale="log", yscale="log", xlim=(1e-10, None), ylim=(1e-4, 3))
    below.set(xlabel="value", ylabel="relative error", title=f"median {error.median():.1%}; {lost:.1%} lose over half")
    return figure, (
        f"A {kind} book of {len(codes)} entries, blocks of {block_size} values, {bits:.2f} bits a value with scales. Of "
        f"{format_bytes(values.nbytes)} of values over six decades, the median relative error is {error.median():.1%}, "
        f"and {lost:.1%} lose more than half."
    )
