"""Cells that failed: if the newest cell of an answer fails before it defines anything, the older definition stays."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from course_utils.grading.question import EXERCISE_LINE

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

_UNDEFINED = object()
_OF_SHELLS: WeakKeyDictionary = WeakKeyDictionary()


class Failures:
    """The cells of an IPython shell that failed, and which of the watched names they left as they were."""

    def __init__(self):
        self._values: dict[str, object] = {}
        self._failures: dict[int, tuple[str, set[str]]] = {}
        self._names: set[str] = set()

    def watch(self, shell: "InteractiveShell", names: Iterable[str]) -> None:
        """Note from now on which of these names a failing cell leaves unchanged."""
        if not self._names:
            shell.events.register("pre_run_cell", lambda _: self._begin(shell.user_ns))
            shell.events.register("post_run_cell", lambda result: self._end(shell.user_ns, result))
        self._names |= set(names)

    def without_change(self, name: str) -> Mapping[int, str]:
        """The cells that failed without a change of `name`, by number, and their exceptions in words."""
        return {cell: error for cell, (error, unchanged) in self._failures.items() if name in unchanged}

    def _begin(self, names: Mapping) -> None:
        self._values = {name: names.get(name, _UNDEFINED) for name in self._names}

    def _end(self, names: Mapping, result: "ExecutionResult | None") -> None:
        error = result and (result.error_before_exec or result.error_in_exec)
        if error and result.execution_count:
            unchanged = {name for name, value in self._values.items() if names.get(name, _UNDEFINED) is value}
            self._failures[result.execution_count] = _in_words(error), unchanged
        self._values = {}  # frees tensors


def _in_words(error: BaseException) -> str:
    """The error's type, and for a syntax error also what is wrong and where."""
    name = type(error).__name__
    return f"{name} ({error.msg}, line {error.lineno})" if isinstance(error, SyntaxError) else name


def failures_in(shell: "InteractiveShell") -> Failures:
    """The failures of this shell: one object, however many sets a notebook opens."""
    return _OF_SHELLS.setdefault(shell, Failures())


def newest_failure(
    failures: Mapping[int, str], question_id: str, history: Sequence[str], cell: int
) -> tuple[int, str] | None:
    """The number and the exception of the newest cell after `cell` that answers `question_id`, if that cell failed."""
    numbers = range(cell + 1, len(history))
    newest = max((number for number in numbers if question_id in EXERCISE_LINE.findall(history[number])), default=None)
    return (newest, failures[newest]) if newest in failures else None
