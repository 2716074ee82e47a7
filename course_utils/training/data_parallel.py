"""Accumulation on several ranks: what `no_sync` saves on the wire, counted bucket by bucket."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from course_utils.training.accumulation import counted_terms

WAYS = {
    "all-reduce every time": (False, False),
    "no_sync": (True, True),
    "no_sync around backward only": (False, True),
}
"""By name: is forward inside `no_sync`, is backward. The last micro-batch of an update is never inside."""


@dataclass
class Reduced:
    """What a rank gave into all-reduces of gradients: `buckets` of them, `payload` bytes together."""

    buckets: int = 0
    payload: int = 0


def accumulate_on_rank(build: Callable[[], nn.Module], shares: Sequence[Sequence[dict]]) -> dict:
    """To be launched: the gradient of one update on this rank for each of `WAYS`, and what was reduced.

    `build` gives the same model on every rank; `shares[rank]` are its micro-batches. Returns `(gradients, Reduced)` by way;
    gradients by parameter's name, of the mean over all terms of all ranks.
    """
    return {name: _one_update(build(), shares[dist.get_rank()], *quiet) for name, quiet in WAYS.items()}


def _one_update(module: nn.Module, micro_batches: Sequence[dict], quiet_forward: bool, quiet_backward: bool) -> tuple:
    model, reduced = DistributedDataParallel(module), Reduced()
    model.register_comm_hook(reduced, _counted_all_reduce)
    weights = _weights(module, micro_batches)
    for number, (batch, weight) in enumerate(zip(micro_batches, weights, strict=True), start=1):
        more = number < len(micro_batches)
        with model.no_sync() if quiet_forward and more else nullcontext():
            loss = model(**batch).loss * weight
        with model.no_sync() if quiet_backward and more else nullcontext():
            loss.backward()
    return {name: p.grad for name, p in module.named_parameters()}, reduced


def _weights(module: nn.Module, micro_batches: Sequence[dict]) -> list[float]:
    """N·Tᵢ/ΣT, the sum over all N ranks: DDP divides the sum of their gradients by N."""
    counts = [counted_terms(module, batch) for batch in micro_batches]
    total = torch.tensor(sum(counts))
    dist.all_reduce(total)
    return [dist.get_world_size() * count / total.item() for count in counts]


def _counted_all_reduce(reduced: Reduced, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    reduced.buckets += 1
    reduced.payload += bucket.buffer().nbytes
    return allreduce_hook(dist.group.WORLD, bucket)
