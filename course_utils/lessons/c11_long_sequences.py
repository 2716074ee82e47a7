"""Chapter 11: what a loss, attention or a compiled step takes, attention on a ring of real ranks, and the chapter's figures."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise, product
from tempfile import TemporaryDirectory
from types import MappingProxyType
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from course_utils.distributed import counted
from course_utils.distributed.ring_attention import RingAttention, stretches, two_ends
from course_utils.hardware import Machine, count_flops
from course_utils.lessons.shared import account_of
from course_utils.memory import distinct_bytes
from course_utils.techniques import first_fit, pack
from course_utils.techniques.attention import attention, visible_tiles
from course_utils.training.gradients import relative_error
from course_utils.units import format_bytes, format_counted
from course_utils.viz.parts import cell, drawing
from course_utils.viz.plots import Span, bars, dots, legend, lines, panels, tick, timeline
from course_utils.viz.style import COLORS, LINES, MARKS, SERIES

ITEMSIZE = 4  # bytes of a float32 number


@dataclass(frozen=True)
class Cost:
    """What a function and its backward pass took."""

    peak: int  # bytes above what was there before
    saved: int  # bytes, by forward
    seconds: float  # the quickest of a few


def cost(function: Callable[..., Tensor], *inputs, parameters: Sequence[Tensor] = (), times: int = 2) -> Cost:
    """Cost of `function(*inputs)` and of the backward pass of its sum, without the first call, in which a compiler may work.

    `parameters` are the tensors that get gradients, those of `inputs` by default.
    """
    learned = list(parameters) or [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]

    def step():
        for parameter in learned:
            parameter.grad = None
        function(*inputs).sum().backward()

    step()
    for parameter in learned:
        parameter.grad = None
    peak = account_of(step, learned[0].device).above_start
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        step()
        learned[0].grad.sum().item()  # a GPU is done only when its numbers are there
        seconds.append(time.perf_counter() - start)
    resident = [*learned, *(x for x in inputs if isinstance(x, Tensor))]
    saved = distinct_bytes([*tensors_saved_by(function, *inputs), *resident]) - distinct_bytes(resident)
    return Cost(peak, saved, min(seconds))


def tensors_saved_by(function: Callable[..., Tensor], *inputs) -> list[Tensor]:
    """All that `function(*inputs)` hands to autograd to be saved for backward, parameters and repetitions too."""
    tensors: list[Tensor] = []
    # Not to be compiled itself, where the function is.
    remember = torch.compiler.disable(lambda tensor: tensors.append(tensor.detach()) or tensor)
    with saved_tensors_hooks(remember, lambda tensor: tensor):
        function(*inputs)
    return tensors


def operations(function: Callable[..., Tensor], *inputs) -> int:
    """Floating point operations of the matrix products of `function(*inputs)` and its backward pass."""
    with count_flops() as counter:
        function(*inputs).sum().backward()
    return counter.get_total_flops()


def largest_error(function: Callable, right: Callable, *inputs) -> float:
    """The largest relative difference of the gradients of two functions of the same inputs."""
    learned = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    actual, expected = (torch.autograd.grad(call(*inputs), learned) for call in (function, right))
    return max(map(relative_error, actual, expected))


def head(
    tokens: int, width: int, vocabulary: int, device: torch.device, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, an output layer's weight, and labels of which a tenth are ignored."""
    generator = torch.Generator().manual_seed(vocabulary)
    x, w = (torch.randn(n, width, generator=generator).to(device, dtype).requires_grad_() for n in (tokens, vocabulary))
    labels = torch.randint(vocabulary, (tokens,), generator=generator).to(device)
    labels[::10] = -100
    return x, w, labels


def qkv(
    length: int, device: torch.device, heads: int = 4, width: int = 32, dtype: torch.dtype = torch.float32
) -> list[nn.Parameter]:
    """Queries, keys and values of one text, (1, heads, length, width)."""
    generator = torch.Generator().manual_seed(length)
    tensors = (torch.randn(1, heads, length, width, generator=generator) for _ in range(3))
    return [nn.Parameter(tensor.to(device, dtype)) for tensor in tensors]


def tiles(length: int, is_causal: bool) -> int:
    """Tiles of scores that `TiledAttention` computes in forward."""
    return sum(len(cols) for _, cols in visible_tiles(length, length, is_causal))


