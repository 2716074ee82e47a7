"""This machine by measurement, in a few seconds."""

import platform
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product

import psutil
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils.errors import CourseError
from course_utils.hardware import kernels
from course_utils.hardware.exchange import process_bandwidth
from course_utils.hardware.machine import BY_ROWS, Curve, Machine
from course_utils.settings import settings
from course_utils.units import KiB, MiB

# Sides of the matrix products timed. No powers of two: rows that far apart fall on the same lines of a cache, which the
# widths of real layers seldom do. A GPU is only filled by larger ones.
_SIDES = {"cpu": (96, 336, 1176), "cuda": (336, 1176, 4116)}
_MANY_ROWS, _FEW_ROWS = {"cpu": 1024, "cuda": 8192}, 64
_LAYOUTS = ("NN", "NT", "TN")
# From well inside a core's cache to well outside any.
_STREAM_BYTES = {
    "cpu": (64 * KiB, 1 * MiB, 8 * MiB, 32 * MiB, 128 * MiB),
    "cuda": (1 * MiB, 8 * MiB, 32 * MiB, 128 * MiB, 512 * MiB),
}
# Around the size from which glibc takes blocks afresh from the system each time: their pages then come one by one.
_NEW_BYTES = (1 * MiB, 24 * MiB, 33 * MiB, 100 * MiB)
_ROUND_SECONDS = 0.004
_BUSY = 0.25


def calibrate(dtypes: Sequence[str] = ("float32", "bfloat16"), exchange: bool = True, again: bool = False) -> Machine:
    """Time this machine's matrix products, streams of memory, operators and processes: about five seconds, and two processes.

    The device is that of the settings, the number of threads torch's at the moment. `dtypes`: which matrix products to
    time, names of torch's floating types. With `exchange` the link is measured between two processes (where there are two
    GPUs: between these), else it is NaN. The answer is kept and given at once when the same process asks for it, unless it
    is to be measured `again`. Warns when other programs keep the cores busy: the rates are then what those leave, and with
    as many threads as cores that is little. Raises `CourseError` for an unknown dtype, and where a process for the exchange
    fails.
    """
    if again:
        _calibrated.cache_clear()
    if isinstance(dtypes, str):
        raise CourseError(f"dtypes takes several names; write [{dtypes!r}].")
    names = tuple(name_of(_floating(name)) for name in dtypes)
    return _calibrated(names, exchange, settings().device, torch.get_num_threads())


@cache
def _calibrated(dtypes: tuple[str, ...], exchange: bool, device: torch.device, threads: int) -> Machine:
    _warn_if_busy(psutil.cpu_percent(0.2) / 100)
    with torch.random.fork_rng(_used(device)):
        measured = _measured([getattr(torch, name) for name in dtypes], device)
        per_operator = _seconds_per_operator(device)
    return Machine(
        name=_device_name(device),
        source=f"calibrate() with torch {torch.__version__}, {threads} threads",
        memory=_memory(device),
        bandwidth=measured["stream in place"].points[-1][1],
        flops={name: _best(measured, name) for name in dtypes},
        link=_link(device) if exchange else float("nan"),
        link_name="copy between GPUs" if _has_peer(device) else "gloo between two processes",
        host_link=_copying(torch.device("cpu"), device),
        seconds_per_operator=per_operator,
        asynchronous=device.type == "cuda",
        measured=measured,
    )


@torch.no_grad()
def _measured(types: list[torch.dtype], device: torch.device) -> dict[str, Curve]:
    measured = _products(types, device) | _streams(device)
    if device.type == "cuda":  # bytes set the pace of everything else there
        return measured
    return measured | _new_memory(device) | _elementwise(device)


def _warn_if_busy(share: float) -> None:
    if share > _BUSY:
        warnings.warn(
            f"Other programs use {share:.0%} of this machine's cores: the rates are what they leave. "
            "Close them and call calibrate(again=True) for the machine's own.",
            stacklevel=4,
        )


