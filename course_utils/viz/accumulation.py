"""Figures of gradient accumulation: the idea, who weighs what, and which micro-batches an update holds."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from course_utils.units import format_bytes
from course_utils.viz.parts import byte_unit, patches, subplots
from course_utils.viz.style import COLORS

_TOKENS_OF_THE_IDEA = (3, 8, 5, 2)
_DIMENSIONS = 256
_TOKEN_NOISE = 4.0  # the noise of one token's gradient, as a multiple of the mean gradient


def accumulation_figure(counts: Sequence[int] = _TOKENS_OF_THE_IDEA) -> tuple[Figure, str]:
    """The idea: micro-batches of different numbers of counted tokens add up in one G, which is divided once."""
    figure, axes = subplots(figsize=(7.6, 3.4), layout="constrained")
    widest = max(counts)
    for row, count in enumerate(counts):
        y = len(counts) - 1 - row
        _draw_tokens(axes, y, count, widest)
        axes.text(-0.5, y + 0.3, f"micro-batch {row + 1}", ha="right", va="center")
        axes.text(widest + 0.4, y + 0.3, f"$T_{row + 1}$ = {count}", va="center")
        _line(axes, (widest + 2.3, y + 0.3), (widest + 4.2, len(counts) / 2 - 0.2))
    x, middle = widest + 4.3, len(counts) / 2 - 0.2
    _step(axes, x + 1.6, middle, "G\nadd $T_i g_i$", "gradients")
    for place, text in enumerate(("÷ Σ$T_i$", "clip,\nthen step")):
        _line(axes, (x + 3.3 + 4.1 * place, middle), (x + 4.2 + 4.1 * place, middle))
        _step(axes, x + 5.75 + 4.1 * place, middle, text, "ink")
    axes.set(xlim=(-4.6, x + 11.6), ylim=(-0.4, len(counts) + 0.1))
    axes.axis("off")
    handles, labels = patches(("token that counts", "first"), ("padding", "grid"))
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    listed = ", ".join(map(str, counts))
    return figure, (
        f"{len(counts)} micro-batches with {listed} counted tokens. Each adds its gradient times its tokens to one buffer G. "
        f"G is divided once, by all {sum(counts)} tokens, then clipped, and one step is made."
    )


def token_weights(counts: Sequence[int]) -> np.ndarray:
    """What a mean of means gives one token of each micro-batch, as a multiple of the equal weight: ΣT / (k Tᵢ)."""
    counts = np.asarray(counts, dtype=float)
    return counts.sum() / (len(counts) * counts)


def worth(counts: Sequence[int]) -> float:
    """The equally weighted tokens that average out noise as well as the mean of means does: k² / Σ 1/Tᵢ (Kish 1965)."""
    return len(counts) ** 2 / (1 / np.asarray(counts, dtype=float)).sum()


def drawn_counts(k: int, mean: int, spread: float, by_length: bool, seed: int = 0) -> np.ndarray:
    """Counted tokens of `k` micro-batches of 8 texts each; lengths are log-normal around `mean` tokens.

    `spread` is the standard deviation of a length's logarithm. `by_length` sorts the texts before they are cut into
    micro-batches, as is often done to save padding.
    """
    lengths = mean * np.exp(spread * np.random.default_rng(seed).standard_normal(8 * k))
    if by_length:
        lengths = np.sort(lengths)
    return np.maximum(1, lengths.round()).astype(int).reshape(k, 8).sum(1)


def simulated_error(counts: Sequence[int], seed: int = 0) -> float:
    """‖mean of means − mean‖ / ‖mean‖ for gradients of tokens that are one common vector and noise four times as long."""
    draw = np.random.default_rng(seed)
    common = np.full(_DIMENSIONS, _DIMENSIONS**-0.5)
    noise = _TOKEN_NOISE * _DIMENSIONS**-0.5
    # The mean over T tokens is noise over √T, so that no token needs to be drawn.
    means = np.array([common + noise * draw.standard_normal(_DIMENSIONS) / t**0.5 for t in counts])
    right = np.average(means, axis=0, weights=counts)
    return float(np.linalg.norm(means.mean(0) - right) / np.linalg.norm(right))


def play_raggedness(k: int = 8, mean: int = 40, spread: float = 0.8, by_length: bool = False) -> tuple[Figure, str]:
    """Play: tokens of each micro-batch, and how many times its right weight a mean of means gives each of them."""
    counts = drawn_counts(k, mean, spread, by_length)
    weights = token_weights(counts)
    figure, (above, below) = subplots(2, 1, figsize=(7.6, 4.2), layout="constrained", sharex=True)
    places = np.arange(1, k + 1)
    above.bar(places, counts, color=COLORS["first"])
    above.set(ylabel="tokens\nthat count", ylim=(0, None))
    below.bar(places, weights - 1, bottom=1, color=[COLORS["warning"] if w > 1 else COLORS["third"] for w in weights])
    below.axhline(1, color=COLORS["ink"], linewidth=1.4)
    low, high = min(0.4, 0.8 * weights.min()), max(2.5, 1.25 * weights.max())
    below.set(yscale="log", ylim=(low, high), xlabel="micro-batch", ylabel="weight of a token\n(1 is right)")
    ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20) if low <= t <= high]
    below.set_yticks(ticks, [f"{t:g}" for t in ticks])
    below.minorticks_off()
    below.set_xticks(places[:: max(1, k // 16)])
    error, equal = simulated_error(counts), worth(counts)
    figure.suptitle(
        f"mean of means: {counts.sum():,} tokens do the work of {equal:,.0f}, gradient off by {error:.1%}", fontsize=11
    )
    return figure, (
        f"{k} micro-batches of {counts.min()} to {counts.max()} tokens. A mean of means weighs a token "
        f"{weights.min():.2f} to {weights.max():.2f} times as it should. {counts.sum():,} tokens average noise as {equal:,.0f} "
        f"would; a simulated gradient is off by {error:.1%}."
    )


def groups_figure(updates: Mapping[str, Sequence[int]], batches: int) -> tuple[Figure, str]:
    """Which micro-batches went into which update: a row for each way, `updates` being the numbers of micro-batches in its
    updates, in order; what of `batches` is left over stays pale."""
    figure, axes = subplots(figsize=(7.6, 0.9 + 0.75 * len(updates)), layout="constrained")
    shades = ("first", "second")
    for row, sizes in enumerate(updates.values()):
        edge = 0
        for number, size in enumerate([*sizes, batches - sum(sizes)]):
            left_over = number == len(sizes)
            for place in range(edge, edge + size):
                color = COLORS["grid" if left_over else shades[number % 2]]
                axes.add_patch(Rectangle((place + 0.06, row - 0.3), 0.88, 0.6, color=color))
            if size:
                text = "left over" if left_over else f"update {number + 1}"
                axes.text(edge + size / 2, row + 0.42, text, ha="center", va="center", fontsize=8)
            edge += size
    axes.set(xlim=(0, batches), ylim=(len(updates) - 0.4, -0.5), xlabel="micro-batch, counted from 0")
    axes.set_xticks([i + 0.5 for i in range(batches)], range(batches))
    axes.set_yticks(range(len(updates)), list(updates))
    axes.grid(visible=False)
    axes.tick_params(length=0)
    said = "; ".join(
        f"{name}: {', '.join(map(str, sizes))}, left over {batches - sum(sizes)}" for name, sizes in updates.items()
    )
    return (
        figure,
        f"{batches} micro-batches in a row, colored by the update they go into. Numbers in each update: {said}.",
    )


def accumulated_noise_figure(ks: Sequence[int], measured: Sequence[float]) -> tuple[Figure, str]:
    """The gradient's noise against the micro-batches of an update, measured points over the line 1/k from the first."""
    figure, axes = subplots(figsize=(7.6, 3.2), layout="constrained")
    expected = [measured[0] * ks[0] / k for k in ks]
    axes.loglog(ks, expected, color=COLORS["predicted"], label="1/k")
    axes.loglog(ks, measured, "o", color=COLORS["measured"], label="measured")
    axes.set(xlabel="k, micro-batches of an update", ylabel="variance of the gradient\n/ its squared length")
    axes.set_xticks(list(ks), [str(k) for k in ks])
    axes.set_yticks(expected, [f"{value:.2g}" for value in expected])
    axes.minorticks_off()
    axes.legend()
    pairs = ", ".join(f"k = {k}: {value:.3g}" for k, value in zip(ks, measured, strict=True))
    return figure, f"Variance of the gradient over its squared length against k, beside a line falling as 1/k. {pairs}."


