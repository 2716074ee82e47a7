"""A step's memory as formulas, found from a few dry runs.

A dry run logs births and deaths of memory in order. The order does not depend on the examples b of a batch and their length
s; each size is a polynomial in them. So a few runs at small sizes give every event's polynomial. Equal blocks add equal
events, so a model of three blocks tells of any number. Both are checked before they are believed.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property

import numpy as np

from course_utils.memory.allocation import reserved
from course_utils.memory.usage import Usage

MONOMIALS = ((0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 0))
"""Powers of b and s."""
Label = tuple[str, str, str, str]
"""Phase, kind, module and operator of an event; the phase of what was there before the step is empty."""
_LISTS = ("aten.stack.default", "aten.cat.default")
_NUMBERS = re.compile(r"\d+")


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
        """Without the scratch space of oneDNN, which comes and goes by rules of its own."""
        kept = [place for place, label in enumerate(self.labels) if not label[3].startswith("inside aten.")]
        if len(kept) == len(self.labels):
            return self
        return Log(self.changes[kept], tuple(self.labels[place] for place in kept), self.grain)

    @cached_property
    def rounded(self) -> np.ndarray:
        """The changes in whole grains."""
        return np.sign(self.changes) * (-(-np.abs(self.changes) // self.grain) * self.grain)

    @cached_property
    def totals(self) -> np.ndarray:
        """Bytes in use after each event."""
        return self.rounded.cumsum()

    @property
    def resident(self) -> int:
        """How many of the events were before the step."""
        return next((place for place, label in enumerate(self.labels) if label[0]), len(self.labels))

    @property
    def peak(self) -> int:
        """The largest total within the step."""
        return int(self.totals[max(self.resident - 1, 0) :].max())

    @cached_property
    def reserved(self) -> int:
        """Bytes that CUDA's caching allocator takes from the device for it."""
        names = {label: sign(label)[1:] for label in set(self.labels)}
        pieces = (names[label] for label in self.labels)
        return reserved(list(zip(self.changes.tolist(), pieces, strict=True)), self.resident)

    def by_kind(self, place: int) -> dict[str, int]:
        """Bytes in use of each kind after the event at `place`."""
        sums: dict[str, int] = {}
        for (_, kind, _, _), size in zip(self.labels[: place + 1], self.rounded[: place + 1].tolist(), strict=True):
            sums[kind] = sums.get(kind, 0) + size
        return {kind: size for kind, size in sums.items() if size}

    def fullest(self) -> dict[str, int]:
        """For each phase, in order, the place of the event after which most is in use."""
        found: dict[str, int] = {}
        for place in range(self.resident, len(self.labels)):
            phase = self.labels[place][0]
            if phase not in found or self.totals[place] > self.totals[found[phase]]:
                found[phase] = place
        return found


@dataclass(frozen=True)
class Depth:
    """How the log of `blocks` blocks becomes that of any number: `repeated` stretches of it, one more for each block.

    `growth` is by how many bytes a block makes an event larger, of those few that depend on their number. It is `sure` where
    each stretch repeats what is beside it; else a third log should confirm it.
    """

    blocks: int
    repeated: tuple[tuple[int, int], ...]
    growth: np.ndarray
    sure: bool = True

    @classmethod
    def between(cls, fewer: Log, more: Log, blocks: int) -> "Depth | None":
        """From the logs of `blocks` - 1 and of `blocks` blocks; None where the one is not the other with something put in."""
        repeated, growth = [], np.zeros(len(more.changes), dtype=np.int64)
        first, second, sure = _stretches(fewer), _stretches(more), True
        if [key for key, _ in first] != [key for key, _ in second]:
            return None
        for (_, few), (_, many) in zip(first, second, strict=True):
            ours, signs = _signs(fewer, few), _signs(more, many)
            for kind, i, i_end, j, j_end in _differences(ours, signs):
                if kind == "insert":
                    parts = _repetitions(signs, j, j_end)
                    sure = sure and parts is not None
                    repeated += [(many.start + begin, many.start + end) for begin, end in parts or [(j, j_end)]]
                elif kind == "equal" or (kind == "replace" and i_end - i == j_end - j):
                    added = more.changes[many][j:j_end] - fewer.changes[few][i:i_end]
                    growth[many.start + j : many.start + j_end] = added
                else:
                    return None
        return cls(blocks, tuple(repeated), growth, sure)

    def order(self, blocks: int) -> np.ndarray:
        """The places in the known log of the events of a model of so many blocks, of one fewer than the known at least."""
        known, places, start, more = np.arange(len(self.growth)), [], 0, blocks - self.blocks
        for begin, end in self.repeated:
            places += [known[start : end if more >= 0 else begin], *[known[begin:end]] * more]
            start = end
        return np.concatenate([*places, known[start:]])

    def deepened(self, changes: np.ndarray, labels: tuple[Label, ...], blocks: int, grain: int) -> Log:
        """The log of so many blocks."""
        order = self.order(blocks)
        grown = changes + self.growth * (blocks - self.blocks)
        return Log(grown[order], tuple(labels[place] for place in order), grain)


