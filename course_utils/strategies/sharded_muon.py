"""Muon for FSDP2: every matrix is orthogonalized once, by one rank, although no rank keeps it whole.

Muon (Jordan et al. 2024) orthogonalizes the momentum of a matrix, and that takes the whole matrix. `fully_shard` leaves each of
N ranks with some of its rows. Liu et al. 2025, *Muon is scalable for LLM training*, gather every matrix on every rank, and every
rank orthogonalizes all of them. Here every matrix has one owner. The ranks send it their rows, it orthogonalizes the matrix, and
it sends each rank its rows back.
"""

import math
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard

from course_utils.errors import CourseError


class ShardedMuon(torch.optim.Optimizer):
    """`torch.optim.Muon(params, lr, **options)` for matrices of which each rank has some rows; also for whole ones.

    `params` are matrices, or groups of them: DTensors that `fully_shard` divided by rows, or plain tensors, which every rank
    updates for itself. With replicas (HSDP), rows travel inside each replica only. The momentum stays on the shard. All ranks
    have a gradient of a matrix, or none has.

    torch orthogonalizes in bfloat16, so rows travel in bfloat16 both ways and nothing is lost. A matrix with r rows and c columns
    is M = 2 r c bytes. The owner's rows stay where they are. If N divides r, all ranks together send 2 (N - 1)/N · M bytes.
    Each of the five iterations takes 4 s² l + 2 s³ operations, where s is the shorter side and l the longer. They are done once
    and not N times.
    """

    def __init__(self, params: Iterable, lr: float = 1e-3, **options):
        if not hasattr(torch.optim, "Muon"):
            raise CourseError(f"torch {torch.__version__} has no Muon; install torch 2.9 or later.")
        super().__init__(params, torch.optim.Muon([torch.empty(1, 1)], lr, **options).defaults)
        for parameter in (p for group in self.param_groups for p in group["params"]):
            if parameter.ndim != 2:
                shape = tuple(parameter.shape)
                raise CourseError(f"Muon is for matrices; give the parameter of shape {shape} to another optimizer.")
            holders(parameter)

    @torch.no_grad()
    def step(self, closure=None):
        """Update the matrices that have a gradient; all ranks call it together. Gives back the closure's loss, or None."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        found = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    found.setdefault(holders(parameter), []).append((parameter, group))
        for ranks, matrices in found.items():
            for owned in in_rounds(matrices, dist.get_world_size(ranks) if ranks else 1):
                self._update(owned, ranks)
        return loss

    def _update(self, owned: Sequence[tuple | None], ranks: dist.ProcessGroup | None) -> None:
        """One round: `owned` has for each rank the (parameter, group) that it orthogonalizes, or None."""
        there = [pair for pair in owned if pair]
        leaving = [local(pair[0]).numel() if pair else 0 for pair in owned]
        own, coming = owned[dist.get_rank(ranks) if ranks else 0], [0] * len(owned)
        if own:
            coming = [rows * own[0].shape[1] for rows in rows_by_rank(own[0].shape[0], len(owned))]
        row = exchange(torch.cat([self._direction(*pair).flatten() for pair in there]), leaving, coming, ranks)
        if own:
            row = orthogonalize(row.view(own[0].shape), own[1]).flatten()
        row = exchange(row, coming, leaving, ranks)
        for (parameter, group), update in zip(there, row.split([local(p).numel() for p, _ in there]), strict=True):
            lr, shard = float(group["lr"]), local(parameter)
            shard.mul_(1 - lr * group["weight_decay"])
            shard.add_(update.view_as(shard), alpha=-lr * scale(parameter.shape, group["adjust_lr_fn"]))

    def _direction(self, parameter: torch.Tensor, group: dict) -> torch.Tensor:
        """What is orthogonalized, of this rank's rows."""
        if "momentum_buffer" not in self.state[parameter]:
            self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter.grad)
        gradient, momentum = local(parameter.grad), local(self.state[parameter]["momentum_buffer"])
        momentum.lerp_(gradient, 1 - group["momentum"])
        return (gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum).bfloat16()


def holders(matrix: torch.Tensor) -> dist.ProcessGroup | None:
    """The ranks that have its rows between them, or None where each has all."""
    parts = [(i, place) for i, place in enumerate(getattr(matrix, "placements", ())) if not place.is_replicate()]
    if not parts:
        return None
    if len(parts) > 1 or parts[0][1] != Shard(0):
        raise CourseError(
            f"ShardedMuon cannot gather a matrix placed as {matrix.placements}; shard it with `fully_shard`, by rows."
        )
    return matrix.device_mesh.get_group(parts[0][0])


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's rows, not a copy."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def rows_by_rank(rows: int, ranks: int) -> list[int]:
    """How `fully_shard` divides rows: ⌈rows/N⌉ to each rank, as long as there are any."""
    most = -(-rows // ranks)
    return [min(most, max(0, rows - rank * most)) for rank in range(ranks)]


def in_rounds(matrices: list[tuple], ranks: int) -> list[list[tuple | None]]:
    """Rounds that give every rank one matrix or none.

    The largest come first, and in a round the largest goes to the rank that has had the fewest elements. So no rank gets more
    than another by more than the largest matrix.
    """
    matrices = sorted(matrices, key=lambda pair: pair[0].numel(), reverse=True)
    load, rounds = [0] * ranks, []
    for first in range(0, len(matrices), ranks):
        fewest_first = sorted(range(ranks), key=load.__getitem__)
        rounds.append([None] * ranks)
        for rank, pair in zip(fewest_first, matrices[first : first + ranks], strict=False):
            rounds[-1][rank] = pair
            load[rank] += pair[0].numel()
    return rounds


def exchange(row: torch.Tensor, leaving: list[int], coming: list[int], ranks: dist.ProcessGroup | None) -> torch.Tensor:
    """Send each rank its part of `row`, and return what came, end to end; the lists have numbers of elements by rank."""
    if ranks is None:
        return row
    came = row.new_empty(sum(coming))
    dist.all_to_all_single(came, row, coming, leaving, group=ranks)
    return came


def orthogonalize(matrix: torch.Tensor, group: dict) -> torch.Tensor:
    """The Newton-Schulz iteration of torch's Muon, operation by operation."""
    a, b, c = group["ns_coefficients"]
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / x.norm().clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def scale(shape: torch.Size, rule: str | None) -> float:
    """How much faster than `lr` a matrix moves: by its shape, or as fast as with AdamW (Liu et al. 2025)."""
    return 0.2 * math.sqrt(max(shape)) if rule == "match_rms_adamw" else math.sqrt(max(1, shape[0] / shape[1]))
