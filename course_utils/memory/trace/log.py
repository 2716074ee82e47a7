"""A step's memory as a list of events in order, each with its bytes and a label."""

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from course_utils.memory.trace.caching_allocator import reserved
from course_utils.memory.trace.usage import Usage

Label = tuple[str, str, str, str]
"""Phase, kind, module and operator of an event; the phase of what was there before the step is empty."""
_NUMBERS = re.compile(r"\d+")
_BLOCK = re.compile(r"(^|\.)(\d+)(?=\.|$)")


@dataclass(frozen=True)
class Log:
    """A step's events in order, what was there before it first: by how many bytes each changes what is in use, and its label.

    `grain`: each piece fills whole ones.
    """

    changes: np.ndarray
    labels: tuple[Label, ...]
    grain: int = 1

    @classmethod
    def of(cls, usage: Usage) -> "Log":
        """What a meter saw. Deaths that follow one another are put in the order of the births, which nobody can tell apart."""
        rows = [(p.bytes, ("", p.kind, p.module, p.operator)) for p in usage.pieces if p.was_there]
        dying: list[tuple[int, int, Label]] = []
        for change, index, phase in usage.events:
            if change >= 0:
                rows += [(size, label) for _, size, label in sorted(dying)]
                dying = []
            if change:
                piece = usage.pieces[index]
                label = (phase, piece.kind, piece.module, piece.operator)
                rows.append((change, label)) if change > 0 else dying.append((index, change, label))
        rows += [(size, label) for _, size, label in sorted(dying)]
        return cls(np.array([size for size, _ in rows], dtype=np.int64), tuple(label for _, label in rows), usage.grain)

    @classmethod
    def nothing(cls) -> "Log":
        """No memory at all."""
        return cls(np.zeros(1, dtype=np.int64), (("", "inputs", "", ""),))

    @cached_property
    def plain(self) -> "Log":
        """Without the scratch space of libraries (oneDNN, LAPACK), which comes and goes by rules of its own."""
        places = self.plain_places
        if len(places) == len(self.labels):
            return self
        return Log(self.changes[places], tuple(self.labels[place] for place in places), self.grain)

    @property
    def plain_places(self) -> list[int]:
        """Which of the events those are."""
        return [place for place, label in enumerate(self.labels) if not label[3].startswith("inside aten.")]

    def with_event(self, place: int, size: int, label: Label) -> "Log":
        """With one event more, before the one at `place`."""
        labels = (*self.labels[:place], label, *self.labels[place:])
        return Log(np.insert(self.changes, place, size), labels, self.grain)

    @cached_property
    def rounded(self) -> np.ndarray:
        """The changes in whole grains."""
        return np.sign(self.changes) * (-(-np.abs(self.changes) // self.grain) * self.grain)

    @cached_property
    def totals(self) -> np.ndarray:
        """Bytes in use after each event."""
        return self.rounded.cumsum()

    @property
    def before_step(self) -> int:
        """How many of the events were before the step."""
        return next((place for place, label in enumerate(self.labels) if label[0]), len(self.labels))

    @property
    def peak(self) -> int:
        """The largest total within the step."""
        return int(self.totals[max(self.before_step - 1, 0) :].max())

    @cached_property
    def reserved(self) -> int:
        """Bytes that CUDA's caching allocator takes from the device for it."""
        names = {label: sign(label)[1:] for label in set(self.labels)}
        pieces = (names[label] for label in self.labels)
        return reserved(list(zip(self.changes.tolist(), pieces, strict=True)), self.before_step)

    def by_kind(self, place: int) -> dict[str, int]:
        """Bytes in use of each kind after the event at `place`."""
        sums: dict[str, int] = {}
        for (_, kind, _, _), size in zip(self.labels[: place + 1], self.rounded[: place + 1].tolist(), strict=True):
            sums[kind] = sums.get(kind, 0) + size
        return {kind: size for kind, size in sums.items() if size}

    def most_of_kind(self) -> dict[tuple[str, str], int]:
        """The most bytes of each kind at one time in each phase, by phase and kind, whatever else is in use then."""
        most: dict[tuple[str, str], int] = {}
        phases, kinds = (np.array([label[place] for label in self.labels]) for place in (0, 1))
        for kind in dict.fromkeys(kinds.tolist()):
            in_use = np.where(kinds == kind, self.rounded, 0).cumsum()
            most |= {(phase, kind): int(in_use[phases == phase].max()) for phase in self.fullest()}
        return most

    def fullest(self) -> dict[str, int]:
        """For each phase, in order, the place of the event after which most is in use."""
        places: dict[str, int] = {}
        for place in range(self.before_step, len(self.labels)):
            phase = self.labels[place][0]
            if phase not in places or self.totals[place] > self.totals[places[phase]]:
                places[phase] = place
        return places


def sign(label: Label) -> Label:
    """A label without the numbers of blocks."""
    phase, kind, module, operator = label
    return phase, kind, _NUMBERS.sub("*", module), operator


def block_of(module: str) -> tuple[str, str]:
    """Of a module within a block the list of blocks, such as `layers.*`, and the block's number; else itself, and no number."""
    number = _BLOCK.search(module)
    return (f"{module[: number.start()]}.*", number[2]) if number else (module, "")
