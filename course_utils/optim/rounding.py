"""Small experiments on what 8 bits do to an average."""

from collections.abc import Callable

import torch

from course_utils.optim import quantization
from course_utils.optim.quantization import dequantize, dynamic_codes, quantize


def relative_error(values: torch.Tensor, codes: torch.Tensor, block_size: int) -> torch.Tensor:
    """|read back − written| / |written| for each value that is not 0, flat; 1 means that the value came back as 0."""
    back = dequantize(*quantize(values, codes, block_size), codes, block_size)
    written = values != 0
    return (back - values).abs()[written] / values.abs()[written]


def spread_values(decades: float, count: int = 2**14, outliers: float = 0.0, seed: int = 0) -> torch.Tensor:
    """Squares of normal numbers whose scales are spread evenly (in the logarithm) over `decades` decades.

    A share `outliers` of them is 10⁶ times as large, as v is where a gradient is a thousand times its neighbors'.
    """
    generator = torch.Generator().manual_seed(seed)
    scales = 10 ** (-decades * torch.rand(count, generator=generator))
    values = scales * torch.randn(count, generator=generator) ** 2
    return torch.where(torch.rand(count, generator=generator) < outliers, 1e6 * values, values)


def follow(
    start: float, target: float, steps: int, beta: float, rounding: Callable | None, copies: int = 1
) -> torch.Tensor:
    """An average that starts at `start` and is fed `target`: its mean over `copies` after each of `steps` steps (steps,).

    It shares a block with an average that stays at 1, and is kept in the unsigned dynamic book: `rounding(values, codes)`
    gives places in it. With None it is kept as it is.
    """
    codes, kept, means = dynamic_codes(False), torch.full((copies,), start), []
    for _ in range(steps):
        kept = beta * kept + (1 - beta) * target
        if rounding is not None:
            kept = codes[rounding(kept, codes).long()]
        means.append(kept.mean())
    return torch.stack(means)


def half_spacing(value: float) -> float:
    """Half the distance of the two entries of the unsigned dynamic book around `value`, relative to `value`."""
    codes = quantization.dynamic_codes(False)
    upper = torch.searchsorted(codes, torch.tensor(value)).clamp(1, 255)
    return ((codes[upper] - codes[upper - 1]) / 2 / value).item()
