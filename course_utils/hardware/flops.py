"""Operations of torch's operators, with formulas for the products for which torch has none."""

from collections.abc import Callable
from functools import cache
from math import prod

import torch
from torch.utils import flop_counter


def count_flops() -> flop_counter.FlopCounterMode:
    """Returns torch's FLOP counter, a context, with formulas for the products for which torch has none."""
    formulas = {
        getattr(namespace, name): formula
        for namespace in (torch.ops.aten, torch.ops.bitsandbytes)
        for name, formula in _FORMULAS.items()
        if hasattr(namespace, name)
    }
    return flop_counter.FlopCounterMode(display=False, custom_mapping=formulas)


@cache
def flop_formula(packet: torch._ops.OpOverloadPacket) -> Callable[..., int] | None:
    """The function `formula(*args, out_val=result, **kwargs)` of an operator's FLOPs; None if it multiplies no matrices."""
    ours = _FORMULAS.get(packet.__name__)
    return flop_counter.shape_wrapper(ours) if ours else flop_counter.flop_registry.get(packet)


def _make_recurrent_formula(flops: int) -> Callable[..., int]:
    """The formula of a recurrent layer with this many FLOPs for each input row and each weight."""
    return lambda x, of_input, of_state, *_, **__: flops * prod(x[:-1]) * (prod(of_input) + prod(of_state))


def _count_grouped(first: torch.Size, second: torch.Size, *_, out_shape: torch.Size, **__) -> int:
    of_groups = len(second) == 2 < len(first)
    return 2 * (prod(out_shape) * first[-1] if of_groups else prod(first) * second[-1])


def _count_in_4_bits(x: torch.Size, *_, out_shape: torch.Size, **__) -> int:
    """A product with a weight that is passed as codes in 4 bits, so that its width is read from the result."""
    return 2 * prod(x) * out_shape[-1]


def _count_attention(query: torch.Size, key: torch.Size, value: torch.Size, *_, **__) -> int:
    """Two products: scores and values."""
    return 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _count_attention_backward(_: torch.Size, query: torch.Size, key: torch.Size, value: torch.Size, *__, **___) -> int:
    """Five products: scores once more, and the gradients of probabilities, values, queries and keys."""
    return 2 * prod(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1])


_ATTENTIONS = [
    f"_scaled_dot_product_{kind}"
    for kind in ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
]
# Formulas that torch lacks, or has (before PyTorch 2.13) only for attention in which no heads share a key.
_FORMULAS = {
    "mkldnn_rnn_layer": _make_recurrent_formula(2),
    "mkldnn_rnn_layer_backward": _make_recurrent_formula(4),
    "_grouped_mm": _count_grouped,
    "gemm_4bit": _count_in_4_bits,
    "gemv_4bit": _count_in_4_bits,
    **dict.fromkeys(_ATTENTIONS, _count_attention),
    **{f"{name}_backward": _count_attention_backward for name in _ATTENTIONS},
}
