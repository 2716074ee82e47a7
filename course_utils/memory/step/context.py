"""Context parallel: every rank has a part of each row's tokens, and keys and values go around the ring of all ranks."""

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.distributed.ring_attention import RingAttention, two_ends
from course_utils.errors import CourseError
from course_utils.memory.step.losses import causal_model
from course_utils.techniques.chunked_loss import IGNORED


def attend_on_ring(model: nn.Module) -> None:
    """Let a causal language model attend by `RingAttention`, to whose `places` each call must say; in place."""
    from transformers import AttentionInterface

    AttentionInterface.register("ring", _attend)
    causal_model(model, "context_parallel").set_attn_implementation("ring")


def part_of(batch: dict[str, Tensor], ranks: int) -> dict:
    """This rank's tokens of each row, one stretch from its beginning and one from its end, with the token after each as label."""
    if not dist.is_initialized() or dist.get_world_size() != ranks:
        raise CourseError(f"context_parallel={ranks} runs on {ranks} ranks; start them with distributed.launch.")
    if not isinstance(batch, dict) or set(batch) != {"input_ids", "labels"}:
        raise CourseError("context_parallel divides a batch of input_ids and labels; give no other.")
    ids, labels = batch["input_ids"], batch["labels"]
    places = two_ends(ids.shape[1], ranks)
    mine = places[dist.get_rank()]
    after = F.pad(labels, (0, 1), value=IGNORED)[:, 1:]
    own = {"input_ids": ids[:, mine], "labels": labels[:, mine], "shift_labels": after[:, mine]}
    return {**own, "position_ids": mine[None], "places": places}


def _attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask=None, scaling=None, **given):
    """What Transformers calls in place of its own attention, shapes (b, heads, s/ranks, width)."""
    usual = scaling is None or abs(scaling * query.shape[-1] ** 0.5 - 1) < 1e-6
    unknown = [name for name in ("sliding_window", "softcap", "s_aux") if given.get(name) is not None]
    if "places" not in given or mask is not None or unknown or not usual:
        raise CourseError(
            f"{type(module).__name__} does more than attend to all tokens before; leave context_parallel out."
        )
    heads = query.shape[1]
    parts = (x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1) for x in (query, key, value))
    out = RingAttention.apply(*(part.contiguous() for part in parts), given["places"], True)
    return out.transpose(1, 2).contiguous(), None
