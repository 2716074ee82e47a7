"""The bytes of a card that a step needs, and the verdict. Nothing here needs torch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from course_utils.hardware import MACHINES
from course_utils.memory.step.recipe import Recipe
from course_utils.units import GiB, MiB, format_bytes

if TYPE_CHECKING:
    from course_utils.memory.trace.log import Log

CONTEXT = (int(0.3 * GiB), int(0.6 * GiB))
"""CUDA's context and the kernels it has loaded, from a small card to a large one with all of PyTorch's libraries."""
WORKSPACES = (8 * MiB, 65 * MiB)
"""From cuBLAS alone on most cards to all that was kept on an H200: docs/accuracy.md."""
BELOW, ABOVE = 0.02, 0.09
"""By how much measurements on GPUs are below what is allocated and above what is reserved, mostly: docs/accuracy.md."""
ERROR = 0.005
"""By how much predictions for the CPU are off, at most: docs/accuracy.md."""
FITS, TIGHT, DOES_NOT = "fits", "tight", "does not fit"


class Need(NamedTuple):
    """Bytes of a card: `low` with what is allocated and a small context, `high` with what is reserved and a large one."""

    low: float
    high: float

    def verdict(self, memory: float) -> str:
        """`FITS` if there is memory for `high`, `DOES_NOT` if not even for `low`, else `TIGHT`."""
        return FITS if self.high <= memory else TIGHT if self.low <= memory else DOES_NOT

    def cards(self, verdict: str, offered: float = 1.0) -> tuple[str, ...]:
        """The cards in `hardware.MACHINES` with this verdict if CUDA offers this share of their memory."""
        return tuple(name for name, card in MACHINES.items() if self.verdict(offered * card.memory) == verdict)

    def __str__(self):
        return " to ".join(map(format_bytes, self))


def needs(log: "Log", device: str, *, replay: bool = True) -> Need:
    """The bytes of a card that a step needs; without `replay` of the allocator, as if it reserved only the peak."""
    if device == "cpu":
        return Need(int(log.peak * (1 - ERROR)), int(log.peak * (1 + ERROR)))
    low = int(log.peak * (1 - BELOW)) + CONTEXT[0] + WORKSPACES[0]
    reserved = log.reserved if replay else log.peak
    return Need(low, int(reserved * (1 + ABOVE) + CONTEXT[1] + WORKSPACES[1]))


def fits(log: "Log", device: str, memory: float) -> bool:
    """Whether a step fits; where not even its peak does, the allocator is not replayed."""
    return all(needs(log, device, replay=replay).high <= memory for replay in (False, True))


def name_cards(names: Sequence[str], recipe: Recipe) -> str:
    """The cards with the least memory by name, the others as a number; in parentheses the type of number that a card lacks."""
    half = "bfloat16" if recipe.precision != "fp16" else "float16"
    dtype = half if recipe.precision != "fp32" or recipe.quantized else "float32"
    smallest = [name for name in names if MACHINES[name].memory == MACHINES[names[0]].memory]
    text = ", ".join(name if dtype in MACHINES[name].flops else f"{name} (no {dtype})" for name in smallest)
    larger = len(names) - len(smallest)
    return f"{text} and {larger} with more memory" if larger else text
