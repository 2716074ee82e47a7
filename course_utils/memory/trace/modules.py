"""Which module runs: in forward the innermost, in backward the one whose forward made the node being differentiated."""

from bisect import bisect_right
from operator import itemgetter

import torch


class ModuleStack:
    """The names of the running modules, the innermost last, and at which of autograd's sequence numbers each ran in forward."""

    def __init__(self):
        self.names: list[str] = []
        self._starts: list[tuple[int, str]] = []  # (autograd's sequence number, the module that runs from there on)

    def begin(self, name: str) -> None:
        """Note that a module begins its forward."""
        self.names.append(name)
        self._note_start()

    def end(self, *_) -> None:
        """Note that the innermost module ends its forward."""
        if self.names:
            self.names.pop()
        self._note_start()

    def current(self) -> tuple[str, int | None]:
        """The name of the running module; in backward an empty name and the number of the current node, for `module_of`."""
        if self.names:
            return self.names[-1], None
        node = torch._C._current_autograd_node()
        return "", None if node is None else node._sequence_nr()

    def module_of(self, node: int) -> str:
        """The name of the module whose forward made the node of this number; empty if none did."""
        before = bisect_right(self._starts, node, key=itemgetter(0))
        accumulates = node >= 2**63  # the node that adds to .grad has the largest number, and is of no forward
        return self._starts[before - 1][1] if before and not accumulates else ""

    def _note_start(self) -> None:
        self._starts.append((torch.autograd._get_sequence_nr(), self.names[-1] if self.names else ""))
