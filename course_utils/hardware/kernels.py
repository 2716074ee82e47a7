"""The calls that a calibration times, with names as in `Work.kernel`."""

import mmap
from collections.abc import Callable, Iterator
from functools import partial
from math import sqrt

import torch

from course_utils.units import KiB, MiB

# Suffixes of kernels whose rate depends on the layout of their arguments.
CHANNELS_LAST_SUFFIX = ", channels last"  # all pictures are in this layout
MIXED_SUFFIX = ", mixed layouts"  # only some of the pictures are
STRIDED_SUFFIX = ", strided"  # a norm over elements that are not adjacent in memory
UNEVEN_SUFFIX = ", uneven"  # channels are no multiple of 16, the number of floats in a wide register

Timed = tuple[str, float, float, Callable[[], object]]
"""A kernel's name, the size to which the measured rate belongs, the work of one call (FLOPs, bytes or elements), and the call."""
_aten = torch.ops.aten
# From sizes well inside a core's cache to sizes well outside any cache.
_STREAM_BYTES = {
    "cpu": (64 * KiB, 1 * MiB, 8 * MiB, 32 * MiB, 128 * MiB),
    "cuda": (1 * MiB, 8 * MiB, 32 * MiB, 128 * MiB, 512 * MiB),
}
# Sizes around that from which glibc takes each block anew from the system, which then supplies its pages one by one.
_NEW_BYTES = (1 * MiB, 24 * MiB, 33 * MiB, 100 * MiB)


