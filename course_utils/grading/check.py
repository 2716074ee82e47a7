"""`check("q1")` in a notebook: the learner's own object against the public cases, with words for whatever goes wrong."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from course_utils.errors import CourseError
from course_utils.grading.definition import Definition, definition
from course_utils.grading.judge import Outcome, Result, grade
from course_utils.grading.progress import Record, recall, remember
from course_utils.grading.question import Question
from course_utils.grading.released import load_set, question_from
from course_utils.grading.run import SECONDS, OutOfTime, is_untouched, run_cases, time_limit
from course_utils.grading.showing import Shown, hint_shown, overview, shown
from course_utils.settings import settings


class FailedCheckError(CourseError):
    """A failed check under `COURSE_STRICT=1`; the message is all that the check says."""


def exercise(name: str, seconds: float = SECONDS) -> "Checker":
    """The check of the set called `name`, such as `"03_adamw"`; `seconds` is the time limit of one case.

    Raises `CourseError`, listing the sets, for an unknown one.
    """
    return Checker(name, load_set(name)["questions"], seconds)


class Checker:
    """`check("q1")` checks an answer, `check("q1", hint=1)` shows a hint, `check()` the progress."""

    def __init__(self, name: str, entries: list[dict], seconds: float = SECONDS):
        self.name, self.seconds = name, seconds
        self.entries = {entry["id"]: entry for entry in entries}

    def __call__(self, question: str | None = None, *, hint: int | None = None, points: bool = False) -> float | None:
        """Show the verdict on what the notebook defines now; with `hint` (1 to 3) a hint instead.

        With `points` it returns those that the public cases are worth, as nbgrader takes partial credit. Raises `CourseError`
        for an unknown question or hint; without `points` also `FailedCheckError` in strict mode.
        """
        if question is None:
            return _display(overview(self.name, list(self.entries.values()), recall(self.name)))
        entry = self._entry(question)
        if hint is not None:
            return _display(_hint(question_from(entry), hint))
        result, report = self.look(question)
        _display(report)
        if points:
            return result.points
        if settings().strict and not result.passed:
            raise FailedCheckError(str(report))
        return None

    def look(self, question: str) -> tuple[Result, Shown]:
        """The result and what there is to show of it, without showing it; progress is remembered."""
        entry = self._entry(question)
        asked = question_from(entry)
        names, compiler = _notebook()
        missing = asked.answer not in names
        answer = None if missing else names[asked.answer]
        where = Definition("") if missing else definition(asked.answer, answer, names, compiler)
        outcomes = [Outcome("missing")] * len(asked.cases()) if missing else self._outcomes(asked, entry, answer, where)
        return self._result(asked, entry, outcomes, "" if missing else where.sentence(asked.answer))

    def __repr__(self):
        return f"check for {self.name}: {', '.join(self.entries)}"

    def _outcomes(self, question: Question, entry: Mapping, answer, where: Definition) -> list[Outcome]:
        if where.source and is_untouched(where.source, entry["stub"]):
            return [Outcome("untouched")] * len(question.cases())
        return run_cases(question, answer, question.cases(), self.seconds)

    def _result(self, question: Question, entry: Mapping, outcomes, graded: str) -> tuple[Result, Shown]:
        records = recall(self.name)
        record = records.get(question.id, Record())
        tries, hidden = record.tries + 1, bool(entry["has_hidden"])
        result = grade(question, question.cases(), outcomes, entry, public_only=hidden, tries=tries)
        if not all(verdict.kind in ("untouched", "missing") for verdict in result.verdicts):
            records[question.id] = record.after(result.passed, result.points)
            remember(self.name, records)
        known = {name: record for name, record in records.items() if name in self.entries}
        return result, shown(result, question, graded, known, len(self.entries))

    def _entry(self, question: str) -> dict:
        if question not in self.entries:
            raise CourseError(f"{self.name} has no question {question!r}; it has {', '.join(self.entries)}.")
        return self.entries[question]


def check_notebook(path: Path, name: str, seconds: float = SECONDS) -> Iterator[tuple[Result, Shown]]:
    """Run a learner's own notebook from top to bottom, here and silently; then check each question of the set called `name`.

    A cell that stops is named on stdout. Raises `CourseError` for an unknown set and for a file that is no notebook.
    """
    from IPython.utils.capture import capture_output

    checker = Checker(name, load_set(name)["questions"], seconds)
    with _own_shell() as shell:
        for number, source in _code_of(path):
            error = None
            try:
                with capture_output(), time_limit(seconds):
                    done = shell.run_cell(source, store_history=True)
                error = done.error_before_exec or done.error_in_exec
            except OutOfTime:
                error = TimeoutError(f"it had not ended after {seconds:g} s")
            if error:
                print(f"Cell {number} stopped with {type(error).__name__}: {error}")
        for question in checker.entries:
            with capture_output():
                looked = checker.look(question)
            yield looked


def _code_of(path: Path) -> list[tuple[int, str]]:
    """The code cells of a notebook with their numbers, without those that call `check`."""
    try:
        cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
        sources = [(n, "".join(c["source"])) for n, c in enumerate(cells, start=1) if c["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError):
        raise CourseError(f"{path} is not a notebook of format 4; restore it, or save it from JupyterLab.") from None
    return [(number, source) for number, source in sources if not source.lstrip().startswith("check(")]


@contextmanager
def _own_shell() -> Iterator:
    """An IPython shell for a notebook that runs here; afterwards everything is as it was."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    before = sys.modules["__main__"]
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    try:
        yield shell
    finally:
        InteractiveShell.clear_instance()
        sys.modules["__main__"] = before


def _hint(question: Question, number: int) -> Shown:
    if number not in range(1, len(question.hints) + 1):
        raise CourseError(f"There is no hint {number!r}; ask for hint=1, 2 or 3.")
    return hint_shown(question, number)


def _notebook() -> tuple[Mapping, object]:
    """The learner's names, and IPython's compiler where there is one."""
    shell = _shell()
    if shell is None:
        return vars(sys.modules["__main__"]), None
    return shell.user_ns, getattr(shell, "compile", None)


def _display(report: Shown) -> None:
    if _shell() is None:
        print(report)
        return
    from IPython.display import display

    display(report)


def _shell():
    """The IPython shell that runs here, or None; IPython is not imported for the question."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None
