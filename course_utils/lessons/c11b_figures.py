"""Chapter 11b's figures, and a transformer's bytes to play with."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from course_utils.lessons.c11b_fewer_bits import FineTuning, bits_of_nf4, bytes_by_method
from course_utils.units import format_bytes
from course_utils.viz.parts import unit_for
from course_utils.viz.plots import add_title, bars, dots, note, panels
from course_utils.viz.style import COLORS

STUDENTS_TITLE = "With every seed a teacher helps at T = 1 and 2, and a second epoch helps more"


def idea_figure() -> tuple[Figure, str]:
    """The bars of `bytes_by_method`."""
    title = "Smaller states shrink O, adapters G and O, QLoRA P as well"
    methods = bytes_by_method()
    notes = {
        name: f"{sum(kinds.values()):.2f}, of which O {kinds['optimizer state']:.2f} and G {kinds['gradients']:.2f}"
        for name, kinds in methods.items()
        if kinds["gradients"] < 1
    }
    figure, alt = bars(methods, title, "bytes for each weight", unit="", number=".2f", notes=notes)
    return figure, f"{alt} Of a matrix of 4,096 by 4,096 in float32, without activations."


def bands_figure(runs: Mapping[str, Sequence[float]], xlabel: str, title: str) -> tuple[Figure, str]:
    """A row by name, a dot for each seed, a line at the mean; 0 is marked where it lies between the dots."""
    figure, alt = dots(runs, "", f"{xlabel}; orange: their mean")
    return add_title(figure, title, alt, "A dot for each seed, a line at the mean.")


def race_title(differences: Mapping[str, Sequence[float]]) -> str:
    """Which optimizers end below AdamW with every seed, and which above."""
    below = [name for name, values in differences.items() if max(values) < 0]
    above = [name for name, values in differences.items() if min(values) > 0]
    sides = {"Below": below, "Above": above}
    title = "\n".join(f"{side} AdamW with every seed: {' · '.join(names)}" for side, names in sides.items() if names)
    return title + "; the others end on both sides" * (len(below + above) < len(differences))


def choosing_figure(
    base: FineTuning, methods: Mapping[str, FineTuning], ends: Mapping[str, Sequence[float]]
) -> tuple[Figure, str]:
    """A row for each method, the lowest peak first: its peak, an epoch's seconds as a multiple, stored differences of loss."""
    methods = dict(sorted(methods.items(), key=lambda item: item[1].peak))
    names = {name: name.replace("LoRA of rank 16", "LoRA on all layers") for name in methods}
    height = 1.5 + 0.3 * len(methods)
    figure, (peaks, clocks, losses) = panels(1, 3, height=height, sharey=True, width_ratios=[3, 2, 3])
    differences = {names[name]: ends.get(name, []) for name in methods}
    mean = sum(ends["start"]) / len(ends["start"])
    by_peak = {names[name]: run.peak for name, run in methods.items()}
    times = {names[name]: [run.seconds / base.seconds] for name, run in methods.items()}
    _, first = bars(by_peak, x="peak", axes=peaks)
    _, second = dots(times, x="seconds of an epoch,\n× AdamW's", axes=clocks)
    _, third = dots(differences, x="held-out loss minus AdamW's\ndot: a seed; orange: mean", axes=losses)
    # Inside the bars, so that AdamW's line crosses no number.
    for text, bar in zip(peaks.texts, peaks.patches, strict=True):
        text.set(x=0.97 * bar.get_width(), ha="right", color=COLORS["paper"], bbox=None)
    unit = unit_for(max(by_peak.values()))[1]
    for axes, of_adamw in ((peaks, base.peak / unit), (clocks, 1.0)):
        note(axes, "AdamW", (of_adamw, -1.1), (3, 0), fontsize=8)
        axes.axvline(of_adamw, color=COLORS["ink"], linewidth=1, zorder=0)
        axes.set_xlim(0, 1.15 * max(of_adamw, axes.get_xlim()[1]))
    losses.axvline(mean, color=COLORS["ink"], linewidth=1, linestyle=":")
    note(losses, "mean before\nfine-tuning", (mean, -1.1), (-3, 0), fontsize=8)
    peaks.set_ylim(len(methods) - 0.4, -1.8)
    for row in (row for row, values in enumerate(differences.values()) if not values):
        losses.text(0.03, row, "not run", transform=losses.get_yaxis_transform(), va="center", fontsize=8)
    above = {name for name, values in differences.items() if values and min(values) > 0}
    adapters = {name for name, values in differences.items() if values and "LoRA" in name}
    higher = "Every way with adapters ends above AdamW with these seeds"
    if above != adapters:
        higher = f"Above AdamW with these seeds: {', '.join(sorted(above))}" if above else ""
    title = f"Lowest peak: {next(iter(differences))}\n{higher}".strip()
    return add_title(
        figure, title, f"AdamW: {format_bytes(base.peak)}; not fine-tuned: mean {mean:.2f}.", first, second, third
    )


WEIGHT_BYTES = {"32 bits": 4.0, "16 bits": 2.0, "NF4": bits_of_nf4() / 8}
STATE_SHARES = {
    "32 bits": 1.0,
    "16 bits": 0.5,
    "8 bits": 0.2539,
    "4 bits": 0.1328,
    "GaLore, a quarter": 0.3125,
    "SGD": 0.0,
}
"""Bytes of a number of a stored weight; of AdamW's state in 32 bits, what is left, of four h × h and two h × 4h."""


def play_methods(
    width: int = 2048,
    blocks: int = 24,
    tokens: int = 4096,
    weights: str = "32 bits",
    rank: int = 0,
    targets: str = "all-linear",
    state: str = "32 bits",
    checkpointing: bool = False,
) -> tuple[Figure, str]:
    """A transformer of 12h² weights a block: bytes by kind. Adapters of `rank` in 32 bits beside every matrix or q and v, or
    with 0 all is trained; a weight in 4 bits is not trained itself, and gets adapters of rank 4 at least."""
    rank = rank or 4 * (weights == "NF4")
    is_few = rank and targets == "q v"  # then the MLP's inputs, h and 4h wide, are not saved
    count, adapters = 12 * width**2 * blocks, (4 if is_few else 18) * rank * width * blocks
    trainable = adapters or count
    itemsize = 4.0 if weights == "32 bits" else 2.0
    # Without scores, which a fused function does not save.
    per_block = (12 if is_few else 17) * itemsize * width * tokens
    parts = {
        "parameters": count * WEIGHT_BYTES[weights] + 4 * adapters,
        "gradients": 4 * adapters or count * itemsize,
        "optimizer state": trainable * 8 * STATE_SHARES[state],
        "activations": per_block + itemsize * width * tokens * blocks if checkpointing else per_block * blocks,
    }
    adapter_text = f"; adapters of rank {rank} on {targets}" if rank else ""
    title = f"{format_bytes(round(sum(parts.values())))} in all; the most: {max(parts, key=parts.get)}{adapter_text}"
    rows = {kind: {kind: round(size)} for kind, size in parts.items()}
    figure, alt = bars(rows, title, "bytes by kind", show_legend=False)
    return figure, f"{count:,} weights in {weights}, {trainable:,} trained, state {state}. {alt}"
