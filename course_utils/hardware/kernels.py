"""The pieces of work that a calibration times, under the names that `Work.kernel` uses."""

import mmap
from collections.abc import Callable
from functools import partial
from math import sqrt

import torch

CHANNELS_LAST = ", channels last"
"""Ends the name of a kernel that is given pictures in that layout."""
MIXED, STRIDED, UNEVEN = ", mixed layouts", ", strided", ", uneven"
"""End the name of a kernel that is given pictures in both layouts, of a norm over elements that do not lie side by side, and of
a kernel whose channels 16 does not divide, which is as many floats as a wide register holds."""

Kernels = dict[str, Callable[[], object]]
Product = tuple[str, float, int, Callable[[], object]]  # kernel, side as in `Work`, FLOPs, call
_aten = torch.ops.aten


def matrix_product(layout: str, rows: int, side: int, dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    """A product (rows, side) by (side, side); `layout` says of each factor whether it lies in memory as it is or transposed."""
    left, right = (
        torch.randn(shape if letter == "N" else shape[::-1], device=device).to(dtype)
        for letter, shape in zip(layout, ((rows, side), (side, side)), strict=True)
    )
    left, right = (m if letter == "N" else m.t() for letter, m in zip(layout, (left, right), strict=True))
    return lambda: torch.mm(left, right)


def other_products(dtype: torch.dtype, device: torch.device) -> list[Product]:
    """Batched products, attention and convolutions of middling sizes, as the CPU's operators."""
    heads, length, width = (8, 4), 128, 32
    q, k, v = torch.randn(3, *heads, length, width, device=device).to(dtype)
    left, right = q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2)
    one_product = 2 * 32 * length * length * width
    found: list[Product] = [("bmm", 1, one_product, partial(torch.bmm, left, right))]
    found += _attention_on_cpu(q, k, v, one_product)
    for channels, image, evenness in ((24, 24, UNEVEN), (16, 32, ""), (32, 24, ""), (96, 12, "")):
        found += _convolutions(channels, image, dtype, device, torch.contiguous_format, evenness)
        found += _convolutions(channels, image, dtype, device, torch.channels_last, CHANNELS_LAST + evenness)
    return found


def _convolutions(channels, image, dtype, device, layout: torch.memory_format, ending: str) -> list[Product]:
    picture = torch.randn(4, channels, image, image, device=device).to(dtype).contiguous(memory_format=layout)
    filters = torch.randn(channels, channels, 3, 3, device=device).to(dtype).contiguous(memory_format=layout)
    flops, geometry = 2 * picture.numel() * channels * 9, ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    forward = partial(_aten.convolution, picture, filters, None, *geometry)
    backward = partial(_aten.convolution_backward, picture, picture, filters, None, *geometry, [True, True, False])
    side = sqrt(filters.numel())
    return [
        (f"convolution{ending}", side, flops, forward),
        (f"convolution_backward{ending}", side, 2 * flops, backward),
    ]


def _attention_on_cpu(q, k, v, one_product: int) -> list[Product]:
    attention = _aten._scaled_dot_product_flash_attention_for_cpu
    backward = _aten._scaled_dot_product_flash_attention_for_cpu_backward
    out, normalizer = attention(q, k, v)
    return [
        ("attention", 1, 2 * one_product, partial(attention, q, k, v)),
        ("attention_backward", 1, 5 * one_product, partial(backward, q, q, k, v, out, normalizer, 0.0, False)),
    ]


