"""A step's memory as a meter saw it (`Usage`), and as a list of events (`Log`), each with a change in bytes and a label."""

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from course_utils.errors import CourseError
from course_utils.memory.trace.caching_allocator import replay_reserved
from course_utils.units import format_bytes, round_up

if TYPE_CHECKING:
    import pandas as pd
    import torch

KINDS = (
    "parameters", "buffers", "optimizer state", "gradients", "inputs", "activations", "recomputed", "communication",
    "backward temporaries", "optimizer temporaries",
)  # fmt: skip
_NUMBERS = re.compile(r"\d+")
_BLOCK = re.compile(r"(^|\.)(\d+)(?=\.|$)")


class Label(NamedTuple):
    """The phase of an event (empty before the step), and the kind, the module and the operator of its piece."""

    phase: str
    kind: str
    module: str
    operator: str


class Event(NamedTuple):
    """A change in bytes of the piece with this index, or the beginning of a phase: a change of 0, without a piece."""

    change: int
    piece: int  # -1 for none
    phase: str


@dataclass
class Piece:
    """One storage, the memory behind one tensor and all its views."""

    bytes: int
    kind: str  # of `KINDS`
    module: str
    operator: str  # that allocated it; for a parameter from before the log its name
    shape: tuple[int, ...]
    dtype: "torch.dtype"
    was_there: bool = False  # whether it was allocated before the log began


@dataclass(frozen=True)
class Usage:
    """What a `Meter` saw on one device, in bytes. Printed, it says the peak and its split."""

    pieces: tuple[Piece, ...] = field(repr=False)
    events: tuple[Event, ...] = field(repr=False)
    grain: int = 1  # bytes; the device's allocator rounds each piece up to a multiple
    host: "Usage | None" = field(default=None, repr=False)  # of the host's memory, if that is not the device's

    def __str__(self):
        lines = [f"{kind:>22s}  {format_bytes(size)}" for kind, size in self.split.items()]
        lines.append(f"{'peak':>22s}  {format_bytes(self.peak)}, in {self.peak_phase}")
        if self.host is not None and self.host.peak > 1e-3 * self.peak:
            lines.append(f"{'on the host':>22s}  {format_bytes(self.host.peak)} at its own peak")
        return "\n".join(lines)

    __repr__ = __str__

    @property
    def resident(self) -> int:
        """Bytes that were in use before the log began."""
        return sum(self._round(piece.bytes) for piece in self.pieces if piece.was_there)

    @property
    def peak(self) -> int:
        """The most bytes in use at one time."""
        return int(self._totals[self._peak_index])

    @property
    def reserved(self) -> int:
        """Bytes that CUDA's caching allocator takes from the device for steps like this one; no less than the peak.

        Raises `CourseError` for a step on the CPU, which has no such allocator.
        """
        if self.grain == 1:
            raise CourseError('Only CUDA\'s allocator reserves bytes; ask dry_run(…, device="cuda").')
        return Log.from_usage(self).reserved

    @cached_property
    def by_phase(self) -> dict[str, int]:
        """The peak inside each phase, in the order of the phases, with what was in use when the phase began."""
        phases: dict[str, int] = {}
        for event, total in zip(self.events, self._totals, strict=True):
            phases[event.phase] = max(phases.get(event.phase, 0), int(total))
        return phases

    @property
    def peak_phase(self) -> str:
        """The phase in which the peak was."""
        return self.events[self._peak_index].phase

    @property
    def split(self) -> dict[str, int]:
        """Bytes of each kind at the peak; their sum is the peak."""
        return {kind: int(size) for kind, size in zip(KINDS, self._in_use[self._peak_index], strict=True) if size}

    @property
    def timeline(self) -> "pd.DataFrame":
        """A row per event: its `phase`, and the bytes of each of `KINDS` from then on."""
        import pandas as pd

        return pd.DataFrame(self._in_use, columns=list(KINDS)).assign(phase=[event.phase for event in self.events])

    def _round(self, size: int) -> int:
        return round_up(size, self.grain)

    @cached_property
    def _in_use(self) -> np.ndarray:
        """Bytes in use after each event (rows) of each kind (columns), with every piece rounded up to whole grains."""
        kinds = [KINDS.index(piece.kind) for piece in self.pieces]
        sizes = [piece.bytes * piece.was_there for piece in self.pieces]
        changes = np.zeros((1 + len(self.events), len(KINDS)), dtype=np.int64)
        for kind, size in zip(kinds, sizes, strict=True):
            changes[0, kind] += self._round(size)
        for row, (change, index, _) in enumerate(self.events, 1):
            if change:
                changes[row, kinds[index]] = self._round(sizes[index] + change) - self._round(sizes[index])
                sizes[index] += change
        return changes.cumsum(axis=0)[1:]

    @cached_property
    def _totals(self) -> np.ndarray:
        return self._in_use.sum(axis=1)

    @cached_property
    def _peak_index(self) -> int:
        if not self.events:
            raise CourseError("The meter saw no tensors; run a training step inside it, then ask for its usage.")
        return int(self._totals.argmax())


