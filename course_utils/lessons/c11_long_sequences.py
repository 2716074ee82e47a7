"""Chapter 11: what a loss, attention or a compiled step takes, attention on a ring of real ranks, and the chapter's figures."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from course_utils.distributed import counted
from course_utils.distributed.ring_attention import RingAttention, stretches, two_ends
from course_utils.hardware import Machine, count_flops
from course_utils.lessons.shared import account_of
from course_utils.memory import distinct_bytes
from course_utils.techniques.attention import attention, visible_tiles
from course_utils.techniques.packing import first_fit, lay_out, may_see
from course_utils.training.gradients import relative_error
from course_utils.units import format_bytes, format_counted
from course_utils.viz.plots import add_title, bars, legend, panels, panels_of_lines
from course_utils.viz.style import COLORS

ITEMSIZE = 4  # bytes of a float32 number


@dataclass(frozen=True)
class Cost:
    """What a function and its backward pass took."""

    peak: int  # bytes above what was there before
    saved: int  # bytes, by forward
    seconds: float  # the quickest of a few


def measure_cost(function: Callable[..., Tensor], *inputs, parameters: Sequence[Tensor] = (), times: int = 2) -> Cost:
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


def count_operations(function: Callable[..., Tensor], *inputs) -> int:
    """Floating point operations of the matrix products of `function(*inputs)` and its backward pass."""
    with count_flops() as counter:
        function(*inputs).sum().backward()
    return counter.get_total_flops()


def largest_error(function: Callable, right: Callable, *inputs) -> float:
    """The largest relative difference of the gradients of two functions of the same inputs."""
    learned = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    actual, expected = (torch.autograd.grad(call(*inputs), learned) for call in (function, right))
    return max(map(relative_error, actual, expected))


def random_head(
    tokens: int, width: int, vocabulary: int, device: torch.device, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, an output layer's weight, and labels of which a tenth are ignored."""
    generator = torch.Generator().manual_seed(vocabulary)
    x, w = (torch.randn(n, width, generator=generator).to(device, dtype).requires_grad_() for n in (tokens, vocabulary))
    labels = torch.randint(vocabulary, (tokens,), generator=generator).to(device)
    labels[::10] = -100
    return x, w, labels


def random_qkv(
    length: int, device: torch.device, heads: int = 4, width: int = 32, dtype: torch.dtype = torch.float32
) -> list[nn.Parameter]:
    """Queries, keys and values of one text, (1, heads, length, width)."""
    generator = torch.Generator().manual_seed(length)
    tensors = (torch.randn(1, heads, length, width, generator=generator) for _ in range(3))
    return [nn.Parameter(tensor.to(device, dtype)) for tensor in tensors]


def count_tiles(length: int, is_causal: bool) -> int:
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


def split_into_batches(packed: Mapping[str, Tensor], size: int, device: torch.device) -> list[dict[str, Tensor]]:
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


def time_epochs(model: nn.Module, batches: Mapping[str, Sequence[dict]]) -> dict[str, float]:
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

SEQUENCE_CUTS = {"stretches": stretches, "two ends": two_ends}


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
    for name, share in SEQUENCE_CUTS.items():
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

PEAK_SHARE = 0.5
"""Share of a machine's peak in bfloat16 that computing reaches."""


def host_or_again(
    width: float, length: np.ndarray | float, machine: Machine, per_number: float
) -> tuple[float, np.ndarray | float]:
    """Seconds for one token of one block: its saved bytes to the host and back; its forward pass again.

    `per_number` bytes are saved for each number of the width; a forward pass takes 24h² + 4sh operations a token (Korthikanti
    et al. 2022, appendix A, without the backward pass).
    """
    operations = 24 * width**2 + 4 * length * width
    return 2 * per_number * width / machine.host_link, operations / (PEAK_SHARE * machine.flop_rates["bfloat16"])


def exposed_transfer(transfer: np.ndarray | float, recomputing: np.ndarray | float) -> np.ndarray:
    """Seconds of `transfer` that the step waits for: out during forward, back during a backward pass of twice its time."""
    return np.maximum(transfer / 2 - recomputing, 0) + np.maximum(transfer / 2 - 2 * recomputing, 0)


def length_that_meets(width: int, machine: Machine, per_number: float, overlapped: bool = False) -> float:
    """The length from which moving takes less time than computing again: (24h + 4s) / rate = 2 · per_number / link.

    `overlapped` counts only what the step waits for, so that the work need only take as long as half of one way. Below 0
    moving always takes less.
    """
    each_way = per_number * PEAK_SHARE * machine.flop_rates["bfloat16"] / machine.host_link
    return ((0.5 if overlapped else 2) * each_way - 24 * width) / 4