def streams(moved: int, device: torch.device) -> Kernels:
    """Elementwise operators that read and write `moved` bytes together: from one tensor to another, and in place."""
    x, y = torch.ones(2, moved // 8, device=device)
    return {"stream": lambda: torch.mul(x, 1.5, out=y), "stream in place": lambda: x.mul_(1.0)}


def new_memory(size: int, device: torch.device) -> Callable[[], object]:
    """Allocates `size` bytes and touches every page of them, on all threads: what the system's part in it costs."""
    # Of fewer elements torch would leave the work to one thread, where operators share it out.
    return lambda: torch.empty(size, dtype=torch.uint8, device=device)[:: mmap.PAGESIZE // 8].fill_(0)


def elementwise(device: torch.device) -> tuple[int, Kernels]:
    """Operators whose pace arithmetic sets, or order of access, more than bytes: the elements each is given, and the calls."""
    rows = torch.rand(8192, 128, device=device) + 0.5
    pictures = rows.view(-1, 64, 16, 16)
    other = pictures.contiguous(memory_format=torch.channels_last)
    pooling = _pooling(pictures, "") | _pooling(other, CHANNELS_LAST)
    uneven = rows[:6144].view(-1, 24, 16, 16)
    for ending, x in (("", uneven), (CHANNELS_LAST, uneven.contiguous(memory_format=torch.channels_last))):
        pooling |= _batch_norm(x, ending + UNEVEN)
    mixed = {f"threshold_backward{MIXED}": lambda: _aten.threshold_backward(pictures, other, 0)}
    return rows.numel(), _transcendental(rows) | _normalizing(rows) | pooling | _moving(rows) | mixed


def strided_norms(device: torch.device) -> list[tuple[int, int, Callable[[], object]]]:
    """Norms of columns, as Adafactor takes them: elements behind each result, elements in all, and the call."""
    given = (torch.ones(shape, device=device) for shape in ((4096, 3, 3), (768, 768)))
    return [(x.shape[-2], x.numel(), partial(torch.linalg.vector_norm, x, 2, -2)) for x in given]


def _transcendental(x: torch.Tensor) -> Kernels:
    one_to_one = {
        name: getattr(_aten, name) for name in ("exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "gelu", "silu")
    }
    one_to_one |= {name: getattr(_aten, name) for name in ("sin", "cos", "erf")}
    kernels = {name: partial(call, x) for name, call in one_to_one.items()}
    backward = {name: getattr(_aten, f"{name}_backward") for name in ("gelu", "silu")}
    kernels |= {f"{name}_backward": partial(call, x, x) for name, call in backward.items()}
    target = torch.empty_like(x)
    return kernels | {"bernoulli": lambda: target.bernoulli_(0.9), "normal": lambda: target.normal_()}


def _normalizing(rows: torch.Tensor) -> Kernels:
    width, ones = rows.shape[1], torch.ones(rows.shape[1], device=rows.device)
    _, mean, scale = _aten.native_layer_norm(rows, [width], ones, ones, 1e-5)
    answer = torch.log_softmax(rows, -1)
    return {
        "_softmax": lambda: _aten._softmax(rows, -1, False),
        "_safe_softmax": lambda: _aten._safe_softmax(rows, -1),
        "_log_softmax": lambda: _aten._log_softmax(rows, -1, False),
        "_softmax_backward_data": lambda: _aten._softmax_backward_data(rows, rows, -1, rows.dtype),
        "_log_softmax_backward_data": lambda: _aten._log_softmax_backward_data(rows, answer, -1, rows.dtype),
        "native_layer_norm": lambda: _aten.native_layer_norm(rows, [width], ones, ones, 1e-5),
        "native_layer_norm_backward": lambda: _aten.native_layer_norm_backward(
            rows, rows, [width], mean, scale, ones, ones, [True, True, True]
        ),
    }


def _pooling(x: torch.Tensor, ending: str) -> Kernels:
    geometry = ([2, 2], [2, 2], [0, 0], [1, 1], False)
    halved, chosen = _aten.max_pool2d_with_indices(x, *geometry)
    kernels = {
        "max_pool2d_with_indices": partial(_aten.max_pool2d_with_indices, x, *geometry),
        "max_pool2d_with_indices_backward": partial(
            _aten.max_pool2d_with_indices_backward, halved, x, *geometry, chosen
        ),
    }
    return {name + ending: call for name, call in kernels.items()} | _batch_norm(x, ending)


def _batch_norm(x: torch.Tensor, ending: str) -> Kernels:
    one, zero = x.new_ones(x.shape[1]), x.new_zeros(x.shape[1])
    backward = partial(
        _aten.native_batch_norm_backward, x, x, one, zero, one, zero, one, True, 1e-5, [True, True, True]
    )
    return {
        f"native_batch_norm{ending}": partial(_aten.native_batch_norm, x, one, zero, zero, one, True, 0.0, 1e-5),
        f"native_batch_norm_backward{ending}": backward,
    }


def _moving(rows: torch.Tensor) -> Kernels:
    heads = rows.view(8, -1, 4, 32).transpose(1, 2)
    return {"clone": partial(heads.clone, memory_format=torch.contiguous_format)}
