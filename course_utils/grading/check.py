"""`check("q1")` in a notebook: the learner's own object against the public cases, with words for whatever goes wrong."""

import hashlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from course_utils.errors import CourseError
from course_utils.files import exercises_of
from course_utils.grading.definition import Definition, cell_in_words, definition, history_in
from course_utils.grading.failures import MARK, failures_in, newest_failure
from course_utils.grading.judge import Outcome, Result, judge_answer
from course_utils.grading.loading import load_set, question_from
from course_utils.grading.progress import Attempts, amend, recall
from course_utils.grading.question import Question
from course_utils.grading.run import SECONDS, OutOfTime, is_untouched, run_cases, time_limit
from course_utils.grading.showing import (
    Line,
    Shown,
    overview,
    report_no_solution,
    show_check,
    show_hint,
    show_solution,
    withhold_solution,
)
from course_utils.grading.solutions import solution_in, solutions_at
from course_utils.settings import settings, variables


class FailedCheckError(CourseError):
    """A failed check under `COURSE_STRICT=1`; the message is all that the check says."""


def exercise(name: str) -> "Checker":
    """The check of the set called `name`, such as `"03_adamw"`.

    Raises `CourseError`, listing the sets, for an unknown one.
    """
    return Checker(name, load_set(name)["questions"])


class Checker:
    """`check("q1")` checks an answer, `check("q1", hint=1)` shows a hint, `check("q1", solution=True)` our solution beside the
    answer, `check()` the progress.

    `live`: the learner's own notebook runs here, and they see what is shown.
    """

    def __init__(self, name: str, entries: list[dict], seconds: float = SECONDS, live: bool = True):
        self.name, self.seconds, self.live = name, seconds, live
        self.stopped: dict[str, str] = {}  # the questions whose cell stopped in the terminal, and with what
        self.entries = {entry["id"]: entry for entry in entries}
        if live and (shell := _shell()):
            failures_in(shell).watch(shell, [entry["answer"] for entry in entries])

    def __call__(
        self,
        question: str | None = None,
        *,
        hint: int | None = None,
        solution: bool | str = False,
        points: bool = False,
    ) -> float | None:
        """Show the verdict on what the notebook defines now; with `hint` (1 to 3) a hint instead, with `solution` our own.

        The solution is shown once an answer was checked; with `solution="anyway"` before that too. With `points` it returns
        those that the public cases are worth, as nbgrader takes partial credit. In strict mode, with `points`, and outside of
        notebooks it raises `CourseError` for an unknown question, hint or `solution`, else it shows that sentence; without
        `points` also `FailedCheckError` in strict mode.
        """
        try:
            return self._respond(question, hint, solution, points)
        except CourseError as error:
            if settings().strict or points or not (self.live and _shell()):
                raise
            return _display(Shown((Line("head", str(error)),)))

    def _respond(self, question: str | None, hint: int | None, solution: bool | str, points: bool) -> float | None:
        if question is None:
            return _display(overview(self.name, list(self.entries.values()), recall(self.name)))
        entry = self._entry(question)
        if hint is not None:
            return _display(self._hint(question_from(entry), hint))
        if solution:
            return _display(self._solution(question_from(entry), entry, solution))
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
        loaded = question_from(entry)
        names, where = self._find_answer(loaded)
        if where is None:
            outcomes = [Outcome("missing")] * len(loaded.cases())
        elif where.source and is_untouched(where.source, entry["stub"]):
            outcomes = [Outcome("untouched")] * len(loaded.cases())
        else:
            outcomes = run_cases(loaded, names[loaded.answer], loaded.cases(), self.seconds)
        return self._result(loaded, entry, outcomes, where)

    def __repr__(self):
        return f"check for {self.name}: {', '.join(self.entries)}"

    def _find_answer(self, question: Question) -> tuple[Mapping, Definition | None]:
        """The learner's names, and where the answer is defined among them, or None where it is not."""
        names, compiler = _notebook()
        if question.answer not in names:
            return names, None
        return names, definition(
            question.answer, names[question.answer], names, compiler, self._failures(question.answer)
        )

    def _failures(self, answer: str) -> Mapping[int, str]:
        shell = _shell() if self.live else None
        return failures_in(shell).of(answer) if shell else {}

    def _say_newer(self, question: Question, where: Definition | None, untouched: bool) -> str:
        """What is wrong with a newer answer than the one that is defined, or nothing."""
        ending = f"so your `{question.answer}` is not defined yet: fix that cell"
        if not self.live:
            stopped = self.stopped.get(question.id)
            return f"Its cell stopped with {stopped}, {ending}." if stopped and (where is None or untouched) else ""
        if where and not where.cell:
            return ""
        history = history_in(_notebook()[0])
        newest = newest_failure(self._failures(question.answer), question.id, history, where.cell if where else 0)
        if newest is None:
            return ""
        failed = "In [{}] failed with {}".format(*newest)
        if where is None or untouched:
            return f"{failed}, {ending} and run it again."
        return f"Not your newest answer: {failed}, so this is a verdict on the one from In [{where.cell}]."

    def _result(
        self, question: Question, entry: Mapping, outcomes: Sequence[Outcome], where: Definition | None
    ) -> tuple[Result, Shown]:
        records = recall(self.name)
        record = records.get(question.id, Attempts())
        tries, hidden = record.tries + 1, bool(entry["has_hidden"])
        result = judge_answer(question, question.cases(), outcomes, entry, public_only=hidden, tries=tries)
        if not result.untouched:
            hint = question.hints.index(result.hint) + 1 if result.hint else 0
            place = self._place(where) if self.live else {}

            def after(record: Attempts) -> Attempts:
                record = record.after(result.passed, result.points)
                return replace(record, hint=max(record.hint, hint), **place)

            records = amend(self.name, question.id, after)
        of_set = {name: record for name, record in records.items() if name in self.entries}
        details = {"older": self._say_newer(question, where, result.untouched)}
        details["has_solution"] = bool(solutions_at(self.name))
        graded = where.sentence(question.answer, numbered=self.live) if where else ""
        return result, show_check(result, question, graded, of_set, len(self.entries), **details)

    def _place(self, where: Definition) -> dict:
        """What was checked, in which notebook, and when: a reader of the file can tell whether it is as new."""
        session = variables("JPY_SESSION_NAME").get("JPY_SESSION_NAME", "")  # its path, in JupyterLab
        notebook = Path(session) if session.endswith(".ipynb") else Path(exercises_of(self.name)).name
        return {
            "cell": where.source and _digest(where.source),
            "notebook": str(Path.cwd() / notebook),
            "time": time.time(),
        }

    def _hint(self, question: Question, number: int) -> Shown:
        if number not in range(1, len(question.hints) + 1):
            raise CourseError(f"There is no hint {number!r}; ask for hint=1, 2 or 3.")
        self._update(question, hint=max(self._record(question).hint, number))
        return show_hint(question, number, bool(solutions_at(self.name)))

    def _solution(self, question: Question, entry: Mapping, wish: bool | str) -> Shown:
        if wish not in (True, "anyway"):
            raise CourseError(f'There is no solution={wish!r}; ask for solution=True, or for solution="anyway".')
        path = solutions_at(self.name)
        if path is None:
            return report_no_solution(question, self.name)
        if not (self._record(question).tried or wish == "anyway"):
            return withhold_solution(question)
        ours = solution_in(path, question.id)
        _, where = self._find_answer(question)
        self._update(question, seen=True)
        return show_solution(question, where and where.source or entry["stub"], ours, self._record(question).passed)

    def _record(self, question: Question) -> Attempts:
        return recall(self.name).get(question.id, Attempts())

    def _update(self, question: Question, **changes) -> None:
        amend(self.name, question.id, lambda record: replace(record, **changes))

    def _entry(self, question: str) -> dict:
        if question not in self.entries:
            raise CourseError(f"{self.name} has no question {question!r}; it has {', '.join(self.entries)}.")
        return self.entries[question]


