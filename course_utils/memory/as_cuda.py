"""What a GPU would do instead, on tensors that lie elsewhere: its operators for dropout and attention, its `foreach` default."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch.nn import functional as F

aten = torch.ops.aten


@contextmanager
def cuda_operators() -> Iterator[None]:
    """Replace what PyTorch computes differently on CUDA and on the CPU, where the difference is in what is kept.

    Dropout keeps one byte an element there (`native_dropout`), here a mask in the activation's dtype. Attention is one fused
    operator: FlashAttention (Dao et al. 2022) in half precision without a mask, else the memory-efficient one, and where
    several heads share a key and FlashAttention cannot be had, the plain products (`sdp_utils.cpp`). The functions
    themselves are replaced, since a `TorchFunctionMode` is off inside backward, where checkpointing computes forward again.
    """
    with (
        patch.object(F, "dropout", _dropout),
        patch.object(torch, "dropout", _dropout),
        patch.object(F, "scaled_dot_product_attention", _attention),
        patch.object(torch.autocast, "__init__", _autocast_for_cuda(torch.autocast.__init__)),
    ):
        yield


def prefer_foreach(optimizer: torch.optim.Optimizer) -> None:
    """Let torch's own optimizer work on all tensors at once, as it does on CUDA unless told otherwise."""
    for group in getattr(optimizer, "optimizer", optimizer).param_groups:
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True


def _dropout(input, p=0.5, training=True, inplace=False):
    return torch.native_dropout(input, p, True)[0] if training and p else input


def _attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    query, key, value = (_as_autocast_has_it(x) for x in (query, key, value))
    if attn_mask is None and query.dtype in (torch.float16, torch.bfloat16):  # fewer heads of keys need no copies here
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
    if enable_gqa:  # the memory-efficient operator refuses them
        options = {"scale": scale, "enable_gqa": True}
        return aten._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, **options)[0]
    mask = None if attn_mask is None else _as_bias(attn_mask, query, key)
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, torch.is_grad_enabled(), dropout_p, is_causal, scale=scale
    )[0]


def _autocast_for_cuda(on: Callable) -> Callable:
    """Switches autocast on for the device where the tensors lie; asked for CUDA without a GPU it would stay off."""

    def switched_on(self, device_type, dtype=None, *args, **kwargs):
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        on(self, device_type, dtype, *args, **kwargs)

    return switched_on


def _as_autocast_has_it(x: torch.Tensor) -> torch.Tensor:
    # Autocast knows the function that is replaced here, and not the operators behind it.
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def _as_bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The operator adds its mask to the scores, for every head, with rows whose length in memory is a multiple of 16."""
    if mask.dtype is torch.bool:
        mask = torch.where(mask, 0.0, float("-inf")).to(query.dtype)
    rows, columns = query.shape[-2], key.shape[-2]
    padded = F.pad(mask, (0, -columns % 16))[..., :columns]
    return padded.expand(*query.shape[:-2], rows, columns)