def host_curves(width: int, machine: Machine, per_number: float) -> dict[str, list[tuple[float, float]]]:
    """Seconds of a block's token against the length: moved to the host and back, what of it a step waits for, computed again."""
    lengths = np.geomspace(1024, 131_072, 90)
    transfer, recomputing = host_or_again(width, lengths, machine, per_number)
    curves = {
        "moved": np.full_like(lengths, transfer),
        "moved, overlapped: time still waited": exposed_transfer(transfer, recomputing),
        "computed again": recomputing,
    }
    return {name: list(zip(lengths, curve, strict=True)) for name, curve in curves.items()}


@contextmanager
def activation_budget(of_saved: float):
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
    colors = ListedColormap([COLORS[name] for name in ("paper", "grid", "activations", "gradients")])
    style = {"cmap": colors, "vmin": 0, "vmax": 3, "edgecolors": COLORS["grid"]}
    in_tiles = np.zeros((6, 12))
    in_tiles[:2] = in_tiles[2:4, :6] = 1
    in_tiles[2:4, 6:9] = 2
    figure, (left, right) = panels(1, 2, height=3.0, sharey=True, width_ratios=(12, 17))
    left.pcolormesh(np.full((6, 12), 2), **style)
    right.pcolormesh(in_tiles, **style)
    right.pcolormesh([13, 15, 17], range(7), [[3, 3]] * 4 + [[0, 0]] * 2, **style)
    left.set(title="Whole: every number of a row waits", ylabel="tokens, or queries", yticks=[], ylim=(6, 0))
    left.set_xticks([6], ["words, or keys"])
    right.set_title("In tiles: a row keeps its largest number and its total")
    right.set_xticks([6, 14, 16], ["words, or keys", "largest", "total"])
    for axes in (left, right):
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
    legend(left, ("in memory", "activations"), ("kept of each row", "gradients"), ("computed before", "grid"))
    text = "Left, a whole matrix is in memory. Right, only one tile of 2 by 3 is; rows keep their largest number and total."
    return figure, text


def packing_figure(documents: Sequence[Tensor], room: int) -> tuple[Figure, str]:
    """The documents padded, the same packed into rows of `room` tokens, and the mask of the first of these rows."""
    lengths = [len(document) for document in documents]
    layouts = {"padded": ([[n] for n in range(len(lengths))], max(lengths)), "packed": (first_fit(lengths, room), room)}
    figure, grid = panels(1, 3, height=3.2)
    for axes, (name, (rows, places)) in zip(grid, layouts.items(), strict=False):
        columns, owner = lay_out(documents, rows, places)
        title = f"{len(rows)} rows, {name}: {(owner < 0).float().mean():.0%} empty"
        figure.panel_texts.append(f"{title}.")
        positions = np.ma.masked_where(owner.numpy() < 0, columns["position_ids"].numpy())
        axes.imshow(positions, cmap="Blues", vmin=-30, aspect="auto", interpolation="nearest")
        axes.hlines(np.arange(len(rows)) + 0.5, -0.5, places - 0.5, colors=COLORS["paper"])
        axes.set(title=title, xlabel="place", ylabel="row", facecolor=COLORS["grid"])
    grid[2].imshow(may_see(owner)[0, 0].numpy(), cmap="Blues", vmax=1.4, aspect="auto", interpolation="nearest")
    grid[2].set(title="What row 0's tokens may see", xlabel="key", ylabel="query")
    for axes in grid:
        axes.grid(visible=False)
    legend(grid[0], ("a document, darker towards its end", "first"), ("empty", "grid"))
    text = "The mask of a packed row has a triangle for each of its documents."
    return add_title(figure, f"{len(lengths)} documents, packed into rows of {room} tokens", text)


def host_figure(machines: Sequence[Machine], width: int, per_number: float) -> tuple[Figure, str]:
    """The curves of `host_curves` for each machine, and the length at which both ways take as long."""
    data = {}
    for machine in machines:
        length = float(f"{length_that_meets(width, machine, per_number):.2g}")
        data[f"{machine.name}: equal at about {length:,.0f} tokens"] = host_curves(width, machine, per_number)
    title = "For long texts moving takes less time than computing again"
    y = "simulated time\nper token and block"
    return panels_of_lines(data, title, "tokens s", y, unit="seconds", log="x", ticks=(1024, 8192, 65_536))


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
    title = f"{format_bytes(sum(parts.values()))} a rank; the most: {max(parts, key=parts.get)}"
    figure, alt = bars(parts, title, "bytes of a rank")
    return figure, f"{length:,} tokens on {format_counted(ranks, 'rank')}, {vocabulary:,} words, width {width:,}. {alt}"