def check_notebook(path: Path, name: str) -> Iterator[tuple[Result, Shown]]:
    """Run a learner's own notebook from top to bottom, here and silently; then check each question of the set called `name`.

    A cell that stops is named on stdout. Raises `CourseError` for an unknown set, for a file that is no notebook, and for one
    that is older than what was checked in it.
    """
    from IPython.utils.capture import capture_output

    checker, sources = Checker(name, load_set(name)["questions"], SECONDS, live=False), _code_of(path)
    if unsaved := _find_unsaved(path, name, sources):
        raise CourseError(
            f"What you checked in the notebook is not in its file yet ({', '.join(unsaved)}): "
            "save the notebook first (Ctrl+S), then type this again."
        )
    with _own_shell() as shell:
        for source in sources:
            error = None
            try:
                with capture_output(), time_limit(SECONDS):
                    done = shell.run_cell(source, store_history=True)
                error = done.error_before_exec or done.error_in_exec
            except OutOfTime:
                error = TimeoutError(f"it had not ended after {SECONDS:g} s")
            if error:
                words = cell_in_words(source)
                checker.stopped |= dict.fromkeys(MARK.findall(source), type(error).__name__)
                # A syntax error names its file too, which IPython has made up.
                what = f"{error.msg} (line {error.lineno})" if isinstance(error, SyntaxError) else error
                print(f"{words[0].upper()}{words[1:]} stopped with {type(error).__name__}: {what}")
        for question in checker.entries:
            with capture_output():
                looked = checker.look(question)
            yield looked


def _code_of(path: Path) -> list[str]:
    """The code cells of a notebook, without those that call `check`."""
    try:
        cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError):
        raise CourseError(f"{path} is not a notebook of format 4; restore it, or save it from JupyterLab.") from None
    return [source for source in sources if not source.lstrip().startswith("check(")]


def _find_unsaved(path: Path, name: str, sources: list[str]) -> list[str]:
    """The questions whose answer was checked in the open notebook after its file was written, which does not hold it."""
    from IPython.core.inputtransformer2 import TransformerManager

    held, written = set(), Path(path).stat().st_mtime
    for source in sources:
        with suppress(SyntaxError):
            held.add(_digest(TransformerManager().transform_cell(source)))
    newer = {question: record for question, record in recall(name).items() if record.cell and record.time > written}
    here = Path(path).resolve()
    return [q for q, record in newer.items() if record.cell not in held and Path(record.notebook).resolve() == here]


def _digest(source: str) -> str:
    """A hash of the cell's code, without spaces and blank lines."""
    return hashlib.sha256(" ".join(source.split()).encode()).hexdigest()[:16]


@contextmanager
def _own_shell() -> Iterator:
    """An IPython shell for a notebook that runs here; afterwards everything is as it was."""
    from IPython.core.interactiveshell import InteractiveShell

    from course_utils.grading.shell import NotebookShell, notebook_shell

    before = sys.modules["__main__"]
    InteractiveShell.clear_instance()
    try:
        yield notebook_shell()
    finally:
        NotebookShell.clear_instance()
        sys.modules["__main__"] = before


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
