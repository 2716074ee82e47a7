"""Memory that comes and goes inside one operator, where no dispatch mode can look: asked of the allocator, the operator alone."""

from functools import cache
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from course_utils.memory.allocator import CpuAllocator

aten = torch.ops.aten

_LARGE, _SMALL = 2**28, 2**24
"""Bytes of arguments up to which an operator is tried out. It really runs, even for a step that is only dry."""

_HIDES = dict.fromkeys((aten.convolution.default, aten.convolution_backward.default), _LARGE)
_HIDES_IN_HALF = dict.fromkeys((aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default), _SMALL)


class _Like(NamedTuple):
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


def peak_inside(operator, args: tuple, kwargs: dict) -> int:
    """Bytes allocated at the peak inside `operator(*args, **kwargs)` on the CPU, what it returns included; 0 if it hides nothing.

    Three kinds hide something there: convolution, whose library (oneDNN) keeps weights and pictures in an order of its own;
    in half precision products of matrices, for the same reason; and bitsandbytes' steps, which widen their states. What
    these take differs between processors, so it is measured: each runs once, on zeros, for each set of shapes. Those with
    more than 256 MiB of arguments (products: 16 MiB, beside which their blocks are small) are let be and answered with 0,
    and so are all while a profiler runs, since there can be only one.
    """
    if not _may_hide(operator) or torch.autograd._profiler_enabled():
        return 0
    leaves, structure = tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    on_cpu = all(tensor.device.type == "cpu" for tensor in tensors)
    if not on_cpu or sum(tensor.nbytes for tensor in tensors) > _largest(operator, tensors):
        return 0
    library = torch.get_num_threads(), torch.backends.mkldnn.enabled
    return _measured(operator, tuple(_described(leaf) for leaf in leaves), structure, library)


def _may_hide(operator) -> bool:
    """By its name alone, since this is asked of every operator of a step."""
    return operator.namespace == "bitsandbytes" or operator in _HIDES or operator in _HIDES_IN_HALF


def _largest(operator, tensors: list[torch.Tensor]) -> int:
    if operator.namespace == "bitsandbytes":
        return _LARGE
    in_half = bool(tensors) and tensors[0].itemsize == 2
    return _HIDES.get(operator, _HIDES_IN_HALF.get(operator, -1) if in_half else -1)


def _described(leaf):
    return _Like(tuple(leaf.shape), leaf.stride(), leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf


@cache
def _measured(operator, leaves: tuple, structure: TreeSpec, library: tuple) -> int:
    allocator = CpuAllocator()
    with _disable_current_modes(), torch.no_grad():
        filled = [_filled(leaf) if isinstance(leaf, _Like) else leaf for leaf in leaves]
        args, kwargs = tree_unflatten(filled, structure)
        with allocator.recording(), allocator.measured():
            operator(*args, **kwargs)
    return allocator.account().above_start


def _filled(like: _Like) -> torch.Tensor:
    return torch.empty_strided(like.shape, like.stride, dtype=like.dtype).zero_()
