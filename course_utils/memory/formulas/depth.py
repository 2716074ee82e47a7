"""The log of a model with many equal blocks, from those of smaller models.

Equal blocks add equal events, so the log for any number of blocks follows from those for two and for three.
"""

from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby

import numpy as np

from course_utils.memory.trace.log import Label, Log, without_block_numbers

_LIST_OPERATORS = ("aten.stack.default", "aten.cat.default")


@dataclass(frozen=True)
class DepthRule:
    """The rule by which the log of three blocks becomes that of more: each of its `stretches` is repeated for each further block.

    If the logs of two and of three blocks are `a B B c` and `a B B B c`, the stretch is one B, and the log of five blocks is
    `a B B B B B c`. Some events, such as a list of all blocks' tensors, grow instead: by `growth` bytes for each block. The rule
    `is_sure` if each stretch equals the events beside it; else the log of four blocks should confirm it.
    """

    stretches: tuple[tuple[int, int], ...]  # indices in the log of three blocks, the first and the one after the last
    growth: np.ndarray
    is_sure: bool

    @classmethod
    def between(cls, two: Log, three: Log) -> "DepthRule | None":
        """The rule from the logs of two and of three blocks; None if the second is not the first with insertions."""
        pairs = _pair_runs(two, three)
        if pairs is None:
            return None
        stretches: list[tuple[int, int]] = []
        growth = np.zeros(len(three.changes), dtype=np.int64)
        is_sure = True
        for run_of_two, run_of_three in pairs:
            shorter = _comparable_events(two, run_of_two)
            longer = _comparable_events(three, run_of_three)
            start = run_of_three.start
            for kind, i, i_end, j, j_end in _differences(shorter, longer):
                if kind == "insert":
                    parts = _find_repetitions(longer, j, j_end)
                    is_sure = is_sure and parts is not None
                    stretches += [(start + begin, start + end) for begin, end in parts or [(j, j_end)]]
                elif kind == "equal" or (kind == "replace" and i_end - i == j_end - j):
                    added = three.changes[run_of_three][j:j_end] - two.changes[run_of_two][i:i_end]
                    growth[start + j : start + j_end] = added
                else:
                    return None
        return cls(tuple(stretches), growth, is_sure)

    def order(self, blocks: int) -> np.ndarray:
        """For each event of a model with `blocks` blocks, its index in the log of three."""
        order = np.arange(len(self.growth))
        parts: list[np.ndarray] = []
        start = 0
        for begin, end in self.stretches:
            parts += [order[start:end], *[order[begin:end]] * (blocks - 3)]
            start = end
        return np.concatenate([*parts, order[start:]])

    def deepen(self, three: Log, blocks: int) -> Log:
        """The log of a model with `blocks` blocks, from that of `three`."""
        order = self.order(blocks)
        grown = three.changes + self.growth * (blocks - 3)
        return Log(grown[order], tuple(three.labels[index] for index in order), three.grain)


def _pair_runs(two: Log, three: Log) -> list[tuple[slice, slice]] | None:
    """The runs of both logs in pairs; None if the logs do not have the same runs."""
    # The second try is for optimizers of one parameter each, as master weights have.
    for foreach_apart in (True, False):
        runs_of_two, runs_of_three = (_split_into_runs(log, foreach_apart) for log in (two, three))
        if [key for key, _ in runs_of_two] == [key for key, _ in runs_of_three]:
            return [(run, other) for (_, run), (_, other) in zip(runs_of_two, runs_of_three, strict=True)]
    return None


def _split_into_runs(log: Log, foreach_apart: bool) -> list[tuple[tuple, slice]]:
    """Runs of events with one phase (before the step, one kind), each with its key; in each, blocks follow one another.

    With `foreach_apart` a call for all parameters is a run of its own, and so are the frees of what it allocated.
    """

    def key_of(index: int) -> tuple:
        phase, kind, _, operator = log.labels[index]
        # In backward such a call is for one parameter.
        is_for_all = foreach_apart and "_foreach_" in operator and phase == "update"
        call = (operator, bool(log.changes[index] > 0)) if is_for_all else ()
        return phase, "" if phase else kind, *call

    runs = [(key, list(indices)) for key, indices in groupby(range(len(log.labels)), key_of)]
    return [(key, slice(indices[0], indices[-1] + 1)) for key, indices in runs]


def _differences(shorter: list, longer: list) -> list[tuple[str, int, int, int, int]]:
    """The differences as opcodes of `SequenceMatcher`; one insertion if that is enough."""
    pairs = enumerate(zip(shorter, longer, strict=False))
    before = next((index for index, (event, other) in pairs if event != other), len(shorter))
    inserted = len(longer) - len(shorter)
    if inserted > 0 and shorter[before:] == longer[before + inserted :]:
        return [
            ("equal", 0, before, 0, before),
            ("insert", before, before, before, before + inserted),
            ("equal", before, len(shorter), before + inserted, len(longer)),
        ]
    return SequenceMatcher(None, shorter, longer, autojunk=False).get_opcodes()


def _find_repetitions(events: list, begin: int, end: int) -> list[tuple[int, int]] | None:
    """The insertion `events[begin:end]` as one or two stretches that each equal the events beside them; None if it is neither.

    There are two where the insertion spans the end of one list and the beginning of the next.
    """

    def repeats_before(middle: int) -> bool:
        return events[begin:middle] == events[begin - (middle - begin) : begin] if middle - begin <= begin else False

    def repeats_after(middle: int) -> bool:
        return events[middle:end] == events[end : end + end - middle]

    if repeats_before(end) or repeats_after(begin):
        return [(begin, end)]
    middles = [middle for middle in range(begin + 1, end) if repeats_before(middle) and repeats_after(middle)]
    return [(begin, middles[0]), (middles[0], end)] if middles else None


def _comparable_events(log: Log, run: slice) -> list[tuple[int, Label]]:
    """Changes and labels in which equal blocks are equal: without their numbers, and without sizes that grow with the blocks."""

    def comparable(change: int, label: Label) -> int:
        return (change > 0) - (change < 0) if label.operator in _LIST_OPERATORS and abs(change) < 4096 else change

    events = zip(log.changes[run].tolist(), log.labels[run], strict=True)
    return [(comparable(change, label), without_block_numbers(label)) for change, label in events]
