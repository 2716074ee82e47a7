"""Rehearses a demo without a browser: runs its cells, makes its clicks, and compares the results with what it expects."""

import math
import re
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from nbformat import NotebookNode
from traitlets.config import Config

from course_staff.demos import SETTINGS
from course_staff.demos.controls import press
from course_staff.demos.needs import cells_by_step
from course_staff.demos.script import Demo, Number, Step, read_demo
from course_staff.demos.stage import leave_bets_to_the_room
from course_utils.errors import CourseError
from course_utils.settings import set_variable


def rehearse(paths: list[Path]) -> int:
    """Rehearse the demos in this process, whose settings become theirs; 0 where all went as expected, 1 where one did not.

    Prints a line for each step. Raises `CourseError` if a file is not a demo.
    """
    matplotlib.use("agg")
    leave_bets_to_the_room()
    is_wrong = False
    for demo in map(read_demo, paths):
        for name, value in {**SETTINGS, "COURSE_SCALE": demo.scale}.items():
            set_variable(name, value)
        with TemporaryDirectory() as folder, chdir(folder):
            for number, (step, problems) in enumerate(_play(demo), start=1):
                heading = f"{demo.name}, step {number} of {len(demo.steps)}, {step.title}"
                print(f"{heading}: {' '.join(problems) or 'as expected'}", flush=True)
                is_wrong |= bool(problems)
    return int(is_wrong)


def _play(demo: Demo) -> Iterator[tuple[Step, list[str]]]:
    """Each step, and in sentences what was not as expected; ends after a step whose cell failed."""
    shell = _Shell()
    for step, unseen, cell in cells_by_step(demo):
        for part in [*unseen, *([cell] if cell else [])]:
            if failure := shell.run(part):
                yield step, [failure]
                return
        yield step, [*shell.click(step), *shell.compare(step)]


class _Shell:
    """A fresh interactive Python, as a kernel has it, and what the last cell showed."""

    def __init__(self):
        InteractiveShell.clear_instance()
        self.shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
        self.text, self.pictures = "", []

    def run(self, cell: NotebookNode) -> str | None:
        """Run a cell of the chapter; returns the exception that stopped it, or None."""
        with capture_output() as captured:
            result = self.shell.run_cell(cell.source)
        self.text, self.pictures = captured.stdout, []
        self._collect(captured.outputs)
        error = result.error_before_exec or result.error_in_exec
        return f"Cell {cell.id!r} failed: {type(error).__name__}: {error}." if error else None

    def click(self, step: Step) -> Iterator[str]:
        """Make the step's clicks; says so where the picture stays as it is."""
        if not step.click:
            return
        before = self.pictures[-1:]
        try:
            with capture_output() as captured:
                press(step.click)
        except CourseError as error:
            yield str(error)
        self._collect(captured.outputs)
        if self.pictures[-1:] == before:
            yield "The clicks do not change the picture."

    def compare(self, step: Step) -> Iterator[str]:
        """A sentence for each thing that the step expects and that is missing."""
        output = _normalize(self.text)
        for text in step.text:
            if _normalize(text) not in output:
                yield f"{text!r} is not in the output."
        described = _normalize(self.pictures[-1][0]) if self.pictures else ""
        for phrase in step.picture:
            if _normalize(phrase) not in described:
                yield f"The picture's description lacks {phrase!r}; it is: {described or 'there is none'}"
        yield from filter(None, map(self._compute, step.numbers))

    def _compute(self, number: Number) -> str | None:
        try:
            value = eval(number.of, self.shell.user_ns)  # the author's own expression, over the chapter's names
        except Exception as error:
            return f"{number.of} cannot be computed ({type(error).__name__}: {error})."
        is_close = value == number.value or (number.within and math.isclose(value, number.value, rel_tol=number.within))
        return None if is_close else f"{number.of} is {value}, expected {number.value} within {number.within:.0%}."

    def _collect(self, outputs: list) -> None:
        for output in outputs:
            texts = [output.data[kind] for kind in ("text/plain", "text/markdown") if kind in output.data]
            self.text += "\n".join([*texts, ""])
            if "image/png" in output.data:
                self.pictures.append((output.data["text/plain"], output.data["image/png"]))


def _normalize(text: str) -> str:
    """The text in single spaces: rows of a table may be spaced in one way or another."""
    return re.sub(r"\s+", " ", text)
