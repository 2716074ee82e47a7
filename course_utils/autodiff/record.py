"""What the forward pass saved, as a list with bytes."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from course_utils.autodiff.engine import Saved, Variable, backward_order


@dataclass(frozen=True)
class Entry:
    """One array that backward will need: which operation saved it, whose value it is, its size.

    `counted` is false where the same memory stands in the list before, or is kept anyway.
    """

    operation: str
    what: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    counted: bool


def saved(output: Variable, besides: Iterable[Variable] = ()) -> list[Entry]:
    """All that the operations behind `output` have saved, in the order of the forward pass.

    Memory of the variables in `besides` (parameters, say) is kept anyway and does not count.
    """
    known = {id(_memory(variable.value)) for variable in besides}
    entries = []
    for symbol, one in _all_saved(output):
        memory = _memory(one.array)
        entries.append(_entry(symbol, one, id(memory) not in known))
        known.add(id(memory))
    return entries


def saved_bytes(output: Variable, besides: Iterable[Variable] = ()) -> int:
    """Bytes that the forward pass to `output` keeps for backward, each piece of memory once; 0 after a backward."""
    return sum(entry.bytes for entry in saved(output, besides) if entry.counted)


def _all_saved(output: Variable) -> Iterable[tuple[str, Saved]]:
    for variable in reversed(backward_order(output)):
        if variable.operation:
            for one in variable.operation.kept or ():
                if isinstance(one.array, np.ndarray):
                    yield variable.operation.symbol, one


def _entry(symbol: str, one: Saved, counted: bool) -> Entry:
    array = one.array
    return Entry(symbol, one.name, array.shape, str(array.dtype), array.nbytes, counted)


def _memory(array: np.ndarray) -> np.ndarray:
    """The array that owns the memory that `array` shows."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
