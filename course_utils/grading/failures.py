"""Cells that failed. The newest cell of an answer may have failed before it defined anything: the older definition stays."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

MARK = re.compile(r"^\s*# EXERCISE (\w+)\s*$", re.MULTILINE)
"""The line by which a cell is marked as the answer to a question."""
_NOTHING = object()
_OF_SHELLS: WeakKeyDictionary = WeakKeyDictionary()


class Failures:
    """The cells of an IPython shell that failed, and which of the watched names they left as they were."""

    def __init__(self):
        self._values: dict[str, object] = {}
        self._failed: dict[int, tuple[str, set[str]]] = {}
        self._names: set[str] = set()

    def watch(self, shell: "InteractiveShell", names: Iterable[str]) -> None:
        """Keep an eye on these names too."""
        if not self._names:
            shell.events.register("pre_run_cell", lambda _: self._begin(shell.user_ns))
            shell.events.register("post_run_cell", lambda result: self._end(shell.user_ns, result))
        self._names |= set(names)

    def of(self, name: str) -> Mapping[int, str]:
        """The cells that failed without a change of `name`, by number, and their exceptions in words."""
        return {cell: error for cell, (error, unchanged) in self._failed.items() if name in unchanged}

    def _begin(self, names: Mapping) -> None:
        self._values = {name: names.get(name, _NOTHING) for name in self._names}

    def _end(self, names: Mapping, result: "ExecutionResult | None") -> None:
        error = result and (result.error_before_exec or result.error_in_exec)
        if error and result.execution_count:
            unchanged = {name for name, value in self._values.items() if names.get(name, _NOTHING) is value}
            self._failed[result.execution_count] = _in_words(error), unchanged
        self._values = {}  # frees tensors


def _in_words(error: BaseException) -> str:
    """The error's type, and for a syntax error also what is wrong and where."""
    name = type(error).__name__
    return f"{name} ({error.msg}, line {error.lineno})" if isinstance(error, SyntaxError) else name


def failures_in(shell: "InteractiveShell") -> Failures:
    """The failures of this shell: one object, however many sets a notebook opens."""
    return _OF_SHELLS.setdefault(shell, Failures())


def newest_failure(
    failed: Mapping[int, str], question: str, history: Sequence[str], cell: int
) -> tuple[int, str] | None:
    """The newest cell after `cell` that is marked as the answer to `question`, if it is among those that `failed`: its number,
    and the exception that ended it.
    """
    marked = [number for number in range(cell + 1, len(history)) if question in MARK.findall(history[number])]
    return (marked[-1], failed[marked[-1]]) if marked and marked[-1] in failed else None