@dataclass(frozen=True)
class Found:
    """Polynomials in b and s for every event: `coefficients`, a row an event, a column for each of `MONOMIALS`."""

    coefficients: np.ndarray
    labels: tuple[Label, ...]
    grain: int

    def changes(self, b: int, s: int) -> np.ndarray:
        """Bytes at these sizes."""
        return np.rint(self.coefficients @ powers(b, s)).astype(np.int64)

    def log(self, b: int, s: int) -> Log:
        """The log at these sizes."""
        return Log(self.changes(b, s), self.labels, self.grain)


def powers(b: int, s: int) -> np.ndarray:
    """The monomials' values."""
    return np.array([float(b) ** i * float(s) ** j for i, j in MONOMIALS])


def find(logs: dict[tuple[int, int], Log], used: Iterable[int] = range(6)) -> Found | None:
    """The polynomials that give all `logs`, each at its (b, s), to the byte; None where there are none.

    `used` are the monomials that may occur: at least as many logs are needed as there are of them.
    """
    first, used = next(iter(logs.values())), list(used)
    if any(log.labels != first.labels for log in logs.values()):
        return None
    matrix = np.array([powers(*at)[used] for at in logs])
    changes = np.array([log.changes for log in logs.values()], dtype=float)
    scale = np.abs(matrix).max(0)
    solved = np.linalg.lstsq(matrix / scale, changes, rcond=None)[0].T / scale
    coefficients = np.zeros((changes.shape[1], len(MONOMIALS)))
    # Halves and thirds of bytes occur, where a size is an integer all the same.
    coefficients[:, used] = np.rint(solved * 24) / 24
    found = Found(coefficients, first.labels, first.grain)
    exact = all(np.array_equal(found.changes(*at), log.changes) for at, log in logs.items())
    return found if exact else None


def sign(label: Label) -> Label:
    """A label without the numbers of blocks."""
    phase, kind, module, operator = label
    return phase, kind, _NUMBERS.sub("*", module), operator


def _stretches(log: Log) -> list[tuple[tuple, slice]]:
    """Runs of events of one phase, before the step of one kind: within each, blocks follow one another.

    One call for all parameters is a run of its own, as are the deaths of what it bore.
    """
    found: list[tuple[tuple, slice]] = []
    for place, (phase, kind, _, operator) in enumerate(log.labels):
        for_all = "_foreach_" in operator and phase == "update"  # within backward it is for one parameter
        call = (operator, bool(log.changes[place] > 0)) if for_all else ()
        key = (phase, "" if phase else kind, *call)
        if found and found[-1][0] == key:
            found[-1] = key, slice(found[-1][1].start, place + 1)
        else:
            found.append((key, slice(place, place + 1)))
    return found


def _differences(ours: list, signs: list) -> list[tuple[str, int, int, int, int]]:
    """As `SequenceMatcher` says it; but what was put in at one place is said to be so, wherever that is possible."""
    before = next((place for place, pair in enumerate(zip(ours, signs, strict=False)) if pair[0] != pair[1]), len(ours))
    more = len(signs) - len(ours)
    if more > 0 and ours[before:] == signs[before + more :]:
        return [
            ("equal", 0, before, 0, before),
            ("insert", before, before, before, before + more),
            ("equal", before, len(ours), before + more, len(signs)),
        ]
    return SequenceMatcher(None, ours, signs, autojunk=False).get_opcodes()


def _repetitions(signs: list, begin: int, end: int) -> list[tuple[int, int]] | None:
    """What was put in, as stretches of which each repeats what is beside it; None where it is no such thing.

    It is one stretch, or two where one list of things ends in another.
    """

    def repeats_before(middle: int) -> bool:
        return signs[begin:middle] == signs[begin - (middle - begin) : begin] if middle - begin <= begin else False

    def repeats_after(middle: int) -> bool:
        return signs[middle:end] == signs[end : end + end - middle]

    if repeats_before(end) or repeats_after(begin):
        return [(begin, end)]
    middles = [middle for middle in range(begin + 1, end) if repeats_before(middle) and repeats_after(middle)]
    return [(begin, middles[0]), (middles[0], end)] if middles else None


def _signs(log: Log, run: slice) -> list[tuple]:
    # A list of numbers, one for each tensor, grows with the blocks.
    return [
        ((change > 0) - (change < 0) if label[3] in _LISTS and abs(change) < 4096 else change, sign(label))
        for change, label in zip(log.changes[run].tolist(), log.labels[run], strict=True)
    ]
