"""A pretended GPU on a machine without one: CUDA's operators for dropout, softmax and attention, its autocast, its host.

The device is `cpu:0`, which PyTorch takes for a second CPU, so that autograd works; the host is `cpu`. Kernels that only CUDA has
are registered with PyTorch's dispatcher, below all Python code.
"""

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.autograd.function import FunctionCtx
from torch.library import Library
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_map_only

_aten = torch.ops.aten
GPU, HOST = torch.device("cpu", 0), torch.device("cpu")
_HALF_DTYPES = (torch.float16, torch.bfloat16)
# CUDA's autocast computes these in float32 and the CPU's does not (autocast_mode.h).
_FLOAT_INPUTS = (
    "layer_norm", "group_norm", "norm.Scalar", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar",
    "exp", "log", "log2", "log10", "log1p", "expm1", "rsqrt", "reciprocal", "softplus",
    "l1_loss", "mse_loss", "nll_loss", "kl_div", "cosine_similarity", "cosine_embedding_loss", "cdist", "dist",
)  # fmt: skip
# CUDA's autocast computes these in float32 too, but the kernel reads 16 bits and writes 32, so that the input is not copied.
_FLOAT_OUTPUT = ("sum", "sum.dim_IntList", "prod", "cumsum", "cumprod")
_NUMBER_CONVERTERS = (torch.tensor, torch.as_tensor, torch.asarray)


@contextmanager
def as_on_cuda() -> Iterator[None]:
    """A context in which new tensors are on `GPU`, `cuda` is a name of that device, and operators save what they save on CUDA."""
    library = Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():  # PyTorch warns that a kernel is replaced
            warnings.simplefilter("ignore")
            _register_kernels(library)
        with patch.object(torch.autocast, "__init__", _autocast_for_cuda(torch.autocast.__init__)), _OnGpu():
            yield
    finally:
        library._destroy()


def prefer_foreach(optimizer: torch.optim.Optimizer) -> None:
    """Set `foreach` in groups that leave it open: torch's own optimizers then update all tensors at once, as they do on CUDA."""
    for group in getattr(optimizer, "optimizer", optimizer).param_groups:
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True


class _OnGpu(TorchFunctionMode):
    """A mode in which the default device is `GPU`, and `cuda` is another name of it."""

    def __torch_function__(self, func: Callable, types: Collection[type], args: tuple = (), kwargs: dict | None = None):
        if func is torch.device:  # a library may store the device and use it after the dry run
            return func(*args, **(kwargs or {}))
        args = tuple(map(_translate_device, args))
        kwargs = {name: _translate_device(value) for name, value in (kwargs or {}).items()}
        if func is torch.Tensor.cuda:
            func, args = torch.Tensor.to, (args[0], GPU)
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.new_tensor:
            func, kwargs = torch.tensor, {"dtype": args[0].dtype, "device": args[0].device, **kwargs}
            args = args[1:]
        kwargs.pop("pin_memory", None)
        if func in _device_constructors() and kwargs.get("device") is None:
            kwargs["device"] = GPU
        if func is torch.Tensor.backward:
            with self:  # else the mode would be off inside backward, which may run a forward pass
                return _backward(*args, **kwargs)
        result = func(*args, **kwargs)
        if func in _NUMBER_CONVERTERS and kwargs.get("device") == GPU and result.device == HOST:
            # From Python's numbers PyTorch makes a real tensor first, and a real one cannot be on `cpu:0`.
            copy = torch.empty(result.shape, dtype=result.dtype, device=GPU).copy_(result.detach())
            return copy.requires_grad_(result.requires_grad)
        return result


def _backward(
    tensor: torch.Tensor,
    gradient: torch.Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: torch.Tensor | Sequence[torch.Tensor] | None = None,
) -> None:
    return torch.autograd.backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)


