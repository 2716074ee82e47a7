"""The bytes of a card that a step needs, and the verdict. Nothing here needs torch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from course_utils.hardware import MACHINES
from course_utils.memory.step.recipe import Recipe
from course_utils.units import GiB, MiB, format_bytes

if TYPE_CHECKING:
    from course_utils.memory.trace.log import Log

CONTEXT = (int(0.3 * GiB), int(0.6 * GiB))
"""Bytes of CUDA's context and loaded kernels, on a small card and on a large one with all of PyTorch's libraries."""
WORKSPACES = (8 * MiB, 65 * MiB)
"""Bytes of libraries' workspaces: cuBLAS's alone on most cards, and all that were kept on an H200 (docs/accuracy.md)."""
SHARE_BELOW, SHARE_ABOVE = 0.02, 0.09
"""The shares by which most measurements on GPUs are at most below the predicted allocated bytes, and above the reserved ones
(docs/accuracy.md)."""
CPU_ERROR = 0.005
"""The largest share by which predictions for the CPU are off (docs/accuracy.md)."""
FITS, TIGHT, DOES_NOT_FIT = "fits", "tight", "does not fit"


class Need(NamedTuple):
    """Bytes that a step needs on a card: `low` counts allocated bytes and a small context, `high` reserved ones and a large."""

    low: float
    high: float

    @classmethod
    def from_log(cls, log: "Log", device: str, *, replay: bool = True) -> "Need":
        """The bytes of a card that a step needs. Without `replay` the allocator is assumed to reserve no more than the peak."""
        if device == "cpu":
            return cls(int(log.peak * (1 - CPU_ERROR)), int(log.peak * (1 + CPU_ERROR)))
        low = int(log.peak * (1 - SHARE_BELOW)) + CONTEXT[0] + WORKSPACES[0]
        reserved = log.reserved if replay else log.peak
        return cls(low, int(reserved * (1 + SHARE_ABOVE) + CONTEXT[1] + WORKSPACES[1]))

    def verdict(self, memory: float) -> str:
        """`FITS` if there is memory for `high`, `DOES_NOT_FIT` if not even for `low`, else `TIGHT`."""
        if self.high <= memory:
            return FITS
        return TIGHT if self.low <= memory else DOES_NOT_FIT

    def card_names(self, verdict: str, offered: float = 1.0) -> tuple[str, ...]:
        """The cards in `hardware.MACHINES` with this verdict if CUDA offers the share `offered` of their memory."""
        return tuple(name for name, card in MACHINES.items() if self.verdict(offered * card.memory) == verdict)

    def __str__(self):
        return " to ".join(map(format_bytes, self))


def fits(log: "Log", device: str, memory: float) -> bool:
    """Whether a step fits into `memory` bytes; the allocator is replayed only if the peak fits."""
    return all(Need.from_log(log, device, replay=replay).high <= memory for replay in (False, True))


def name_cards(names: Sequence[str], recipe: Recipe) -> str:
    """A text with the names of those cards that have the least memory, and the number of the others.

    A card that cannot multiply in the recipe's dtype has that dtype in parentheses.
    """
    half = "bfloat16" if recipe.precision != "fp16" else "float16"
    dtype = half if recipe.precision != "fp32" or recipe.quantized else "float32"
    smallest = [name for name in names if MACHINES[name].memory == MACHINES[names[0]].memory]
    text = ", ".join(name if dtype in MACHINES[name].flop_rates else f"{name} (no {dtype})" for name in smallest)
    larger = len(names) - len(smallest)
    return f"{text} and {larger} with more memory" if larger else text
