"""Chapter 06: accumulation as it goes wrong, on several ranks, and its figures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from matplotlib.figure import Figure
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from course_utils.optim import AdamW
from course_utils.training import Accumulate, Callback, Run, num_loss_tokens
from course_utils.viz.labels import tick, tick_by_powers
from course_utils.viz.parts import draw_arrow, draw_box, draw_cell, hide_axes
from course_utils.viz.plots import add_title, legend, lines, panels
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
        self.begin_group()


class DropsLastGroup(Accumulate):
    """No update for what is left at the end of an epoch; its gradients wait, and join the next epoch or are lost."""

    def should_update(self, run: Run):
        return self.micro_batches >= self.k


class ForgetsToZero(Accumulate):
    """No `zero_grad`: every update gets the gradients of those before it once more."""

    _gradients = ()

    def before_update(self, run: Run):
        """Adds the gradients of the update before, which the loop has dropped."""
        super().before_update(run)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def update(self, run: Run, optimizer_step: Callable[[], object]):
        result = optimizer_step()
        self._gradients = [(p, p.grad) for p in run.model.parameters() if p.grad is not None]
        return result


class ZeroesEachTime(Accumulate):
    """`zero_grad` with every micro-batch: an update sees the last one only."""

    def forward(self, run: Run):
        """Drop what was added up so far."""
        run.optimizer.zero_grad()
        return nullcontext()


class ClipsEachTime(Accumulate):
    """The sum so far is clipped after every micro-batch, not once when it is whole.

    The sum is in units of T₁, the terms of the first micro-batch, and so about k times as long as the mean that it becomes.
    Its bound is therefore k times `max_norm`.
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
        is_due = super().should_update(run)
        if not is_due and run.schedule is not None:
            run.schedule.step()
        return is_due


NO_SYNC = {
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
    """To be launched: the gradient of one update on this rank for each case of `NO_SYNC`, and what was reduced.

    `build` makes the same model on every rank; `shares[rank]` are its micro-batches. Returns `(gradients, Reductions)` by
    name of the case; gradients by parameter's name, of the mean over all terms of all ranks.
    """
    return {name: _one_update(build(), shares[dist.get_rank()], *quiet) for name, quiet in NO_SYNC.items()}


def _one_update(
    module: nn.Module, micro_batches: Sequence[dict], quiet_forward: bool, quiet_backward: bool
) -> tuple[dict, Reductions]:
    model = DistributedDataParallel(module)
    reduced = Reductions()
    model.register_comm_hook(reduced, _count_all_reduce)
    weights = _loss_weights(module, micro_batches)
    for number, (batch, weight) in enumerate(zip(micro_batches, weights, strict=True), start=1):
        is_last = number == len(micro_batches)
        with model.no_sync() if quiet_forward and not is_last else nullcontext():
            loss = model(**batch).loss * weight
        with model.no_sync() if quiet_backward and not is_last else nullcontext():
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
    figure, axes = panels()
    counts = (3, 8, 5, 2)
    buffer, division = draw_box(axes, 15, 2, "G\nadd $T_i g_i$", "gradients", "ink"), draw_box(axes, 19, 2, "÷ Σ$T_i$")
    draw_arrow(axes, buffer, division)
    draw_arrow(axes, division, draw_box(axes, 23, 2, "clip,\nthen step"))
    for y, (number, count) in zip((3, 2, 1, 0), enumerate(counts, 1), strict=True):
        for index in range(max(counts)):
            draw_cell(axes, index, y, "first" if index < count else "grid", height=0.6)
        axes.text(-0.5, y + 0.3, f"micro-batch {number}", ha="right", va="center")
        draw_arrow(axes, draw_box(axes, 10.5, y + 0.3, f"$T_{number}\\,g_{number}$, $T_{number}$ = {count}"), buffer)
    hide_axes(axes, (-4.6, 25), (-0.4, 4.1))
    legend(axes, ("token that counts", "first"), ("padding", "grid"))
    text = "4 micro-batches with 3, 8, 5, 2 counted tokens add their gradients times these numbers to one buffer G. "
    text += "It is divided once, by all 18 tokens; then come clipping and one step."
    return add_title(figure, "Each micro-batch counts by its tokens; G is divided once", text)


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
    numbers = np.arange(1, len(counts) + 1)
    figure, (above, below) = panels(2, 1, height=4.2, sharex=True)
    above.bar(numbers, counts, color=COLORS["first"])
    above.set(ylabel="tokens\nthat count")
    below.bar(numbers, weights - 1, bottom=1, color=[COLORS["warning" if w > 1 else "third"] for w in weights])
    below.set(yscale="log", xlabel="micro-batch", ylabel="weight over the\nright one (log)", ylim=(0.3, 6))
    tick_by_powers(below, weights, 1)
    tick(below, numbers[:: max(1, len(counts) // 16)])
    order = "sorted by length" if by_length else "not sorted"
    title = f"{len(counts)} × {size} texts, {order}: with a mean of means the gradient is off by {error:.1%}"
    text = f"Micro-batches have {counts.min()} to {counts.max()} tokens that count. "
    text += f"A token weighs {weights.min():.2f} to {weights.max():.2f} times as it should."
    return add_title(figure, title, text)


def train_on_texts(
    model: nn.Module, ids: torch.Tensor, mask: torch.Tensor, held_out: tuple, by_text: bool, interval: int = 10
) -> dict[str, list[float]]:
    """One pass in updates from 32 texts; what it reports and what `held_out` texts say, after each `interval` updates.

    A token weighs as any other, or `by_text` as in a mean of means over micro-batches of one text: 1 / (32 T). Both means are
    taken of the last `interval` updates' losses (`reported` is the one that was minimized) and of the held-out loss.
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
        if len(losses) % interval == 0:
            with torch.no_grad():
                current = *(sum(losses[-interval:]) / interval), *_mean_losses(model, *held_out)
            for name, value in zip(names, current, strict=True):
                curves[name].append(value.item())
            curves["reported"].append(current[by_text].item())
    return curves


def _mean_losses(model: nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses of predicting each next token that is no padding: the mean over tokens, and that over the texts' own means."""
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    losses = nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    terms = mask[:, 1:].sum(1)
    sums = (losses * mask[:, 1:]).sum(1)
    return sums.sum() / terms.sum(), (sums / terms).mean()


def noise_by_groups(gradients: torch.Tensor, ks: Sequence[int]) -> list[float]:
    """The variance of the mean of k gradients over the squared length of the true one, for each k of `ks`.

    `gradients` are those of independent micro-batches, a row each. Of the squared length of their mean, what noise adds to it
    is taken off.
    """
    squared = gradients.mean(0).square().sum() - gradients.var(0).sum() / len(gradients)
    groups = {k: gradients.view(-1, k, gradients.shape[1]).mean(1) for k in ks}
    return [(group.var(0).sum() / squared).item() for group in groups.values()]


def accumulated_noise_figure(ks: Sequence[int], noise: Mapping[str, Sequence[Sequence[float]]]) -> tuple[Figure, str]:
    """The gradient's noise against the micro-batches of an update: by name a list over `ks` of each seed; lines are 1/k."""
    data = {name: dict(zip(ks, np.transpose(measured), strict=True)) for name, measured in noise.items()}
    predicted = {name: {k: by_k[ks[0]].mean() * ks[0] / k for k in ks} for name, by_k in data.items()}
    title = "Twice the micro-batches, half the noise"
    x, y = "k, micro-batches of an update (log)", "noise variance / squared\ngradient norm (log)"
    return lines(data, title, x, y, log="xy", predicted=predicted, labels="legend")
