"""A few seconds of measurement that find this machine's rates."""

import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.benchmark import Timer

from course_utils.distributed import launch
from course_utils.errors import CourseError
from course_utils.hardware import kernels
from course_utils.hardware.machine import Curve, Machine, Rates
from course_utils.hardware.operators import OperatorWatch
from course_utils.settings import settings
from course_utils.units import MiB

# Sides of the timed matrix products. Powers of two are avoided, since rows at such distances compete for the same lines of a
# cache, which rows of real layers seldom do. A GPU needs larger ones to be busy.
_SIDES = {"cpu": (96, 336, 1176), "cuda": (336, 1176, 4116)}
_FEW_ROWS = 64
_MANY_ROWS = {"cpu": 1024, "cuda": 8192}
# For the measurement between two processes.
_MESSAGE_BYTES = 8 * MiB
_MESSAGES = 7
_LAYOUTS = ("NN", "NT", "TN")


def calibrate(dtypes: Sequence[str] = ("float32", "bfloat16"), exchange: bool = True, refresh: bool = False) -> Machine:
    """Time this machine's matrix products, memory, operators and exchange between processes, in about five seconds.

    The device is that of the settings, and the number of threads is torch's current one. `dtypes` are names of torch's floating
    types in which matrix products are timed. With `exchange` the link is measured between two new processes, or between two GPUs
    if there are two; else it is NaN. The result is cached; `refresh` measures again. Warns when other programs keep the cores
    busy, since the rates are then only what those leave. Raises `CourseError` for an unknown dtype, and if a process for the
    exchange fails.
    """
    if refresh:
        _calibrate.cache_clear()
    if isinstance(dtypes, str):
        raise CourseError(f"dtypes takes several names; write [{dtypes!r}].")
    for name in dtypes:
        dtype = getattr(torch, name.removeprefix("torch."), None)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype.itemsize < 2:
            raise CourseError(f"{name!r} is no floating type that torch multiplies; give names such as bfloat16.")
    names = tuple(name.removeprefix("torch.") for name in dtypes)
    return _calibrate(names, exchange, settings().device, torch.get_num_threads())


@cache
def _calibrate(dtypes: tuple[str, ...], exchange: bool, device: torch.device, threads: int) -> Machine:
    _warn_if_busy(psutil.cpu_percent(0.2) / 100)
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        rates = _measure(dtypes, device)
        seconds_per_operator = _time_an_operator(device)
    has_two_gpus = on_gpu and torch.cuda.device_count() > 1
    link = float("nan")
    if exchange and has_two_gpus:
        link = _copy_bandwidth(torch.device("cuda", 0), torch.device("cuda", 1))
    elif exchange:
        link = process_bandwidth()
    cpu_name = f"this machine ({platform.machine()}, {psutil.cpu_count()} cores)"
    return Machine(
        name=torch.cuda.get_device_name(device) if on_gpu else cpu_name,
        source=f"calibrate() with torch {torch.__version__}, {threads} threads",
        memory=torch.cuda.get_device_properties(device).total_memory if on_gpu else psutil.virtual_memory().total,
        bandwidth=rates.in_place.points[-1][1],
        flop_rates={
            name: max(rate for layout in _LAYOUTS for _, rate in rates.products[f"mm {layout}", name].points)
            for name in dtypes
        },
        link=link,
        link_name="copy between GPUs" if has_two_gpus else "gloo between two processes",
        host_link=_copy_bandwidth(torch.device("cpu"), device),
        seconds_per_operator=seconds_per_operator,
        asynchronous=on_gpu,
        rates=rates,
    )


def _warn_if_busy(share: float) -> None:
    if share > 0.25:
        warnings.warn(
            f"Other programs use {share:.0%} of this machine's cores: the rates are what they leave, and seconds "
            "predicted from them may be several times too long. For the machine's own close them and measure again: by the same "
            "command, or in a notebook by hardware.calibrate(refresh=True).",
            stacklevel=4,
        )


