"""`check("q1")` in a notebook: the learner's own object against the public cases, with words for whatever goes wrong."""

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from course_utils.errors import CourseError
from course_utils.files import exercises_of
from course_utils.grading import showing
from course_utils.grading.definition import Definition, digest_of_cell, find_definition, history_in
from course_utils.grading.failures import failures_in, newest_failure
from course_utils.grading.judge import Outcome, QuestionResult, judge_answer
from course_utils.grading.loading import SetEntry, load_set, question_from
from course_utils.grading.progress import Attempts, amend, recall
from course_utils.grading.question import CASE_SECONDS, Question
from course_utils.grading.run import is_untouched, run_cases
from course_utils.grading.showing import Line, Report
from course_utils.grading.solutions import solution_in, solutions_at
from course_utils.settings import settings, variables

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


class FailedCheckError(CourseError):
    """A failed check under `COURSE_STRICT=1`; the message is all that the check says."""


def exercise(name: str) -> "Checker":
    """The check of the set called `name`, such as `"03_adamw"`.

    Raises `CourseError`, listing the sets, for an unknown one.
    """
    return Checker(name, load_set(name)["questions"], _running_shell())


class Checker:
    """`check("q1")` checks an answer, `check("q1", hint=1)` shows a hint, `check("q1", solution=True)` our solution beside the
    answer, `check()` the progress.

    `shell` is that of the learner's notebook, whose cells are watched for failures; None if nobody sees one.
    """

    def __init__(
        self,
        set_name: str,
        entries: list[SetEntry],
        shell: "InteractiveShell | None" = None,
        seconds: float = CASE_SECONDS,
    ):
        self.set_name = set_name
        self.seconds = seconds
        self.entries = {entry["id"]: entry for entry in entries}
        self._shell = shell
        if shell:
            failures_in(shell).watch(shell, [entry["answer"] for entry in entries])

    def __call__(
        self,
        question_id: str | None = None,
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
            return self._respond(question_id, hint, solution, points)
        except CourseError as error:
            if settings().strict or points or not self._shell:
                raise
            _display(Report((Line("head", str(error)),)))
            return None

    def _respond(self, question_id: str | None, hint: int | None, solution: bool | str, points: bool) -> float | None:
        result = None
        if question_id is None:
            report = showing.progress_report(self.set_name, list(self.entries.values()), recall(self.set_name))
        elif hint is not None:
            report = self._hint(question_from(self._entry(question_id)), hint)
        elif solution:
            report = self._solution(self._entry(question_id), solution)
        else:
            result, report = self.check_answer(question_id)
        _display(report)
        if result is None:
            return None
        if points:
            return result.points
        if settings().strict and not result.passed:
            raise FailedCheckError(str(report))
        return None

    def check_answer(self, question_id: str) -> tuple[QuestionResult, Report]:
        """The result, and the report on it, which is not shown; progress is remembered."""
        entry = self._entry(question_id)
        question = question_from(entry)
        names, definition = self._find_answer(question)
        cases = question.cases()
        if definition is None:
            outcomes = [Outcome("missing")] * len(cases)
        elif definition.source and is_untouched(definition.source, entry["stub"]):
            outcomes = [Outcome("untouched")] * len(cases)
        else:
            outcomes = run_cases(question, names[question.answer], cases, self.seconds, definition.source)
        tries = self._attempts(question).tries + 1
        result = judge_answer(question, cases, outcomes, entry, public_only=entry["has_hidden"], tries=tries)
        attempts = recall(self.set_name) if result.unanswered else self._remember(question, result, definition)
        return result, self._make_report(question, result, definition, attempts)

    def __repr__(self):
        return f"check for {self.set_name}: {', '.join(self.entries)}"

    def _find_answer(self, question: Question) -> tuple[Mapping, Definition | None]:
        """The learner's names, and where the answer is defined among them, or None if it is not."""
        names, compiler = _get_namespace()
        if question.answer not in names:
            return names, None
        failures = self._failures(question.answer)
        return names, find_definition(question.answer, names[question.answer], names, compiler, failures)

    def _failures(self, answer: str) -> Mapping[int, str]:
        return failures_in(self._shell).without_change(answer) if self._shell else {}

    def newer_failure(self, question: Question, definition: Definition | None, unanswered: bool) -> str:
        """A sentence if a newer answer than the one defined failed to run, else an empty string."""
        if definition and not definition.cell:
            return ""
        history = history_in(_get_namespace()[0])
        last_cell = definition.cell if definition else 0
        newest = newest_failure(self._failures(question.answer), question.id, history, last_cell)
        if newest is None:
            return ""
        failure = "In [{}] failed with {}".format(*newest)
        if definition is None or unanswered:
            return f"{failure}, {not_defined(question)} and run it again."
        return f"Not your newest answer: {failure}, so this is a verdict on the one from In [{last_cell}]."

    def _remember(self, question: Question, result: QuestionResult, definition: Definition) -> dict[str, Attempts]:
        """Count the check of a written answer; returns the attempts at all questions of the set."""
        hint = question.hints.index(result.hint) + 1 if result.hint else 0
        origin = self._origin(definition) if self._shell else {}

        def count(attempts: Attempts) -> Attempts:
            attempts = attempts.after(result.passed, result.points)
            return replace(attempts, hint=max(attempts.hint, hint), **origin)

        return amend(self.set_name, question.id, count)

    def _make_report(
        self, question: Question, result: QuestionResult, definition: Definition | None, attempts: dict[str, Attempts]
    ) -> Report:
        records = {name: attempts[name] for name in attempts if name in self.entries}
        note = definition.sentence(question.answer, numbered=self._shell is not None) if definition else ""
        failure = self.newer_failure(question, definition, result.unanswered)
        has_solution = bool(solutions_at(self.set_name))
        return showing.check_report(
            result, question, note, records, len(self.entries), newer_failure=failure, has_solution=has_solution
        )

    def _origin(self, definition: Definition) -> dict[str, str | float]:
        """The checked cell's digest, its notebook, and the time: they tell whether the notebook's file is older."""
        session = variables("JPY_SESSION_NAME").get("JPY_SESSION_NAME", "")  # in JupyterLab, the notebook's path
        notebook = Path(session) if session.endswith(".ipynb") else Path(exercises_of(self.set_name)).name
        return {
            "cell": digest_of_cell(definition.source) if definition.source else "",
            "notebook": str(Path.cwd() / notebook),
            "time": time.time(),
        }

    def _hint(self, question: Question, number: int) -> Report:
        if number not in range(1, len(question.hints) + 1):
            raise CourseError(f"There is no hint {number!r}; ask for hint=1, 2 or 3.")
        self._update(question, hint=max(self._attempts(question).hint, number))
        return showing.hint_report(question, number, bool(solutions_at(self.set_name)))

    def _solution(self, entry: SetEntry, wish: bool | str) -> Report:
        question = question_from(entry)
        if wish not in (True, "anyway"):
            raise CourseError(f'There is no solution={wish!r}; ask for solution=True, or for solution="anyway".')
        path = solutions_at(self.set_name)
        if path is None:
            return showing.no_solution_report(question, self.set_name)
        if not (self._attempts(question).tried or wish == "anyway"):
            return showing.try_first_report(question)
        solution = solution_in(path, question.id)
        _, definition = self._find_answer(question)
        answer = definition.source if definition and definition.source else entry["stub"]
        self._update(question, seen=True)
        return showing.solution_report(question, answer, solution, self._attempts(question).passed)

    def _attempts(self, question: Question) -> Attempts:
        return recall(self.set_name).get(question.id, Attempts())

    def _update(self, question: Question, **changes) -> None:
        amend(self.set_name, question.id, lambda attempts: replace(attempts, **changes))

    def _entry(self, question_id: str) -> SetEntry:
        if question_id not in self.entries:
            raise CourseError(f"{self.set_name} has no question {question_id!r}; it has {', '.join(self.entries)}.")
        return self.entries[question_id]


def not_defined(question: Question) -> str:
    """What follows from a cell that failed before it defined the answer, and what to do, as the end of a sentence."""
    return f"so your `{question.answer}` is not defined yet: fix that cell"


def _get_namespace() -> tuple[Mapping, object]:
    """The learner's names, and IPython's compiler where there is one."""
    shell = _running_shell()
    if shell is None:
        return vars(sys.modules["__main__"]), None
    return shell.user_ns, getattr(shell, "compile", None)


def _display(report: Report) -> None:
    if _running_shell() is None:
        print(report)
        return
    from IPython.display import display

    display(report)


def _running_shell() -> "InteractiveShell | None":
    """The IPython shell that runs here; IPython is not imported for the question."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None
