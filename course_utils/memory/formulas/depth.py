"""Models of many equal blocks: a smaller one of the same kind, and how its log becomes that of the whole.

Equal blocks add equal events, so the logs of two and of three blocks tell that of any number.
"""

from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

from course_utils.memory.trace.log import Log, sign

_LISTS = ("aten.stack.default", "aten.cat.default")


@dataclass(frozen=True)
class Depth:
    """The rule by which the log of three blocks becomes that of more: each of its `repeated` stretches occurs once per block.

    If the logs of two and of three blocks are `a B B c` and `a B B B c`, the stretch is one B, and the log of five blocks is
    `a B B B B B c`. Some events, such as a list of all blocks' tensors, grow instead: by `growth` bytes for each block. It is
    `sure` where each stretch repeats what is beside it; else the log of four blocks should confirm it.
    """

    repeated: tuple[tuple[int, int], ...]
    growth: np.ndarray
    sure: bool

    @classmethod
    def between(cls, two: Log, three: Log) -> "Depth | None":
        """The rule from the logs of two and of three blocks; None if the second is not the first with insertions."""
        repeated, growth, sure = [], np.zeros(len(three.changes), dtype=np.int64), True
        # Not apart where each parameter has an optimizer of its own, as master weights have.
        for foreach_apart in (True, False):
            first, second = (_split_into_stretches(log, foreach_apart) for log in (two, three))
            if [key for key, _ in first] == [key for key, _ in second]:
                break
        else:
            return None
        for (_, few), (_, many) in zip(first, second, strict=True):
            ours, theirs = _signs(two, few), _signs(three, many)
            for kind, i, i_end, j, j_end in _differences(ours, theirs):
                if kind == "insert":
                    parts = _find_repetitions(theirs, j, j_end)
                    sure = sure and parts is not None
                    repeated += [(many.start + begin, many.start + end) for begin, end in parts or [(j, j_end)]]
                elif kind == "equal" or (kind == "replace" and i_end - i == j_end - j):
                    added = three.changes[many][j:j_end] - two.changes[few][i:i_end]
                    growth[many.start + j : many.start + j_end] = added
                else:
                    return None
        return cls(tuple(repeated), growth, sure)

    def order(self, blocks: int) -> np.ndarray:
        """The place in the log of three blocks of each event of a model with this many."""
        order, places, start = np.arange(len(self.growth)), [], 0
        for begin, end in self.repeated:
            places += [order[start:end], *[order[begin:end]] * (blocks - 3)]
            start = end
        return np.concatenate([*places, order[start:]])

    def deepen(self, three: Log, blocks: int) -> Log:
        """The log of a model with this many blocks."""
        order = self.order(blocks)
        grown = three.changes + self.growth * (blocks - 3)
        return Log(grown[order], tuple(three.labels[place] for place in order), three.grain)


def _split_into_stretches(log: Log, foreach_apart: bool) -> list[tuple[tuple, slice]]:
    """Runs of events of one phase, before the step of one kind: within each, blocks follow one another.

    With `foreach_apart` one call for all parameters is a run of its own, as are the deaths of what it bore.
    """
    stretches: list[tuple[tuple, slice]] = []
    for place, (phase, kind, _, operator) in enumerate(log.labels):
        # Within backward such a call is for one parameter.
        for_all = foreach_apart and "_foreach_" in operator and phase == "update"
        call = (operator, bool(log.changes[place] > 0)) if for_all else ()
        key = (phase, "" if phase else kind, *call)
        if stretches and stretches[-1][0] == key:
            stretches[-1] = key, slice(stretches[-1][1].start, place + 1)
        else:
            stretches.append((key, slice(place, place + 1)))
    return stretches


def _differences(ours: list, signs: list) -> list[tuple[str, int, int, int, int]]:
    """Differences in `SequenceMatcher`'s form; a single insertion if that explains them."""
    before = next((place for place, pair in enumerate(zip(ours, signs, strict=False)) if pair[0] != pair[1]), len(ours))
    more = len(signs) - len(ours)
    if more > 0 and ours[before:] == signs[before + more :]:
        return [
            ("equal", 0, before, 0, before),
            ("insert", before, before, before, before + more),
            ("equal", before, len(ours), before + more, len(signs)),
        ]
    return SequenceMatcher(None, ours, signs, autojunk=False).get_opcodes()


def _find_repetitions(signs: list, begin: int, end: int) -> list[tuple[int, int]] | None:
    """The insertion as stretches that each repeat their neighbor; None if it is not made of such.

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
