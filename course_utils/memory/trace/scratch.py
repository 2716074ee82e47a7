"""Memory that an operator on a CPU takes inside, unseen by dispatch modes: it is run alone, and the allocator is read."""

from contextlib import suppress
from functools import cache
from math import nan
from typing import NamedTuple

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from course_utils.hardware.operators import list_tensors
from course_utils.memory.trace.allocator import CpuAllocator

_aten = torch.ops.aten

# The most bytes of arguments with which an operator is tried out. It really runs, even for a dry run.
_MAX_BYTES, _MAX_PRODUCT_BYTES = 2**28, 2**24

_RECURRENT_LAYERS = (_aten.mkldnn_rnn_layer.default, _aten.mkldnn_rnn_layer_backward.default)
_SVD = _aten._linalg_svd.default
_LIBRARY_CALLS = (_aten.convolution.default, _aten.convolution_backward.default, *_RECURRENT_LAYERS, _SVD)
_SUM = _aten.add_.Tensor
_PRODUCTS = (_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default)


class _Shape(NamedTuple):
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def make(self, value: float) -> torch.Tensor:
        return torch.empty_strided(*self[:2], dtype=self.dtype).fill_(value)


class Footprint(NamedTuple):
    """Bytes at the peak inside an operator, with what it returns, and the bytes of storage behind each returned tensor."""

    peak: int
    returned: tuple[int, ...]


def peak_inside(operator: OpOverload, args: tuple, kwargs: dict, result: object = ()) -> int:
    """Bytes allocated at the peak inside `operator(*args, **kwargs)` on the CPU, what it returns included; 0 if it hides nothing.

    Six kinds of operators hide some: convolutions and recurrent layers, whose library (oneDNN) reorders weights and pictures;
    singular values, for which LAPACK copies the matrix and has a work space; products of matrices in half precision, or of an
    expanded matrix, which are copied first; bitsandbytes' steps, which widen their states; and sums in place with a tensor of
    another dtype, which is widened first. How much differs between processors, so all but the last are measured. The result is 0
    with more than 256 MiB of arguments and `result` (for products 16 MiB, beside which their copies are small), and while a
    profiler runs.
    """
    if operator is _SUM:
        addend = args[1]
        return args[0].itemsize * addend.numel() if getattr(addend, "ndim", 0) and addend.dtype != args[0].dtype else 0
    if operator in _PRODUCTS and args[0].itemsize != 2 and not any(map(_is_expanded, args)):
        return 0  # before all other tests, since a step asks some thousand times
    tensors = list_tensors((args, kwargs, result))
    if any(tensor.layout is not torch.strided for tensor in tensors):
        return 0
    returned = sum(tensor.nbytes for tensor in list_tensors(result))
    footprint = try_out(operator, args, kwargs, _size_limit(operator, tensors) - returned)
    return footprint.peak if footprint else 0


def try_out(operator: OpOverload, args: tuple, kwargs: dict, largest: int = _MAX_BYTES) -> Footprint | None:
    """The footprint of `operator`, from one run on zeros for each set of shapes.

    None on another device than the CPU, with more than `largest` bytes of arguments, and while a profiler runs.
    """
    flat = not kwargs and all(isinstance(leaf, torch.Tensor) for leaf in args)
    leaves, structure = (args, None) if flat else tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    on_cpu = all(tensor.device.type == "cpu" for tensor in tensors)
    if not on_cpu or sum(t.nbytes for t in tensors) > largest or torch.autograd._profiler_enabled():
        return None
    library = torch.get_num_threads(), torch.backends.mkldnn.enabled, torch.is_grad_enabled()
    return _measure(operator, tuple(_describe_argument(leaf) for leaf in leaves), structure, library)


def may_hide(operator: OpOverload) -> bool:
    """Whether an operator is of a kind that may allocate memory that no dispatch mode sees."""
    return operator.namespace == "bitsandbytes" or operator in (*_LIBRARY_CALLS, *_PRODUCTS, _SUM)


def _size_limit(operator: OpOverload, tensors: list[torch.Tensor]) -> int:
    if operator.namespace == "bitsandbytes":
        return _MAX_BYTES
    if operator in _PRODUCTS:
        return _MAX_PRODUCT_BYTES if tensors[0].itemsize == 2 else _MAX_BYTES
    # oneDNN has no gradient of a convolution in float16; what PyTorch does instead takes seconds for a few MiB.
    if operator is _aten.convolution_backward.default and tensors[0].dtype == torch.float16:
        return 0
    return _MAX_BYTES if operator in _LIBRARY_CALLS else -1


def _is_expanded(tensor: torch.Tensor) -> bool:
    steps = tensor.stride()
    return 0 in steps and any(step == 0 and side > 1 for step, side in zip(steps, tensor.shape, strict=True))


def _describe_argument(leaf: object) -> object:
    if isinstance(leaf, list):
        return tuple(leaf)
    return _Shape(tuple(leaf.shape), leaf.stride(), leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf


@cache
def _measure(operator: OpOverload, leaves: tuple, structure: TreeSpec | None, library: tuple) -> Footprint:
    allocator = CpuAllocator()
    # On NaN, LAPACK allocates all that it needs and then stops, which saves time.
    value = nan if operator is _SVD else 0
    with _disable_current_modes():  # autograd stays as it is: a recurrent layer has a workspace only where it records
        tensors = [leaf.make(value) if isinstance(leaf, _Shape) else leaf for leaf in leaves]
        args, kwargs = (tensors, {}) if structure is None else tree_unflatten(tensors, structure)
        result = ()
        with allocator.recording(), allocator.measured(), suppress(torch.linalg.LinAlgError):
            result = operator(*args, **kwargs)
        returned = tuple(tensor.untyped_storage().nbytes() for tensor in list_tensors(result))
    return Footprint(allocator.account().above_start, returned)
