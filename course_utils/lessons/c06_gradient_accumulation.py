"""Chapter 06: accumulation as it goes wrong, on several ranks, and its figures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from course_utils.optim import AdamW
from course_utils.training import Accumulate, Callback, Run, num_loss_tokens
from course_utils.units import format_bytes
from course_utils.viz.parts import box, cell, drawing
from course_utils.viz.plots import Span, add_title, bars, legend, lines, note, panels, timeline
from course_utils.viz.style import COLORS

# Slips from published code or from practice, each as a difference to `Accumulate`.


class StepsAtBatchZero(Accumulate):
    """`if not i % k:` with i from 0: the first update has one micro-batch, and what comes last is left over."""

    def should_update(self, run: Run):
        return run.step % self.k == 0


class DividesByK(Accumulate):
    """A mean of means: `loss / k`, whatever the micro-batches hold and however many came."""

    def scale_loss(self, run: Run, loss: torch.Tensor):
        super().scale_loss(run, loss)
        return loss / self.k

    def before_update(self, run: Run):
        """Leaves the gradients as they are."""
        self._begin_group()


class DropsLastGroup(Accumulate):
    """No update for what is left at the end of an epoch; its gradients wait, and join the next epoch or are lost."""

    def should_update(self, run: Run):
        return self._micro_batches >= self.k


class ForgetsToZero(Accumulate):
    """No `zero_grad`: every update gets the gradients of those before it once more."""

    _left = ()

    def before_update(self, run: Run):
        """Adds the gradients of the update before, which the loop has dropped."""
        super().before_update(run)
        for parameter, gradient in self._left:
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def update(self, run: Run, optimizer_step: Callable[[], object]):
        made = optimizer_step()
        self._left = [(p, p.grad) for p in run.model.parameters() if p.grad is not None]
        return made


class ZeroesEachTime(Accumulate):
    """`zero_grad` with every micro-batch: an update sees the last one only."""

    def forward(self, run: Run):
        """Drop what was added up so far."""
        run.optimizer.zero_grad()
        return nullcontext()


class ClipsEachTime(Accumulate):
    """The sum so far is clipped after every micro-batch, not once when it is whole.

    The sum is in units of T₁, about k times the mean that it becomes; so the bound is k times `max_norm` until then.
    """

    def __init__(self, k: int, max_norm: float):
        super().__init__(k)
        self.max_norm = max_norm

    def should_update(self, run: Run):
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), self.k * self.max_norm)
        return super().should_update(run)


class SchedulesEachTime(Accumulate):
    """The schedule steps with every micro-batch: it is through after a k-th of the run."""

    def should_update(self, run: Run):
        """Step where the loop will not."""
        wanted = super().should_update(run)
        if not wanted and run.schedule is not None:
            run.schedule.step()
        return wanted


WAYS = {
    "all-reduce every time": (False, False),
    "no_sync": (True, True),
    "no_sync around forward only": (True, False),
    "no_sync around backward only": (False, True),
}
"""Whether forward and whether backward is inside `no_sync`. The last micro-batch of an update never is."""


class NotesNorms(Callback):
    """Notes the norm of each update's gradient, in `norms`. It comes after `Accumulate` and before `ClipGradients`."""

    def __init__(self):
        self.norms: list[float] = []

    def before_update(self, run: Run) -> None:
        """All parameters together, as clipping measures it."""
        gradients = [p.grad.flatten() for p in run.model.parameters() if p.grad is not None]
        self.norms.append(torch.cat(gradients).norm().item())


@dataclass
class Reductions:
    """A rank's all-reduces of gradients: `buckets` of them, `payload` bytes together."""

    buckets: int = 0
    payload: int = 0


def accumulate_on_rank(build: Callable[[], nn.Module], shares: Sequence[Sequence[dict]]) -> dict[str, tuple]:
    """To be launched: the gradient of one update on this rank for each of `WAYS`, and what was reduced.

    `build` makes the same model on every rank; `shares[rank]` are its micro-batches. Returns `(gradients, Reductions)` by way;
    gradients by parameter's name, of the mean over all terms of all ranks.
    """
    return {name: _one_update(build(), shares[dist.get_rank()], *quiet) for name, quiet in WAYS.items()}