def _translate_device(value: object) -> object:
    name = value.type if isinstance(value, torch.device) else value
    return GPU if isinstance(name, str) and name.split(":")[0] == "cuda" else value


def _autocast_for_cuda(initialize: Callable) -> Callable:
    """An `__init__` for `torch.autocast` that, asked for CUDA, switches autocast on for `cpu`, the type of both devices here."""

    def switch_on(self: torch.autocast, device_type: str, dtype: torch.dtype | None = None, *args, **kwargs) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        initialize(self, device_type, dtype, *args, **kwargs)

    return switch_on


def _register_kernels(library: Library) -> None:
    for key in ("AutogradCPU", "CPU"):
        library.impl("dropout", _dropout, key)
        library.impl("scaled_dot_product_attention", _attention, key)
        library.impl("softmax.int", partial(_softmax, _aten._softmax), key)
        library.impl("log_softmax.int", partial(_softmax, _aten._log_softmax), key)
    preparations = dict.fromkeys(("softmax.int", "log_softmax.int", *_FLOAT_OUTPUT), _widen_output)
    for name, prepare in (preparations | dict.fromkeys(_FLOAT_INPUTS, _widen_inputs)).items():
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(_aten, packet), overload or "default")
        kernel = partial(_run_without_autocast, operator, prepare)
        library.impl(name, kernel, "AutocastCPU", allow_override=True)


def _run_without_autocast(operator: OpOverload, prepare: Callable, *args, **kwargs) -> torch.Tensor:
    args, kwargs = prepare(args, kwargs)
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        return operator(*args, **kwargs)


def _widen_inputs(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    return tree_map_only(torch.Tensor, lambda x: x.float() if x.dtype in _HALF_DTYPES else x, (args, kwargs))


def _widen_output(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    is_widened = args[0].dtype in _HALF_DTYPES and kwargs.get("dtype") is None
    return args, {**kwargs, "dtype": torch.float32} if is_widened else kwargs


class _SoftmaxInFloat(torch.autograd.Function):
    """CUDA's softmax of 16-bit numbers in float32, which saves only its result: forward widens numbers, backward narrows them."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        ctx.dtype = x.dtype
        result = torch.empty_like(x, dtype=torch.float32)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(ctx.saved_tensors[0], dtype=ctx.dtype)


def _softmax(operator: OpOverloadPacket, x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    if dtype is torch.float32 and x.dtype in _HALF_DTYPES:
        return _SoftmaxInFloat.apply(x)
    return operator(x if dtype is None else x.to(dtype), dim, False)


def _dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Dropout that saves a mask, as CUDA's does: there of one byte an element, here of the activation's dtype."""
    return torch.native_dropout(x, p, True)[0] if train and p else x


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention by the kernel that CUDA chooses for these arguments (`sdp_utils.cpp`)."""
    width = query.shape[-1]
    # FlashAttention (Dao et al. 2022).
    if attn_mask is None and query.dtype in _HALF_DTYPES and value.shape[-1] == width <= 256:
        return _aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
    # Plain products, since the memory-efficient operator refuses heads that share a key.
    if enable_gqa:
        plain = partial(_aten._scaled_dot_product_attention_math, scale=scale, enable_gqa=True)
        return plain(query, key, value, attn_mask, dropout_p, is_causal)[0]
    # The memory-efficient operator.
    mask = None if attn_mask is None else _make_bias(attn_mask, query, key)
    return _aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, torch.is_grad_enabled(), dropout_p, is_causal, scale=scale
    )[0]


def _make_bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The mask as the memory-efficient operator takes it: numbers to add to each head's scores, in rows padded to 16 numbers."""
    if mask.dtype is torch.bool:
        mask = torch.where(mask, 0.0, float("-inf")).to(query.dtype)
    rows, columns = query.shape[-2], key.shape[-2]
    padded = F.pad(mask, (0, -columns % 16))[..., :columns]
    return padded.expand(*query.shape[:-2], rows, columns)
