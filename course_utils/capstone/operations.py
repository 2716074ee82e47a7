"""Operations counted while a training runs: products by torch's formulas, 2·m·k·n for (m, k) @ (k, n); anything else, sum or
softmax, as one for each element of the largest tensor it reads or writes; views are free. So `(a[:, :, None] * b).sum(1)` costs
what `a @ b` costs.
"""

from collections import Counter
from collections.abc import Callable, Collection
from functools import cache
from math import inf

import torch
from torch._ops import OpOverload

from course_utils.errors import CourseError
from course_utils.hardware import flop_formula
from course_utils.hardware.operators import EagerMode

_NAMES = """copy, to_copy, clone, fill, zero, zeros, zeros_like, ones, ones_like, full, full_like, new_zeros, new_ones,
new_full, scalar_tensor, empty, empty_like, empty_strided, new_empty, new_empty_strided, arange, linspace, eye, tril, triu, cat,
stack, repeat, roll, flip, lift_fresh, constant_pad_nd, resize, set, slice_backward, select_backward, bernoulli, normal,
uniform, random, rand, randn, randn_like, randint, randperm, native_dropout, native_dropout_backward, sum, mean, var, std,
var_mean, max, min, amax, amin, aminmax, argmax, argmin, cumsum, cumprod, prod, logsumexp, any, all, norm, linalg_vector_norm,
sort, topk, equal, local_scalar_dense, embedding, embedding_dense_backward, index, index_select, index_put, index_put_impl,
index_add, gather, scatter, scatter_add, masked_fill, nonzero, softmax, log_softmax, softmax_backward_data,
log_softmax_backward_data, native_layer_norm, native_layer_norm_backward, nll_loss_forward, nll_loss_backward, mse_loss,
mse_loss_backward, fused_adam, fused_adamw, fused_sgd, amp_foreach_non_finite_check_and_unscale, amp_update_scale,
quantize_blockwise, dequantize_blockwise, quantize_4bit, dequantize_4bit, optimizer_update_8bit_blockwise,
optimizer_update_32bit"""
_BY_ELEMENTS = frozenset(_NAMES.replace(",", "").split())
_SILENT = ("device", "_record_function_enter_new", "_record_function_exit", "_record_function_exit._RecordFunction")


class Operations(EagerMode):
    """A context that counts `total` and `by_operator`; raises `CourseError` for what it cannot count, and beyond `limit`."""

    def __init__(self, limit: float = inf):
        super().__init__()
        self.limit, self.by_operator, self.total = limit, Counter(), 0

    def __torch_dispatch__(
        self, func: OpOverload, types: Collection[type], args: tuple = (), kwargs: dict | None = None
    ) -> object:
        kwargs, count = kwargs or {}, _formula_of(func)
        if count is None:  # made of other operators, as `linear` is without autograd
            with self:
                answer = func.decompose(*args, **kwargs)
            if answer is NotImplemented:
                raise CourseError(f"{func} cannot be counted; use matrix products (@), elementwise operators and sums.")
            return answer
        answer = func(*args, **kwargs)
        self.by_operator[func.overloadpacket.__name__] += (operations := count(args, kwargs, answer))
        self.total += operations
        if self.total > self.limit:
            raise CourseError(f"Stopped after {self.total:,} operations: {self.limit:,} are the most.")
        return answer


@cache
def _formula_of(func: OpOverload) -> Callable[..., int] | None:
    """A function that counts an operator from its arguments and its result; None where there is no way."""
    packet, name = func.overloadpacket, func.overloadpacket.__name__
    if formula := flop_formula(packet):
        return lambda args, kwargs, answer: formula(*args, **kwargs, out_val=answer)
    ours = func.namespace in ("aten", "bitsandbytes")
    if (func.is_view or name == "_unsafe_view") and ours or name in _SILENT:
        return lambda *_: 0
    plain = name.removeprefix("_foreach_").strip("_")
    single = getattr(torch.ops.aten, plain, packet)  # `add` of `_foreach_add_`
    pointwise = any(torch.Tag.pointwise in getattr(single, overload).tags for overload in single.overloads())
    if ours and (plain in _BY_ELEMENTS or pointwise):
        return lambda args, kwargs, answer: max(map(_count_elements, (answer, *args, *kwargs.values())))
    return None


def _count_elements(value: object) -> int:
    if isinstance(value, list | tuple):
        return sum(map(_count_elements, value))
    return value.numel() if isinstance(value, torch.Tensor) else 0