def _one_update(
    module: nn.Module, micro_batches: Sequence[dict], quiet_forward: bool, quiet_backward: bool
) -> tuple[dict, Reductions]:
    model = DistributedDataParallel(module)
    reduced = Reductions()
    model.register_comm_hook(reduced, _count_all_reduce)
    weights = _loss_weights(module, micro_batches)
    for number, (batch, weight) in enumerate(zip(micro_batches, weights, strict=True), start=1):
        more = number < len(micro_batches)
        with model.no_sync() if quiet_forward and more else nullcontext():
            loss = model(**batch).loss * weight
        with model.no_sync() if quiet_backward and more else nullcontext():
            loss.backward()
    return {name: p.grad for name, p in module.named_parameters()}, reduced


def _loss_weights(module: nn.Module, micro_batches: Sequence[dict]) -> list[float]:
    """N·Tᵢ/ΣT, the sum over all N ranks: DDP divides the sum of their gradients by N."""
    counts = [num_loss_tokens(module, batch) for batch in micro_batches]
    total = torch.tensor(sum(counts))
    dist.all_reduce(total)
    return [dist.get_world_size() * count / total.item() for count in counts]


def _count_all_reduce(reduced: Reductions, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    reduced.buckets += 1
    reduced.payload += bucket.buffer().nbytes
    return allreduce_hook(dist.group.WORLD, bucket)


def accumulation_figure() -> tuple[Figure, str]:
    """The idea: micro-batches of different numbers of counted tokens add up in one G, which is divided once."""
    figure, axes = panels(height=3.4)
    counts = (3, 8, 5, 2)
    widest = max(counts)
    middle = len(counts) / 2 - 0.2
    for row, count in enumerate(counts):
        y = len(counts) - 1 - row
        for place in range(widest):
            cell(axes, place + 0.05, y, "first" if place < count else "grid", width=0.85, height=0.6)
        axes.text(-0.5, y + 0.3, f"micro-batch {row + 1}", ha="right", va="center")
        axes.text(widest + 0.4, y + 0.3, f"$T_{row + 1}$ = {count}", va="center")
        _draw_line(axes, (widest + 4.8, y + 0.3), (widest + 5.7, middle + 0.2 * (y + 0.3 - middle)))
        axes.text(widest + 3.7, y + 0.3, f"$T_{row + 1}\\,g_{row + 1}$", ha="center", va="center")
    stations = (("G\nadd $T_i g_i$", "gradients"), ("÷ Σ$T_i$", "ink"), ("clip,\nthen step", "ink"))
    x = widest + 7.1
    for place, (text, color) in enumerate(stations):
        box(axes, x + 4.1 * place, middle, text, color, ink="ink")
        if place:
            _draw_line(axes, (x - 2.4 + 4.1 * place, middle), (x - 1.5 + 4.1 * place, middle))
    drawing(axes, (-4.6, x + 10), (-0.4, len(counts) + 0.1), "Each micro-batch counts by its tokens; G is divided once")
    legend(axes, ("token that counts", "first"), ("padding", "grid"))
    listed = ", ".join(map(str, counts))
    return figure, (
        f"{len(counts)} micro-batches with {listed} counted tokens. Each adds its gradient times its tokens to one buffer G. "
        f"G is divided once, by all {sum(counts)} tokens, then clipped, and one step is made."
    )


def token_weights(counts: Sequence[int]) -> np.ndarray:
    """What a mean of means gives one token of each micro-batch, as a multiple of the equal weight: ΣT / (k Tᵢ)."""
    counts = np.asarray(counts, dtype=float)
    return counts.sum() / (len(counts) * counts)


@dataclass(frozen=True)
class TokenGradients:
    """Texts: the counted tokens of each, and for each two the inner product of the gradients of their summed losses."""

    counts: np.ndarray
    products: np.ndarray

    def mean_of_means(self, size: int, by_length: bool) -> tuple[np.ndarray, float]:
        """Tokens of each micro-batch of `size` texts, and how far a mean of means over them is from the right gradient.

        Relative to the right gradient's length. A text's gradient enters with the weight of its micro-batch's tokens, so that
        no further gradient is needed. `by_length` sorts the texts first, as is often done to save padding.
        """
        order = np.argsort(self.counts, kind="stable") if by_length else np.arange(len(self.counts))
        groups = self.counts[order].reshape(-1, size).sum(1)
        off = np.repeat(token_weights(groups) - 1, size)
        products = self.products[np.ix_(order, order)]
        return groups, float(np.sqrt(max(0.0, off @ products @ off) / products.sum()))


def token_gradients(model: nn.Module, texts: Iterable[dict]) -> TokenGradients:
    """`TokenGradients` of `texts`, batches of one text each."""
    counts, gradients = [], []
    parameters = list(model.parameters())
    for text in texts:
        text = {name: value.to(parameters[0].device) for name, value in text.items()}
        counts.append(num_loss_tokens(model, text))
        by_parameter = torch.autograd.grad(model(**text).loss * counts[-1], parameters)
        gradients.append(torch.cat([gradient.flatten() for gradient in by_parameter]).float())
    stacked = torch.stack(gradients)
    return TokenGradients(np.array(counts), (stacked @ stacked.T).double().cpu().numpy())


def play_weights(texts: TokenGradients, size: int = 8, by_length: bool = True) -> tuple[Figure, str]:
    """Play: tokens of each micro-batch of `size` texts, and how many times its right weight a mean of means gives each."""
    counts, error = texts.mean_of_means(size, by_length)
    weights = token_weights(counts)
    k = len(counts)
    figure, (above, below) = panels(2, 1, height=4.2, sharex=True)
    places = np.arange(1, k + 1)
    above.bar(places, counts, color=COLORS["first"])
    above.set(ylabel="tokens\nthat count", ylim=(0, None))
    below.bar(places, weights - 1, bottom=1, color=[COLORS["warning"] if w > 1 else COLORS["third"] for w in weights])
    below.axhline(1, color=COLORS["ink"], linewidth=1.4)
    below.set(yscale="log", ylim=(0.3, 6), xlabel="micro-batch", ylabel="weight over the\nright one (log)")
    below.set_yticks([0.5, 1, 2, 5], ["0.5", "1", "2", "5"])
    below.minorticks_off()
    below.set_xticks(places[:: max(1, k // 16)])
    order = "sorted by length" if by_length else "not sorted"
    title = f"{k} × {size} texts, {order}: a mean of means is off by {error:.0%} of the gradient"
    text = f"{k} micro-batches of {counts.min()} to {counts.max()} tokens; the gradient is off by {error:.1%}. "
    text += f"A mean of means weighs a token {weights.min():.2f} to {weights.max():.2f} times as it should."
    return add_title(figure, title, text)


def train_on_texts(
    model: nn.Module, ids: torch.Tensor, mask: torch.Tensor, held_out: tuple, by_text: bool, every: int = 10
) -> dict[str, list[float]]:
    """One pass in updates from 32 texts; what it reports and what `held_out` texts say, after each `every` updates.

    A token weighs as any other, or `by_text` as in a mean of means over micro-batches of one text: 1 / (32 T). Both means are
    taken of the last `every` updates' losses (`reported` is the one that was minimized) and of the held-out loss.
    """
    optimizer = AdamW(model.parameters(), lr=1e-3)
    losses = []
    names = "training, by token", "training, by text", "by token", "by text"
    curves = {name: [] for name in ("reported", *names)}
    for rows in torch.arange(len(ids)).split(32):
        means = _mean_losses(model, ids[rows], mask[rows])
        means[by_text].backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(torch.stack(means).detach())
        if len(losses) % every == 0:
            with torch.no_grad():
                both = *(sum(losses[-every:]) / every), *_mean_losses(model, *held_out)
            for name, value in zip(names, both, strict=True):
                curves[name].append(value.item())
            curves["reported"].append(both[by_text].item())
    return curves


def _mean_losses(model: nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses of predicting each next token that is no padding: the mean over tokens, and that over the texts' own means."""
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    losses = nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    sums, terms = (losses * mask[:, 1:]).sum(1), mask[:, 1:].sum(1)
    return sums.sum() / terms.sum(), (sums / terms).mean()


def two_curves_figure(runs: Mapping[str, Mapping[str, Sequence[float]]], every: int = 10) -> tuple[Figure, str]:
    """What each run of `train_on_texts` reports, and beside it the held-out loss of a token."""
    figure, axes = panels(1, 2, height=3.6, sharey=True)
    kinds = {"reported": "training loss, as reported", "by token": "held-out loss of a token"}
    texts = []
    by_token, by_text = runs
    losses = f"mean per token ({by_token})\nor per text ({by_text})", "mean per token"
    for panel, (kind, title), y, labels in zip(axes, kinds.items(), losses, ("none", "ends"), strict=True):
        data = {name: {every * (i + 1): loss for i, loss in enumerate(run[kind])} for name, run in runs.items()}
        x = "update, from 32 texts each"
        texts.append(lines(data, title, x, y, number=".2f", labels=labels, axes=panel)[1])
        panel.set_ylabel("loss")
    notes = ("mean per token", (8, 9)), ("mean per text", (-8, -11))
    for run, (text, offset) in zip(runs.values(), notes, strict=True):
        middle = len(run["reported"]) // 2
        here = every * (middle + 1), run["reported"][middle]
        note(axes[0], text, here, offset)
    title = "The mean of means reports a lower loss, and predicts held-out tokens about as well"
    return add_title(figure, title, *texts)


def groups_figure(updates: Mapping[str, Sequence[int]], batches: int) -> tuple[Figure, str]:
    """Which micro-batches went into which update: a row for each way, `updates` being the numbers of micro-batches in its
    updates, in order; what of `batches` is left over stays pale."""
    axes = panels(height=0.9 + 0.9 * len(updates))[1]
    spans = []
    styles = {"left over": ("grid", "")}
    for row, sizes in enumerate(updates.values()):
        kinds = [f"update {number + 1}" for number, size in enumerate(sizes) for _ in range(size)]
        kinds += ["left over"] * (batches - len(kinds))
        spans += [Span(row, place + 0.06, place + 0.94, kind) for place, kind in enumerate(kinds)]
        for number, kind in enumerate(dict.fromkeys(kinds)):
            styles.setdefault(kind, (("first", "second", "third")[number % 3], ""))
            middle = kinds.index(kind) + kinds.count(kind) / 2
            axes.text(middle, row + 0.5, kind, ha="center", va="center", fontsize=8)
    *_, (name, sizes) = updates.items()
    title = f"“{name}”: the first update gets {sizes[0]} of {batches} micro-batches, and {batches - sum(sizes)} is left over"
    figure, alt = timeline(spans, list(updates), title, "micro-batch, counted from 0", styles=styles, axes=axes)
    axes.set_xticks([place + 0.5 for place in range(batches)], range(batches))
    axes.grid(visible=False)
    axes.tick_params(length=0)
    return figure, alt


def noise_by_groups(gradients: torch.Tensor, ks: Sequence[int]) -> list[float]:
    """The variance of the mean of k gradients over the squared length of the true one, for each k of `ks`.

    `gradients` are those of independent micro-batches, a row each. Of the squared length of their mean, what noise adds to it
    is taken off.
    """
    squared = gradients.mean(0).square().sum() - gradients.var(0).sum() / len(gradients)
    groups = {k: gradients.view(-1, k, gradients.shape[1]).mean(1) for k in ks}
    return [(group.var(0).sum() / squared).item() for group in groups.values()]


def accumulated_noise_figure(ks: Sequence[int], noise: Mapping[str, Sequence[Sequence[float]]]) -> tuple[Figure, str]:
    """The gradient's noise against the micro-batches of an update: by name a list over `ks` of each seed, mean and range."""
    data = {name: dict(zip(ks, zip(*measured, strict=True), strict=True)) for name, measured in noise.items()}
    styles = dict(zip(data, (("first", "o"), ("second", "D")), strict=False))
    title = "Twice the micro-batches, half the noise; training raises it relative to the gradient"
    x, y = "k, micro-batches of an update (log)", "noise variance / squared\ngradient norm (log)"
    figure, alt = lines(data, title, x, y, log="xy", styles=styles)
    for line in list(figure.axes[0].lines)[: len(data)]:
        first = line.get_ydata()[0]
        figure.axes[0].plot(ks, [first * ks[0] / k for k in ks], color=line.get_color(), linewidth=1)
        middle = len(ks) // 2
        place = ks[middle], first * ks[0] / ks[middle]
        note(figure.axes[0], "as 1/k", place, (4, 9))
    return figure, f"{alt} Thin lines fall as 1/k."


def peaks_figure(predicted: Mapping[str, int], dry: Mapping[str, int]) -> tuple[Figure, str]:
    """Peaks of a step by the way its batch is cut: a bar in closed form, a mark from the run, and the sizes in words."""
    pencil = "closed form: P + O + A (+ G)"
    rows = {name: {pencil: size} for name, size in predicted.items()}
    notes = {name: f"dry run: {format_bytes(size)}" for name, size in dry.items()}
    title = "A second micro-batch adds one G here; further ones add nothing"
    colors = {pencil: "predicted"}
    return bars(rows, title, "peak of a step", colors=colors, notes=notes, marks=("dry run", dry))


def _draw_line(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": "-|>", "color": COLORS["ink"], "linewidth": 1.2})
