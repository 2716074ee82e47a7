"""Chapter 11b's figures, and a transformer's bytes to play with."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from course_utils.lessons.c11b_fewer_bits import FineTuning, bits_of_nf4
from course_utils.units import format_bytes
from course_utils.viz.plots import add_title, bars, dots, panels


def choosing_figure(
    base: FineTuning, methods: Mapping[str, FineTuning], ends: Mapping[str, Sequence[float]]
) -> tuple[Figure, str]:
    """A row for each method, the lowest peak first: its peak, an epoch's seconds as a multiple, stored differences of loss."""
    methods = dict(sorted(methods.items(), key=lambda item: item[1].peak)) | {"AdamW": base}
    figure, (peaks, clocks, losses) = panels(1, 3, height=1.5 + 0.3 * len(methods), sharey=True, width_ratios=[5, 3, 5])
    bars({name: run.peak for name, run in methods.items()}, x="peak", axes=peaks)
    times = {name: run.seconds / base.seconds for name, run in methods.items()}
    bars(times, x="seconds of an epoch,\n× AdamW's", unit="", number=".2f", axes=clocks)
    mean = sum(ends["start"]) / len(ends["start"])
    x = f"held-out loss minus AdamW's\n(not fine-tuned: {mean:.2f})"
    dots({name: ends.get(name, []) for name in methods}, x=x, axes=losses)
    title = f"Lowest peak: {next(iter(methods))}; adapters end above AdamW with each of three seeds"
    return add_title(figure, title)


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
    title = f"{format_bytes(sum(parts.values()))} in all; the most: {max(parts, key=parts.get)}{adapter_text}"
    rows = {kind: {kind: size} for kind, size in parts.items()}
    figure, alt = bars(rows, title, "bytes by kind", show_legend=False)
    return figure, f"{count:,} weights in {weights}, {trainable:,} trained, state {state}. {alt}"
