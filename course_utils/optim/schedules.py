"""Learning-rate schedules as plain functions of the step; each returns the factor on α for update number `step`, from 0 on.

`torch.optim.lr_scheduler.LambdaLR(optimizer, partial(cosine, total=1000, warmup=50))` makes one drive an optimizer. Where
torch or Transformers have the same schedule, the factors are theirs.
"""

from math import cos, pi, sqrt


def warm_up(step: int, warmup: int, start: float = 0.0) -> float:
    """A line from `start` to 1 over the first `warmup` updates, then 1 (torch's `LinearLR`).

    With `start=0` update number 0 moves nothing, as in Transformers' schedules.
    """
    return start + (1 - start) * min(1.0, step / warmup) if warmup else 1.0


def inverse_sqrt(step: int, warmup: int, timescale: int | None = None) -> float:
    """A warm-up, then 1/√: it goes on falling for ever, ever more slowly (Vaswani et al. 2017, section 5.3, equation 3).

    After the warm-up the factor is √(T / (step − `warmup` + T)), T being `timescale`. By default T is `warmup`, which makes it
    √(`warmup` / step): one half at four times the warm-up. Without any warm-up T is 10,000 (Transformers'
    `get_inverse_sqrt_schedule`).
    """
    timescale = (warmup or 10_000) if timescale is None else timescale
    return warm_up(step, warmup) if step < warmup else 1 / sqrt((step - warmup + timescale) / timescale)


def exponential(step: int, gamma: float) -> float:
    """γ to the power of the step: the same share is lost at each update (torch's `ExponentialLR`)."""
    return gamma**step


def staircase(step: int, interval: int, gamma: float = 0.1) -> float:
    """Times γ after each `interval` updates, and constant between (torch's `StepLR`)."""
    return gamma ** (step // interval)


def cosine(step: int, total: int, warmup: int = 0, floor: float = 0.0) -> float:
    """A warm-up, then half a wave of the cosine down to `floor` at update `total` (Loshchilov & Hutter 2017, equation 5).

    Up to `total` it is torch's `CosineAnnealingLR` (without warm-up; `eta_min` is `floor` times the learning rate) and
    Transformers' `get_cosine_schedule_with_warmup` (with `floor=0`). After `total` it stays where it is; theirs rise again.
    """
    if step < warmup:
        return warm_up(step, warmup)
    progress = min(1.0, (step - warmup) / (total - warmup))
    return floor + (1 - floor) * (1 + cos(pi * progress)) / 2