def _floating(name: str) -> torch.dtype:
    dtype = getattr(torch, str(name).removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype.itemsize < 2:
        raise CourseError(
            f"{name!r} is no floating type that torch multiplies; give names such as float32 or bfloat16."
        )
    return dtype


def _products(types: list[torch.dtype], device: torch.device) -> dict[str, Curve]:
    found: dict[str, Curve] = {}
    for dtype, layout in product(types, _LAYOUTS):
        rates = {side: _product_rates(layout, side, dtype, device) for side in _SIDES[device.type]}
        share = statistics.geometric_mean(few / many for few, many in rates.values())
        name, many_rows = f"mm {layout} {name_of(dtype)}", _MANY_ROWS[device.type]
        found[name] = Curve(tuple((side, many) for side, (_, many) in rates.items()))
        found[f"{name}{BY_ROWS}"] = Curve(((_FEW_ROWS, share), (many_rows, 1.0)))
    points: dict[str, list] = {}
    for dtype in types if device.type == "cpu" else ():
        for kernel, side, flops, call in kernels.other_products(dtype, device):
            points.setdefault(f"{kernel} {name_of(dtype)}", []).append((side, flops / seconds_of(call, device)))
    return found | {name: Curve(tuple(rates)) for name, rates in points.items()}


def name_of(dtype: torch.dtype) -> str:
    """`"float32"` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def _product_rates(layout: str, side: int, dtype: torch.dtype, device: torch.device) -> tuple[float, float]:
    """FLOP/s with few rows, and with as many as a training step has; the same where these take too long to try."""
    few, many = _FEW_ROWS, _MANY_ROWS[device.type]
    seconds = seconds_of(kernels.matrix_product(layout, few, side, dtype, device), device)
    rate = 2 * few * side**2 / seconds
    if seconds * many / few > 10 * _ROUND_SECONDS:
        return rate, rate
    return rate, 2 * many * side**2 / seconds_of(kernels.matrix_product(layout, many, side, dtype, device), device)


def _best(measured: dict[str, Curve], dtype: str) -> float:
    return max(rate for layout in _LAYOUTS for _, rate in measured[f"mm {layout} {dtype}"].points)


def _streams(device: torch.device) -> dict[str, Curve]:
    points: dict[str, list] = {}
    for size in _STREAM_BYTES[device.type]:
        for name, call in kernels.streams(size, device).items():
            points.setdefault(name, []).append((size, size / seconds_of(call, device)))
    return {name: Curve(tuple(rates)) for name, rates in points.items()}


def _new_memory(device: torch.device) -> dict[str, Curve]:
    rates = ((size, size / seconds_of(kernels.new_memory(size, device), device)) for size in _NEW_BYTES)
    return {"new memory": Curve(tuple(rates))}


def _elementwise(device: torch.device) -> dict[str, Curve]:
    elements, calls = kernels.elementwise(device)
    norms = [(length, count / seconds_of(call, device)) for length, count, call in kernels.strided_norms(device)]
    rates = {name: Curve(((1, elements / seconds_of(call, device)),)) for name, call in calls.items()}
    return rates | {f"linalg_vector_norm{kernels.STRIDED}": Curve(tuple(norms))}


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call: median over three rounds, each of as many calls as fill some milliseconds.

    The first call warms up: it may load a library. Of calls that take long the second is the answer.
    """
    if _round(call, 1, device) > 10 * _ROUND_SECONDS and (seconds := _round(call, 1, device)) > 10 * _ROUND_SECONDS:
        return seconds
    calls = 1
    while (seconds := _round(call, calls, device)) < _ROUND_SECONDS:
        calls *= 4
    return statistics.median([seconds, *(_round(call, calls, device) for _ in range(2))]) / calls


def _round(call: Callable[[], object], calls: int, device: torch.device) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


class _Count(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls += 1
        return function(*args, **kwargs or {})


def _seconds_per_operator(device: torch.device) -> float:
    """Of a training step so small that it is nothing but calls: Python, dispatch, autograd, the optimizer's loop."""
    step = _tiny_step(device)
    step()
    with _Count() as count:
        step()
    return seconds_of(step, device) / count.calls


def _tiny_step(device: torch.device) -> Callable[[], None]:
    layers = (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(4))
    model, x = nn.Sequential(*layers).to(device), torch.ones(1, 4, 8, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _link(device: torch.device) -> float:
    if _has_peer(device):
        return _copying(torch.device("cuda", 0), torch.device("cuda", 1))
    return process_bandwidth()


def _has_peer(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.device_count() > 1


def _copying(source: torch.device, target: torch.device) -> float:
    x, y = torch.ones(16 * MiB, device=source), torch.ones(16 * MiB, device=target)
    return x.nbytes / seconds_of(lambda: y.copy_(x), target)


def _used(device: torch.device) -> list[torch.device]:
    return [device] if device.type == "cuda" else []


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return psutil.virtual_memory().total


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"this machine ({platform.machine()}, {psutil.cpu_count()} cores)"
