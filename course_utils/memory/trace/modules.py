"""Which module is at work: in forward the innermost that runs, in backward the one whose forward made the node."""

from bisect import bisect_right
from operator import itemgetter

import torch


class ModuleStack:
    """The names of the modules that run, the innermost last, and when each of them was at work in forward."""

    def __init__(self):
        self.names: list[str] = []
        self._starts: list[tuple[int, str]] = []  # (autograd's sequence number, module at work from then on)

    def begin(self, name: str) -> None:
        """A module begins its forward."""
        self.names.append(name)
        self._note_start()

    def end(self, *_) -> None:
        """The innermost module ends its forward."""
        if self.names:
            self.names.pop()
        self._note_start()

    def current(self) -> tuple[str, int | None]:
        """The module at work; in backward the number of the node that is differentiated, for `module_of`."""
        if self.names:
            return self.names[-1], None
        node = torch._C._current_autograd_node()
        return "", None if node is None else node._sequence_nr()

    def module_of(self, node: int) -> str:
        """The module whose forward made the node of this number; empty where none did."""
        before = bisect_right(self._starts, node, key=itemgetter(0))
        accumulates = node >= 2**63  # the sum into .grad has the largest number there is, and no forward
        return self._starts[before - 1][1] if before and not accumulates else ""

    def _note_start(self) -> None:
        self._starts.append((torch.autograd._get_sequence_nr(), self.names[-1] if self.names else ""))
