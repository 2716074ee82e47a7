"""A model over several ranks, as the real libraries shard it, and context parallelism.

In context parallelism every rank has a part of each row's tokens, and keys and values go around the ring of all ranks.
"""

import inspect
from collections.abc import Callable, Sequence
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

from course_utils.distributed.ring_attention import RingAttention, two_ends
from course_utils.errors import CourseError
from course_utils.memory.step.losses import causal_model, next_tokens
from course_utils.memory.step.optimizers import OptimizerFactory
from course_utils.memory.step.recipe import Recipe
from course_utils.techniques.segments import blocks_of
from course_utils.units import MiB


def shard(model: nn.Module, recipe: Recipe) -> None:
    """Apply FSDP2 (`fully_shard`) to every block and to the whole model, in place."""
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy

    reshards = recipe.zero_stage == 3
    policy = CPUOffloadPolicy() if recipe.offload and reshards else OffloadPolicy()
    options = {"reshard_after_forward": reshards, "offload_policy": policy}
    with patch("torch.distributed.fsdp._fully_shard._fsdp_param._chunk_with_empty", _Chunks):
        shard_blocks(model, "cpu", recipe.replicas, is_half=recipe.precision == "autocast", **options)


def shard_blocks(model: nn.Module, device: str, replicas: int = 1, *, is_half: bool = False, **options) -> None:
    """Apply `fully_shard` to every block and to the whole model, in place, over all ranks or in `replicas` groups of them.

    With `is_half` parameters are gathered in bfloat16, and gradients are summed in float32. `options` are `fully_shard`'s.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    ranks = dist.get_world_size()
    shape = (replicas, ranks // replicas) if replicas > 1 else (ranks,)
    mesh = init_device_mesh(device, shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if is_half else MixedPrecisionPolicy()
    for unit in [*units_of(model), model]:
        fully_shard(unit, mesh=mesh, mp_policy=policy, **options)


class _Chunks:
    """The chunks of a tensor, as by `torch.chunk`, but each made when it is asked for, since a rank needs two of perhaps 512."""

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int):
        self.tensor, self.dim = tensor, dim
        self.size = -(-tensor.size(dim) // num_chunks)

    def __getitem__(self, index: int) -> torch.Tensor:
        begin, end = (min(chunks * self.size, self.tensor.size(self.dim)) for chunks in (index, index + 1))
        return self.tensor.narrow(self.dim, begin, end - begin) if end > begin else self.tensor.new_empty(0)


def units_of(model: nn.Module) -> list[nn.Module]:
    """A transformer's blocks: the modules that Transformers says must not be split, else the longest list of modules."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in names] or list(blocks_of(model))


def share_state(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """`ZeroRedundancyOptimizer` with the parameters and options of `optimizer`; raises `CourseError` unless it is torch's own."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    kind = type(optimizer)
    if not kind.__module__.startswith("torch.optim"):
        raise CourseError(f"ZeroRedundancyOptimizer wraps torch's optimizers, not {kind.__name__}; choose one of them.")
    parameters = inspect.signature(kind).parameters  # AdamW keeps an option of Adam that it does not take
    options = {name: value for name, value in optimizer.defaults.items() if name in parameters}
    return ZeroRedundancyOptimizer([p for group in optimizer.param_groups for p in group["params"]], kind, **options)


class Buckets:
    """DDP's copies of the gradients in flat buckets, one of 1 MiB and then of 25 MiB, in the order of backward (Li et al. 2020).

    DDP's C++ code cannot work on fake tensors, so its memory is modeled here; tests compare it with real ranks.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]):
        self.groups: list[list[nn.Parameter]] = [[]]
        limit = MiB
        for parameter in reversed(parameters):
            self.groups[-1].append(parameter)
            if sum(p.nbytes for p in self.groups[-1]) >= limit:
                self.groups.append([])
                limit = 25 * MiB
        self.groups = [group for group in self.groups if group]
        self.flat = [group[0].new_empty(sum(p.numel() for p in group)) for group in self.groups]

    def average(self) -> None:
        """Replace the gradients by their sums over the ranks, through copies in flat buckets."""
        for flat, group in zip(self.flat, self.groups, strict=True):
            pieces = flat.split([p.numel() for p in group])
            copies = [piece.view_as(p) for piece, p in zip(pieces, group, strict=True)]
            for copy, parameter in zip(copies, group, strict=True):
                copy.copy_(parameter.grad)
            dist.all_reduce(flat)
            for copy, parameter in zip(copies, group, strict=True):
                parameter.grad.copy_(copy)


class HostUpdate(torch.optim.Optimizer):
    """Keeps a copy of the parameters and the optimizer's state on the host, and updates there (ZeRO-Offload, Ren et al. 2021)."""

    def __init__(self, parameters: list[nn.Parameter], make_optimizer: OptimizerFactory):
        self.host = [nn.Parameter(parameter.detach().cpu()) for parameter in parameters]
        self.inner = make_optimizer(self.host)
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Callable[[], torch.Tensor] | None = None) -> None:
        """Copy the gradients to the host, update there, and copy the parameters back."""
        parameters = self.param_groups[0]["params"]
        for parameter, copy in zip(parameters, self.host, strict=True):
            copy.grad, parameter.grad = None if parameter.grad is None else parameter.grad.cpu(), None
        self.inner.step()
        self.inner.zero_grad()
        for parameter, copy in zip(parameters, self.host, strict=True):
            parameter.copy_(copy)


def attend_on_ring(model: nn.Module) -> None:
    """Let a causal language model attend by `RingAttention`, in place; each call of it then needs the tokens' `places`."""
    from transformers import AttentionInterface

    AttentionInterface.register("ring", _attend)
    causal_model(model, "context_parallel").set_attn_implementation("ring")


def part_of(batch: dict[str, torch.Tensor], ranks: int) -> dict:
    """This rank's tokens of each row, one stretch from either end, each with the token after it as its label.

    Raises `CourseError` outside a group of `ranks`, and for a batch of anything but `input_ids` and `labels`.
    """
    if not dist.is_initialized() or dist.get_world_size() != ranks:
        raise CourseError(f"context_parallel={ranks} runs on {ranks} ranks; start them with distributed.launch.")
    if not isinstance(batch, dict) or set(batch) != {"input_ids", "labels"}:
        raise CourseError("context_parallel divides a batch of input_ids and labels; give no other.")
    ids, labels = batch["input_ids"], batch["labels"]
    places = two_ends(ids.shape[1], ranks)
    positions = places[dist.get_rank()]
    after = next_tokens(labels)
    part = {"input_ids": ids[:, positions], "labels": labels[:, positions], "shift_labels": after[:, positions]}
    return {**part, "position_ids": positions[None], "places": places}


def _attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    scaling: float | None = None,
    **extras,
) -> tuple[torch.Tensor, None]:
    """Attention as Transformers calls it, with queries, keys and values (b, heads, s/ranks, width).

    Raises `CourseError` for a model whose attention is not plain causal attention.
    """
    is_usual_scale = scaling is None or abs(scaling * query.shape[-1] ** 0.5 - 1) < 1e-6
    unknown = [name for name in ("sliding_window", "softcap", "s_aux") if extras.get(name) is not None]
    if "places" not in extras or mask is not None or unknown or not is_usual_scale:
        kind = type(module).__name__
        raise CourseError(f"{kind} does more than attend to all tokens before; leave context_parallel out.")
    heads = query.shape[1]
    parts = (x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1) for x in (query, key, value))
    out = RingAttention.apply(*(part.contiguous() for part in parts), extras["places"], True)
    return out.transpose(1, 2).contiguous(), None
