"""`course check` in a terminal: runs a learner's notebook, as saved, from top to bottom and checks it."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from course_utils.errors import CourseError
from course_utils.grading.check import Checker, not_defined
from course_utils.grading.definition import Definition, cell_in_words, digest_of_cell
from course_utils.grading.judge import QuestionResult
from course_utils.grading.loading import SetEntry, load_set
from course_utils.grading.progress import recall
from course_utils.grading.question import CASE_SECONDS, EXERCISE_LINE, Question
from course_utils.grading.showing import Report
from course_utils.grading.time_limit import OutOfTime, time_limit

if TYPE_CHECKING:
    from course_utils.grading.shell import NotebookShell


class FileChecker(Checker):
    """The check of a notebook that ran in this process; `stopped` has the exception's type by question whose cell stopped."""

    def __init__(self, set_name: str, entries: list[SetEntry]):
        super().__init__(set_name, entries)
        self.stopped: dict[str, str] = {}

    def newer_failure(self, question: Question, definition: Definition | None, unanswered: bool) -> str:
        stopped = self.stopped.get(question.id)
        is_defined = definition is not None and not unanswered
        return f"Its cell stopped with {stopped}, {not_defined(question)}." if stopped and not is_defined else ""


def check_notebook(path: Path, set_name: str) -> Iterator[tuple[QuestionResult, Report]]:
    """Run a learner's notebook from top to bottom in this process, silently; then check each question of the set.

    A cell that stops is named on stdout. Raises `CourseError` for an unknown set, for a file that is not a notebook, and for one
    that is older than what was checked in it.
    """
    from IPython.utils.capture import capture_output

    checker = FileChecker(set_name, load_set(set_name)["questions"])
    sources = _read_code(path)
    if unsaved := _find_unsaved(path, set_name, sources):
        raise CourseError(
            f"What you checked in the notebook is not in its file yet ({', '.join(unsaved)}): "
            "save the notebook first (Ctrl+S), then type this again."
        )
    with _own_shell() as shell:
        for source in sources:
            error = None
            try:
                with capture_output(), time_limit(CASE_SECONDS):
                    execution = shell.run_cell(source, store_history=True)
                error = execution.error_before_exec or execution.error_in_exec
            except OutOfTime:
                error = TimeoutError(f"it had not ended after {CASE_SECONDS:g} s")
            if error:
                name = cell_in_words(source)
                checker.stopped |= dict.fromkeys(EXERCISE_LINE.findall(source), type(error).__name__)
                # A syntax error names its file too, which IPython has made up.
                message = f"{error.msg} (line {error.lineno})" if isinstance(error, SyntaxError) else error
                print(f"{name[0].upper()}{name[1:]} stopped with {type(error).__name__}: {message}")
        for question_id in checker.entries:
            with capture_output():
                result_and_report = checker.check_answer(question_id)
            yield result_and_report


def _read_code(path: Path) -> list[str]:
    """The code cells of a notebook, without those that call `check`."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError):
        raise CourseError(f"{path} is not a notebook of format 4; restore it, or save it from JupyterLab.") from None
    return [source for source in sources if not source.lstrip().startswith("check(")]


def _find_unsaved(path: Path, set_name: str, sources: list[str]) -> list[str]:
    """The questions whose answer was checked in the open notebook, but is not in its file, which is older."""
    from IPython.core.inputtransformer2 import TransformerManager

    digests = set()
    saved_at = path.stat().st_mtime
    for source in sources:
        with suppress(SyntaxError):
            digests.add(digest_of_cell(TransformerManager().transform_cell(source)))
    newer = {q: attempts for q, attempts in recall(set_name).items() if attempts.cell and attempts.time > saved_at}
    of_this_file = {q: last for q, last in newer.items() if Path(last.notebook).resolve() == path.resolve()}
    return [q for q, last in of_this_file.items() if last.cell not in digests]


@contextmanager
def _own_shell() -> Iterator["NotebookShell"]:
    """A shell of its own for the notebook; `__main__` is as before afterwards."""
    from IPython.core.interactiveshell import InteractiveShell

    from course_utils.grading.shell import NotebookShell, notebook_shell

    before = sys.modules["__main__"]
    InteractiveShell.clear_instance()
    try:
        yield notebook_shell()
    finally:
        NotebookShell.clear_instance()
        sys.modules["__main__"] = before
