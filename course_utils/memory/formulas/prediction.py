"""What dry runs or shipped formulas say that a step takes. Nothing here needs torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import nan

from course_utils.memory.step.recipe import Recipe
from course_utils.memory.trace.log import Log


@dataclass(frozen=True)
class Trial:
    """What a step by `recipe` takes: its logs on the device and on the host, its seconds and its traffic."""

    recipe: Recipe
    log: Log
    host: Log
    clock: Mapping[tuple[str, str], float] = field(repr=False)  # seconds by phase and operator; empty without a machine
    traffic: Mapping[str, tuple[int, int]]  # by collective, the bytes and messages that a rank sends
    basis: str = "a dry run of just this step"
    smaller: tuple[Log, Log] | None = None  # logs of two and of three blocks, if that of all was extrapolated from them
    block_count: int = 0  # the number of blocks to which they were extrapolated

    @property
    def peak(self) -> int:
        """Bytes at the fullest instant."""
        return self.log.peak

    @property
    def seconds(self) -> float:
        """Seconds of all operators, one after the other; NaN without a machine."""
        return sum(self.clock.values()) if self.clock else nan

    @property
    def sent(self) -> int:
        """Bytes that a rank sends."""
        return sum(sent for sent, _ in self.traffic.values())

    @cached_property
    def kinds_by_phase(self) -> dict[str, dict[str, int]]:
        """Bytes by kind at the fullest instant of each phase."""
        return {phase: self.log.by_kind(index) for phase, index in self.log.fullest_index_by_phase().items()}