def pad(documents: Sequence[Sequence[int]], length: int, device: torch.device) -> dict[str, Tensor]:
    """Each document in a row of its own, padded to `length`, for a causal language model."""
    ids = torch.zeros(len(documents), length, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, document in enumerate(documents):
        ids[row, : len(document)] = torch.tensor(document)
        mask[row, : len(document)] = 1
    batch = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    return {name: tensor.to(device) for name, tensor in batch.items()}


def in_batches(packed: Mapping[str, Tensor], size: int, device: torch.device) -> list[dict[str, Tensor]]:
    """So many rows of `packed` at a time."""
    count = len(packed["input_ids"])
    return [{k: t[start : start + size].to(device) for k, t in packed.items()} for start in range(0, count, size)]


def mean_loss(model: nn.Module, documents: Sequence[Tensor]) -> Tensor:
    """The mean over all labels of documents of shape (1, length), each run alone."""
    counts = [ids.numel() - 1 for ids in documents]
    losses = (model(ids, labels=ids).loss * count for ids, count in zip(documents, counts, strict=True))
    return sum(losses) / sum(counts)


def gradient_difference(model: nn.Module, loss: Tensor, other_loss: Tensor) -> float:
    """The relative difference of the gradients of two losses."""
    parameters = list(model.parameters())
    losses = (loss, other_loss)
    gradients = (torch.cat([g.flatten() for g in torch.autograd.grad(value, parameters)]) for value in losses)
    return relative_error(*gradients)


def owners(lengths: Sequence[int], room: int) -> Tensor:
    """The number of its document for each place of a row, -1 for padding."""
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return nn.functional.pad(owner, (0, room - len(owner)), value=-1)


def epoch_seconds(model: nn.Module, batches: Mapping[str, Sequence[dict]]) -> dict[str, float]:
    """Seconds of forward and backward over all batches of each kind, the quickest of three; the kinds take turns."""
    quickest = {name: float("inf") for name in batches}
    for _ in range(3):
        for name, some in batches.items():
            start = time.perf_counter()
            for batch in some:
                model(**batch).loss.backward()
            next(model.parameters()).grad.sum().item()
            model.zero_grad()
            quickest[name] = min(quickest[name], time.perf_counter() - start)
    return quickest


# Attention over ranks, to be launched.

PLACES = {"stretches": stretches, "two ends": two_ends}


def ring_on_rank(length: int) -> dict[str, dict[str, float]]:
    """Causal attention on this rank's part in both ways to share out places, beside the whole sequence in one process.

    A row each: the largest difference of output and gradients, bytes sent in forward and in all, pairs of a query and a key
    that this rank's mask lets through.
    """
    rows = {}
    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(0)
    full = [torch.randn(1, 2, length, 16, generator=generator).requires_grad_() for _ in range(3)]
    right = attention(*full, True)
    weights = torch.randn(right.shape, generator=generator)
    (right * weights).sum().backward()
    for name, share in PLACES.items():
        places = share(length, ranks)
        own_places = places[rank]
        parts = [tensor.detach()[..., own_places, :].clone().requires_grad_() for tensor in full]
        with counted() as traffic:
            out = RingAttention.apply(*parts, places, True)
            forward = traffic.sent
            (out * weights[..., own_places, :]).sum().backward()
        pairs = zip((out, *(part.grad for part in parts)), (right, *(tensor.grad for tensor in full)), strict=True)
        rows[name] = {
            "difference": max((a - b[..., own_places, :]).abs().max().item() for a, b in pairs),
            "sent in forward": forward,
            "sent": traffic.sent,
            "pairs": int((own_places + 1).sum()),
        }
    return rows


def ring_summary(ranks: Sequence[Mapping[str, float]]) -> dict[str, object]:
    """The ranks' rows of one way to share out places as one: bytes of the first, the largest difference, the balance."""
    pairs = [rank["pairs"] for rank in ranks]
    return {
        "forward, sent": ranks[0]["sent in forward"],
        "both, sent": ranks[0]["sent"],
        "apart": f"{max(rank['difference'] for rank in ranks):.0e}",
        "busiest / mean": round(max(pairs) * len(pairs) / sum(pairs), 2),
    }


# Activations on the host, in seconds from stated rates.

SHARE = 0.5
"""Share of a machine's peak in bfloat16 that computing reaches."""


def host_or_again(
    width: float, length: np.ndarray | float, machine: Machine, per_number: float
) -> tuple[float, np.ndarray | float]:
    """Seconds for one token of one block: its saved bytes to the host and back; its forward pass again.

    `per_number` bytes are saved for each number of the width; a forward pass takes 24h² + 4sh operations a token (Korthikanti
    et al. 2022, appendix A, without the backward pass).
    """
    operations = 24 * width**2 + 4 * length * width
    return 2 * per_number * width / machine.host_link, operations / (SHARE * machine.flop_rates["bfloat16"])


def exposed_transfer(transfer: np.ndarray | float, recomputing: np.ndarray | float) -> np.ndarray:
    """Seconds of `transfer` that the step waits for: out during forward, back during a backward pass of twice its time."""
    return np.maximum(transfer / 2 - recomputing, 0) + np.maximum(transfer / 2 - 2 * recomputing, 0)


def length_that_meets(width: int, machine: Machine, per_number: float, overlapped: bool = False) -> float:
    """The length from which moving takes less time than computing again: (24h + 4s) / rate = 2 · per_number / link.

    `overlapped` counts only what the step waits for, so that the work need only take as long as half of one way. Below 0
    moving always takes less.
    """
    each_way = per_number * SHARE * machine.flop_rates["bfloat16"] / machine.host_link
    return ((0.5 if overlapped else 2) * each_way - 24 * width) / 4


@contextmanager
def budget(of_saved: float):
    """Lets compiled code keep this share of what it would keep for backward; yields a function that counts graphs."""
    from torch._functorch import config

    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    with config.patch(activation_memory_budget=of_saved):
        yield lambda: counters["stats"]["unique_graphs"]


def seconds_to_start(function: Callable, *inputs) -> float | None:
    """Seconds until the first forward and backward pass through Inductor are done, nothing cached; None without a compiler."""
    torch._dynamo.reset()
    with TemporaryDirectory() as folder, patch.dict("os.environ", TORCHINDUCTOR_CACHE_DIR=folder):
        start = time.perf_counter()
        try:
            torch.compile(function)(*inputs).sum().backward()
        except torch._inductor.exc.InductorError as error:
            if "compiler" not in str(error).lower():
                raise
            return None
        return time.perf_counter() - start


# Figures.


def idea_figure() -> tuple[Figure, str]:
    """A matrix that is there whole, and beside it one tile of it with two numbers a row."""
    rows, columns = 6, 12
    tile = (2, 3)
    figure, (left, right) = panels(1, 2, height=3.0)
    for axes, is_whole in ((left, True), (right, False)):
        for row, column in product(range(rows), range(columns)):
            in_memory = is_whole or (2 <= row < 2 + tile[0] and 6 <= column < 6 + tile[1])
            seen = not is_whole and (row < 2 or (row < 4 and column < 6))
            color = "activations" if in_memory else "grid" if seen else "paper"
            cell(axes, column, rows - 1 - row, color, edgecolor=COLORS["grid"])
        drawing(axes, (-1.4, columns + 4), (-1.1, rows + 1.2))
        axes.text(columns / 2, -0.8, "words, or keys", ha="center", fontsize=9)
        axes.text(-0.6, rows / 2, "tokens, or queries", ha="right", va="center", rotation=90, fontsize=9)
    for place, name in enumerate(("largest", "total")):
        x = columns + 0.8 + 2 * place
        for row in range(rows):
            cell(right, x, rows - 1 - row, "gradients" if row < 4 else "paper", edgecolor=COLORS["grid"])
        right.text(x + 0.46, rows + 0.15, name, ha="center", fontsize=9)
    left.set_title("Whole: every number of the row waits", fontsize=10)
    right.set_title("In tiles: a row keeps its largest number and its total", fontsize=10)
    kinds = ("in memory", "activations"), ("kept of each row", "gradients"), ("computed before", "grid")
    legend(left, *kinds, ("still to come", "paper"))
    figure.legends[0].legend_handles[-1].set_edgecolor(COLORS["grid"])
    return figure, (
        f"Left, a matrix of {rows} tokens by {columns} words, all of it in memory. Right, only one tile of {tile[0]} by {tile[1]}"
        " is in memory; of what came before, each row keeps its largest number and its total; the last two rows have not begun."
    )


def curves_figure(
    predicted: Mapping[str, Mapping[int, float]],
    measured: Mapping[str, Mapping[int, float]],
    xlabel: str,
    title: str,
    slopes: Mapping[str, int] = MappingProxyType({}),
) -> tuple[Figure, str]:
    """Bytes against a size on logarithmic axes: marks are measured, lines predicted, for some alone. A gray line beside a name of
    `slopes` grows with that power of the size."""
    data = dict(measured) | {f"{name}, predicted": predicted[name] for name in measured if name in predicted}
    styles = {}
    for name, color, line, mark in zip(measured, SERIES, LINES, MARKS, strict=False):
        styles |= {name: (color, mark), f"{name}, predicted": (color, line)}
    for name, power in slopes.items():
        guide = f"grows with {xlabel.split()[-1]}{('', '²')[power - 1]}"
        first, size = min(measured[name].items())
        data[guide] = {value: 0.6 * size * (value / first) ** power for value in measured[name]}
        styles[guide] = "predicted", "-"
    x = f"{xlabel}; lines predicted, marks measured"
    figure, alt = lines(data, title, x, "peak of the step", unit="bytes", log="xy", styles=styles, labels="none")
    names = [name for name in data if not name.endswith(", predicted")]
    legend(figure.axes[0], *((name, styles[name][0]) for name in names))
    return figure, alt


def packing_figure(lengths: Sequence[int], documents: Sequence[Tensor], room: int) -> tuple[Figure, str]:
    """The first documents padded, the same packed, and what the tokens of a full row of many documents may see."""
    rows = first_fit(lengths, room)
    fill = [sum(lengths[number] for number in numbers) / room for numbers in rows]
    mask_row = max(range(len(rows)), key=lambda row: (fill[row] > 0.9, len(rows[row])))
    mask = pack(documents, [rows[mask_row]], room)["attention_mask"][0, 0]
    longest = max(lengths)
    wasted = 1 - sum(lengths) / longest / len(lengths)
    left = 1 - sum(lengths) / room / len(rows)
    figure, (padded, packed, seen) = panels(1, 3, height=3.2)
    figure.get_layout_engine().set(wspace=0.08)
    spans = [Span(row, 0, length, SERIES[row % 4]) for row, length in enumerate(lengths)]
    spans += [Span(row, length, longest, "grid") for row, length in enumerate(lengths)]
    title = f"{len(lengths)} documents,\npadded: {wasted:.0%} empty"
    timeline(spans, [""] * len(lengths), title, "positions", axes=padded)
    spans = []
    for row, numbers in enumerate(rows):
        ends = np.cumsum([0, *(lengths[number] for number in numbers)])
        spans += [Span(row, *stretch, SERIES[n % 4]) for n, stretch in zip(numbers, pairwise(ends), strict=True)]
        spans.append(Span(row, ends[-1], room, "grid"))
    names = [str(row + 1) for row in range(len(rows))]
    timeline(spans, names, f"The same,\npacked: {left:.0%} empty", "positions", axes=packed)
    seen.imshow(mask.numpy(), cmap="Purples", vmin=0, vmax=1.4, interpolation="nearest")
    seen.set(title=f"What row {mask_row + 1}'s\ntokens may see", xlabel="key", ylabel="query")
    padded.set_ylabel("documents")
    packed.set_ylabel("rows")
    legend(padded, ("a document, in any color", "second"), ("empty", "grid"), ("may see", "first"))
    figure.legends[0].legend_handles[-1].set_color(seen.images[0].to_rgba(1.0))
    for axes in figure.axes:
        axes.set_title(axes.get_title(loc="left"), fontsize=10)
        axes.grid(visible=False)
    return figure, (
        f"{len(lengths)} documents, padded to {longest}: {wasted:.0%} of positions are empty. Packed into {len(rows)} rows of "
        f"{room}: {left:.0%}. In a row's mask each document is a triangle of its own, in all {mask.float().mean():.0%} of the "
        f"mask of row {mask_row + 1}."
    )


def budgets_figure(steps: Mapping[float, Cost], plain: Cost) -> tuple[Figure, str]:
    """Saved bytes and the peak for each budget of the compiler, beside the step that is not compiled."""
    costs = {"not compiled": plain, **{f"budget {share:g}": cost for share, cost in steps.items()}}
    rows = {name: {"at the peak": [cost.peak], "saved for backward": [cost.saved]} for name, cost in costs.items()}
    last, lowest = min(steps), min(steps, key=lambda share: steps[share].peak)
    title = f"With budget {last:g} only {format_bytes(steps[last].saved)} are saved, but the peak is lowest at budget {lowest:g}"
    axes = panels(height=1.4 + 0.5 * len(rows))[1]
    figure, alt = dots(rows, title, "bytes of a step", unit="bytes", number=".3g", axes=axes)
    axes.set_xlim(left=-0.04 * axes.get_xlim()[1])
    return figure, alt


def host_figure(machines: Sequence[Machine], width: int, per_number: float) -> tuple[Figure, str]:
    """Seconds of one block's token against the length: moved to the host and back, what of it a step waits for, and computed
    again; simulated from rates."""
    lengths = np.geomspace(1024, 262_144, 90)
    styles = {
        "moved": ("communication", "-"),
        "moved, overlapped: time still waited": ("communication", ":"),
        "computed again": ("recomputed", "--"),
    }
    figure, grid = panels(1, len(machines), height=3.3, sharey=True, squeeze=False)
    texts = []
    for axes, machine in zip(grid[0], machines, strict=True):
        transfer, recomputing = host_or_again(width, lengths, machine, per_number)
        curves = (np.full_like(lengths, transfer), exposed_transfer(transfer, recomputing), recomputing)
        data = {name: list(zip(lengths, curve, strict=True)) for name, curve in zip(styles, curves, strict=True)}
        meet, early = (length_that_meets(width, machine, per_number, overlapped) for overlapped in (False, True))
        meet = float(f"{meet:.2g}")
        title = f"{machine.name}: not overlapped,\nmoving wins from about {meet:,.0f} tokens"
        y = "simulated time\nper token and block"
        lines(data, title, "tokens s", y, unit="seconds", log="x", styles=styles, labels="none", axes=axes)
        axes.axvline(meet, color=COLORS["warning"], linestyle=":")
        tick(axes, [1024, 8192, 65_536])
        overlapped = "and moving always takes less if transfers overlap"
        if early > lengths[0]:
            overlapped = f"{float(f'{early:.2g}'):,.0f} if transfers overlap"
        texts.append(f"{machine.name}: both take as long at about {meet:,.0f} tokens, {overlapped}")
    axes.set_ylim(0, 1.6 * max(axes.lines[0].get_ydata()[0] for axes in grid[0]))
    legend(axes)
    for axes in grid[0][1:]:
        axes.set_ylabel("")
    begins = f"Simulated from the makers' rates, {SHARE:.0%} of peak, width {width:,}"
    return figure, f"{begins}. {'; '.join(texts)}."


def play_long(
    length: int = 8192,
    vocabulary: int = 152_000,
    width: int = 2048,
    tokens: int = 1024,
    whole_logits: bool = True,
    whole_scores: bool = False,
    ranks: int = 1,
) -> tuple[Figure, str]:
    """What one text costs a model of 24 blocks in bf16 with every block checkpointed: bytes on each rank, kind by kind."""
    rank_tokens = length / ranks
    heads = width / 128
    scores = {"log-sum-exp (one per query)": ITEMSIZE * heads * rank_tokens}
    if whole_scores:
        scores = {"its scores": 5 * heads * rank_tokens**2}
    parts = {
        "boundaries of blocks": 24 * 2 * rank_tokens * width,
        "one block's activations": 34 * rank_tokens * width,
        **scores,
        "logits": ITEMSIZE * vocabulary * (3 * rank_tokens if whole_logits else 2 * min(tokens, rank_tokens)),
    }
    title = f"{format_bytes(round(sum(parts.values())))} a rank; the most: {max(parts, key=parts.get)}"
    rows = {name: {"activations": round(value)} for name, value in parts.items()}
    figure, alt = bars(rows, title, "bytes of a rank", show_legend=False)
    return figure, f"{length:,} tokens on {format_counted(ranks, 'rank')}, {vocabulary:,} words, width {width:,}. {alt}"