def matrix_product(layout: str, rows: int, side: int, dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    """A product (rows, side) by (side, side). `layout` has a letter for each factor: `N` as in memory, or `T` transposed."""
    left, right = (
        torch.randn(shape if letter == "N" else shape[::-1], device=device).to(dtype)
        for letter, shape in zip(layout, ((rows, side), (side, side)), strict=True)
    )
    left, right = (m if letter == "N" else m.t() for letter, m in zip(layout, (left, right), strict=True))
    return lambda: torch.mm(left, right)


def streams(device: torch.device) -> Iterator[Timed]:
    """Elementwise operators, from one tensor to another and in place, with their bytes and the names of fields of `Rates`."""
    for size in _STREAM_BYTES[device.type]:
        x, y = torch.ones(2, size // 8, device=device)
        yield "stream", size, size, partial(torch.mul, x, 1.5, out=y)
        yield "in_place", size, size, partial(x.mul_, 1.0)


def new_memory() -> Iterator[Timed]:
    """Allocations of new memory, with their bytes."""
    for size in _NEW_BYTES:
        yield "new_memory", size, size, partial(_touch_new_memory, size)


def products_on_cpu(dtype: torch.dtype) -> Iterator[Timed]:
    """The CPU's batched products, attention and convolutions of medium size, with their FLOPs."""
    q, k, v = torch.randn(3, 8, 4, 128, 32).to(dtype)
    flops = 2 * 32 * 128 * 128 * 32
    yield "bmm", 1, flops, partial(torch.bmm, q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2))
    attention = _aten._scaled_dot_product_flash_attention_for_cpu
    backward = _aten._scaled_dot_product_flash_attention_for_cpu_backward
    out, normalizer = attention(q, k, v)
    yield "attention", 1, 2 * flops, partial(attention, q, k, v)
    yield "attention_backward", 1, 5 * flops, partial(backward, q, q, k, v, out, normalizer, 0.0, False)
    for channels, image, evenness in ((24, 24, UNEVEN_SUFFIX), (16, 32, ""), (32, 24, ""), (96, 12, "")):
        for layout, ending in ((torch.contiguous_format, ""), (torch.channels_last, CHANNELS_LAST_SUFFIX)):
            picture = torch.randn(4, channels, image, image).to(dtype).contiguous(memory_format=layout)
            filters = torch.randn(channels, channels, 3, 3).to(dtype).contiguous(memory_format=layout)
            geometry = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
            forward = partial(_aten.convolution, picture, filters, *geometry)
            output_mask = [True, True, False]
            backward = partial(_aten.convolution_backward, picture, picture, filters, *geometry, output_mask)
            flops = 2 * picture.numel() * channels * 9
            side = sqrt(filters.numel())
            yield f"convolution{ending}{evenness}", side, flops, forward
            yield f"convolution_backward{ending}{evenness}", side, 2 * flops, backward


def other_work_on_cpu() -> Iterator[Timed]:
    """Operators that arithmetic or the order of access limits more than bytes, with their elements."""
    for shape in ((4096, 3, 3), (768, 768)):  # norms of columns, as in Adafactor
        x = torch.ones(shape)
        call = partial(torch.linalg.vector_norm, x, 2, -2)
        yield f"linalg_vector_norm{STRIDED_SUFFIX}", x.shape[-2], x.numel(), call
    rows = torch.rand(8192, 128) + 0.5
    for name, call in _elementwise_calls(rows):
        yield name, 1, rows.numel(), call


def _touch_new_memory(size: int) -> None:
    """Allocate `size` bytes and write to every page of them on all threads, so that the system has to supply the pages."""
    # Several elements a page, since torch would leave fewer to a single thread.
    torch.empty(size, dtype=torch.uint8)[:: mmap.PAGESIZE // 8].fill_(0)


def _elementwise_calls(rows: torch.Tensor) -> Iterator[tuple[str, Callable[[], object]]]:
    for name in ("exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "gelu", "silu", "sin", "cos", "erf"):
        yield name, partial(getattr(_aten, name), rows)
    for name in ("gelu_backward", "silu_backward"):
        yield name, partial(getattr(_aten, name), rows, rows)
    target = torch.empty_like(rows)
    yield "bernoulli", partial(target.bernoulli_, 0.9)
    yield "normal", target.normal_
    yield "clone", partial(rows.view(8, -1, 4, 32).transpose(1, 2).clone, memory_format=torch.contiguous_format)

    width = rows.shape[1]
    ones = torch.ones(width)
    answer = torch.log_softmax(rows, -1)
    norm = [width], ones, ones, 1e-5
    _, mean, scale = _aten.native_layer_norm(rows, *norm)
    yield "_softmax", partial(_aten._softmax, rows, -1, False)
    yield "_safe_softmax", partial(_aten._safe_softmax, rows, -1)
    yield "_log_softmax", partial(_aten._log_softmax, rows, -1, False)
    yield "_softmax_backward_data", partial(_aten._softmax_backward_data, rows, rows, -1, rows.dtype)
    yield "_log_softmax_backward_data", partial(_aten._log_softmax_backward_data, rows, answer, -1, rows.dtype)
    yield "native_layer_norm", partial(_aten.native_layer_norm, rows, *norm)
    backward = partial(_aten.native_layer_norm_backward, rows, rows, [width], mean, scale, ones, ones, [True] * 3)
    yield "native_layer_norm_backward", backward

    even, uneven = rows.view(-1, 64, 16, 16), rows[:6144].view(-1, 24, 16, 16)
    last = even.contiguous(memory_format=torch.channels_last)
    yield f"threshold_backward{MIXED_SUFFIX}", partial(_aten.threshold_backward, even, last, 0)
    for pictures, evenness in ((even, ""), (uneven, UNEVEN_SUFFIX)):
        for layout, ending in ((torch.contiguous_format, ""), (torch.channels_last, CHANNELS_LAST_SUFFIX)):
            x = pictures.contiguous(memory_format=layout)
            ones, zeros = torch.ones(x.shape[1]), torch.zeros(x.shape[1])
            call = partial(_aten.native_batch_norm, x, ones, zeros, zeros, ones, True, 0.0, 1e-5)
            yield f"native_batch_norm{ending}{evenness}", call
            statistics = (ones, zeros, ones, zeros, ones)
            call = partial(_aten.native_batch_norm_backward, x, x, *statistics, True, 1e-5, [True] * 3)
            yield f"native_batch_norm_backward{ending}{evenness}", call
            if pictures is even:
                window = ([2, 2], [2, 2], [0, 0], [1, 1], False)
                halved, indices = _aten.max_pool2d_with_indices(x, *window)
                yield f"max_pool2d_with_indices{ending}", partial(_aten.max_pool2d_with_indices, x, *window)
                call = partial(_aten.max_pool2d_with_indices_backward, halved, x, *window, indices)
                yield f"max_pool2d_with_indices_backward{ending}", call