def peaks_figure(predicted: Mapping[str, int], dry: Mapping[str, int]) -> tuple[Figure, str]:
    """Peaks of a step by the way its batch is cut: a bar by pencil, a mark from the run, and the sizes in words."""
    unit, size = byte_unit(max(predicted.values()))
    figure, axes = subplots(figsize=(7.6, 0.9 + 0.5 * len(predicted)), layout="constrained")
    rows = range(len(predicted))
    axes.barh(rows, [p / size for p in predicted.values()], 0.6, color=COLORS["predicted"], label="by pencil")
    axes.plot([dry[name] / size for name in predicted], rows, "D", color=COLORS["measured"], label="dry run")
    for row, name in enumerate(predicted):
        axes.text(dry[name] / size, row, f"   {format_bytes(dry[name])}", va="center")
    axes.set(yticks=rows, yticklabels=list(predicted), xlabel=f"peak of a step, {unit}")
    axes.set_xlim(0, 1.2 * max(predicted.values()) / size)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside upper center", ncols=2)
    said = "; ".join(f"{name} {format_bytes(predicted[name])} and {format_bytes(dry[name])}" for name in predicted)
    return figure, f"Peak of a step, by pencil and in a dry run: {said}."


def _draw_tokens(axes, y: float, count: int, widest: int) -> None:
    for place in range(widest):
        color = COLORS["first" if place < count else "grid"]
        axes.add_patch(Rectangle((place + 0.05, y), 0.85, 0.6, color=color))


def _step(axes, x: float, y: float, text: str, color: str) -> None:
    frame = {"boxstyle": "round,pad=0.1", "facecolor": COLORS["paper"], "edgecolor": COLORS[color], "linewidth": 2}
    axes.add_patch(FancyBboxPatch((x - 1.45, y - 0.55), 2.9, 1.1, **frame))
    axes.text(x, y, text, ha="center", va="center", color=COLORS["ink"])


def _line(axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": "-|>", "color": COLORS["ink"], "linewidth": 1.2})