@torch.no_grad()
def _measure(dtypes: Iterable[str], device: torch.device) -> Rates:
    """The rates on `device`. On a GPU only products have rates of their own, since bytes limit everything else."""
    products, row_shares = {}, {}
    for name in dtypes:
        dtype = getattr(torch, name)
        for layout in _LAYOUTS:
            rates = {side: _product_rates(layout, side, dtype, device) for side in _SIDES[device.type]}
            share = statistics.geometric_mean(with_few / rate for with_few, rate in rates.values())
            products[f"mm {layout}", name] = Curve(tuple((side, rate) for side, (_, rate) in rates.items()))
            row_shares[f"mm {layout}", name] = Curve(((_FEW_ROWS, share), (_MANY_ROWS[device.type], 1.0)))
        if device.type == "cpu":
            products |= {(kernel, name): curve for kernel, curve in _curves(kernels.products_on_cpu(dtype)).items()}
    streams = _curves(kernels.streams(device))
    if device.type != "cpu":
        return Rates(products, row_shares, **streams)
    streams |= _curves(kernels.new_memory())
    return Rates(products, row_shares, _curves(kernels.other_work_on_cpu()), **streams)


def _curves(timed: Iterable[kernels.Timed]) -> dict[str, Curve]:
    points: dict[str, list] = {}
    for name, size, work, call in timed:
        points.setdefault(name, []).append((size, work / seconds_of(call)))
    return {name: Curve(tuple(rates)) for name, rates in points.items()}


def _product_rates(layout: str, side: int, dtype: torch.dtype, device: torch.device) -> tuple[float, float]:
    """FLOP/s with few rows and with as many as in a training step; the former twice if the latter would take too long."""
    rows = _MANY_ROWS[device.type]
    seconds = seconds_of(kernels.matrix_product(layout, _FEW_ROWS, side, dtype, device))
    rate = 2 * _FEW_ROWS * side**2 / seconds
    if seconds * rows / _FEW_ROWS > 0.04:
        return rate, rate
    return rate, 2 * rows * side**2 / seconds_of(kernels.matrix_product(layout, rows, side, dtype, device))


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds of one call, as a median over some milliseconds (at the smoke scale over one), after calls that warm up."""
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=0.001 if settings().scale.name == "smoke" else 0.012).median


def _time_an_operator(device: torch.device) -> float:
    """Seconds per operator in a training step so small that it consists of calls alone: Python, dispatch, autograd, optimizer."""
    layers = (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(4))
    model = nn.Sequential(*layers).to(device)
    x = torch.ones(1, 4, 8, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with OperatorWatch() as watch:
        step()
    return seconds_of(step) / len(watch.operators)


def _copy_bandwidth(source: torch.device, target: torch.device) -> float:
    x, y = torch.ones(16 * MiB, device=source), torch.ones(16 * MiB, device=target)
    return x.nbytes / seconds_of(lambda: y.copy_(x))


def process_bandwidth(timeout: float = 60.0) -> float:
    """Bytes a second from one process to another, one way.

    Raises `CourseError` if one of them fails, or if they take more than `timeout` seconds; both are then ended.
    """
    try:
        return _MESSAGE_BYTES / launch(_exchange, 2, seconds=timeout)[0]
    except CourseError as error:
        raise CourseError(f"{error} Or leave the exchange out, with calibrate(exchange=False).") from error


def _exchange() -> float:
    message, answer = torch.ones(_MESSAGE_BYTES, dtype=torch.uint8), torch.ones(1)
    is_first = dist.get_rank() == 0
    seconds = []
    for _ in range(_MESSAGES + 1):
        start = time.perf_counter()
        (dist.send if is_first else dist.recv)(message, int(is_first))
        # Sending alone may return while the bytes still wait in a buffer; the answer says that they have come.
        (dist.recv if is_first else dist.send)(answer, int(is_first))
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])