@dataclass(frozen=True)
class Log:
    """A step's events in order; before them comes one for each piece that was allocated before the step."""

    changes: np.ndarray  # by how many bytes each event changes what is in use
    labels: tuple[Label, ...]
    grain: int = 1  # bytes; the allocator rounds each piece up to a multiple

    @classmethod
    def from_usage(cls, usage: Usage) -> "Log":
        """The log of what a meter saw, in which consecutive frees have the order of the allocations: their own is accidental."""
        rows = [(p.bytes, Label("", p.kind, p.module, p.operator)) for p in usage.pieces if p.was_there]
        dying: list[tuple[int, int, Label]] = []
        for change, index, phase in usage.events:
            if change >= 0:
                rows += [(size, label) for _, size, label in sorted(dying)]
                dying = []
            if change:
                piece = usage.pieces[index]
                label = Label(phase, piece.kind, piece.module, piece.operator)
                if change > 0:
                    rows.append((change, label))
                else:
                    dying.append((index, change, label))
        rows += [(size, label) for _, size, label in sorted(dying)]
        return cls(np.array([size for size, _ in rows], dtype=np.int64), tuple(label for _, label in rows), usage.grain)

    @classmethod
    def empty(cls) -> "Log":
        """The log of a step without memory."""
        return cls(np.zeros(1, dtype=np.int64), (Label("", "inputs", "", ""),))

    @cached_property
    def plain(self) -> "Log":
        """The log without the scratch space of libraries (oneDNN, LAPACK), whose size follows no formula."""
        indices = self.plain_indices
        if len(indices) == len(self.labels):
            return self
        return Log(self.changes[indices], tuple(self.labels[index] for index in indices), self.grain)

    @property
    def plain_indices(self) -> list[int]:
        """The indices of the events that are not scratch space."""
        return [index for index, label in enumerate(self.labels) if not label.operator.startswith("inside aten.")]

    def with_event(self, index: int, size: int, label: Label) -> "Log":
        """The log with one more event of `size` bytes, before the one at `index`."""
        labels = (*self.labels[:index], label, *self.labels[index:])
        return Log(np.insert(self.changes, index, size), labels, self.grain)

    def with_micro_batches(self, count: int) -> "Log":
        """The log with `count` more micro-batches, from that of two: each adds its inputs, and runs as the second does."""
        inputs = self.by_kind(self.before_step - 1)["inputs"] // 2
        return self.with_event(0, inputs * count, Label("", "inputs", "", ""))

    @cached_property
    def rounded(self) -> np.ndarray:
        """The changes, each rounded to whole grains away from zero."""
        return np.sign(self.changes) * round_up(np.abs(self.changes), self.grain)

    @cached_property
    def totals(self) -> np.ndarray:
        """Bytes in use after each event."""
        return self.rounded.cumsum()

    @property
    def before_step(self) -> int:
        """The number of events before the step."""
        return next((index for index, label in enumerate(self.labels) if label.phase), len(self.labels))

    @property
    def peak(self) -> int:
        """The largest total within the step."""
        return int(self.totals[max(self.before_step - 1, 0) :].max())

    @cached_property
    def reserved(self) -> int:
        """Bytes that CUDA's caching allocator takes from the device for this step."""
        names = {label: without_block_numbers(label)[1:] for label in set(self.labels)}
        pieces = (names[label] for label in self.labels)
        return replay_reserved(list(zip(self.changes.tolist(), pieces, strict=True)), self.before_step)

    def by_kind(self, index: int) -> dict[str, int]:
        """Bytes in use of each kind after the event at `index`."""
        sums: dict[str, int] = {}
        for label, size in zip(self.labels[: index + 1], self.rounded[: index + 1].tolist(), strict=True):
            sums[label.kind] = sums.get(label.kind, 0) + size
        return {kind: size for kind, size in sums.items() if size}

    def most_of_kind(self) -> dict[tuple[str, str], int]:
        """By phase and kind, the most bytes of that kind that are in use at one time in that phase."""
        largest: dict[tuple[str, str], int] = {}
        phases = np.array([label.phase for label in self.labels])
        kinds = np.array([label.kind for label in self.labels])
        for kind in dict.fromkeys(kinds.tolist()):
            in_use = np.where(kinds == kind, self.rounded, 0).cumsum()
            largest |= {(phase, kind): int(in_use[phases == phase].max()) for phase in self.fullest_index_by_phase()}
        return largest

    def fullest_index_by_phase(self) -> dict[str, int]:
        """By phase, in order, the index of the event after which the most bytes are in use."""
        indices: dict[str, int] = {}
        for index in range(self.before_step, len(self.labels)):
            phase = self.labels[index].phase
            if phase not in indices or self.totals[index] > self.totals[indices[phase]]:
                indices[phase] = index
        return indices


def without_block_numbers(label: Label) -> Label:
    """The label with `*` for each number in its module's name, so that equal blocks have equal labels."""
    return label._replace(module=_NUMBERS.sub("*", label.module))


def block_of(module: str) -> tuple[str, str]:
    """A module's list of blocks, such as `layers.*`, and its block's number; outside of blocks the module and no number."""
    number = _BLOCK.search(module)
    return (f"{module[: number.start()]}.*", number[2]) if number else (module, "")
