"""Loss surfaces of two parameters on which the path of an optimizer can be seen, and paths over them."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import torch

Make = Callable[[list[torch.Tensor]], torch.optim.Optimizer]
"""Called with a list of one parameter, gives an optimizer."""


@dataclass(frozen=True)
class Surface:
    """A loss of x and y, whose lowest value is 0; a path begins at `start` and is looked at within `view` (two ranges).

    `noise` is the standard deviation of what is added to each entry of every gradient, as a random batch would.
    """

    name: str
    height: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    start: tuple[float, float]
    view: tuple[tuple[float, float], tuple[float, float]]
    noise: float = 0.0


def _ravine(x, y):
    return (x**2 + 50 * y**2) / 2


def _turned_ravine(x, y):
    return _ravine((x + y) / sqrt(2), (y - x) / sqrt(2))


def _saddle(x, y):
    return (x**2 - y**2) / 2 + y**4 / 4 + 1 / 4


def _bowl(x, y):
    return (x**2 + y**2) / 2


RAVINE = Surface("ravine", _ravine, (-4.0, 1.0), ((-5.0, 2.0), (-2.0, 2.0)))
TURNED_RAVINE = Surface(
    "turned ravine", _turned_ravine, (-5 / sqrt(2), -3 / sqrt(2)), ((-5.0, 2.0), (-4.0, 2.0))
)  # the ravine and its start, turned by 45°
SADDLE = Surface("saddle", _saddle, (1.5, 0.01), ((-1.0, 2.0), (-0.5, 1.5)))
BOWL = Surface("noisy bowl", _bowl, (3.0, 2.0), ((-1.5, 3.5), (-1.5, 2.5)), noise=1.0)
SURFACES = {surface.name: surface for surface in (RAVINE, TURNED_RAVINE, SADDLE, BOWL)}


def path(make: Make, surface: Surface, steps: int, start: tuple[float, float] | None = None, seed: int = 0):
    """Where an optimizer goes: a float64 tensor of shape (steps + 1, 2), the start included."""
    theta = torch.tensor(start or surface.start, dtype=torch.float64, requires_grad=True)
    optimizer, generator = make([theta]), torch.Generator().manual_seed(seed)
    seen = [theta.detach().clone()]
    for _ in range(steps):
        (gradient,) = torch.autograd.grad(surface.height(*theta), theta)
        theta.grad = gradient + surface.noise * torch.randn(2, dtype=torch.float64, generator=generator)
        optimizer.step()
        seen.append(theta.detach().clone())
    return torch.stack(seen)


def heights(surface: Surface, places: torch.Tensor) -> torch.Tensor:
    """The loss at each of `places`, shape (n, 2); infinite where a path has left the numbers."""
    return surface.height(*places.T).nan_to_num(nan=torch.inf)


def best_rate(make: Callable[[list[torch.Tensor], float], torch.optim.Optimizer], surface: Surface, rates, steps: int):
    """The learning rate out of `rates` with which `make(parameters, rate)` has the lowest loss after `steps` updates."""

    def end(rate: float) -> float:
        return heights(surface, path(lambda p: make(p, rate), surface, steps))[-1].item()

    return min(rates, key=end)
