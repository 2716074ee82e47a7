"""A demo carried through without a browser: its cells run, its clicks are made, and what it expects is compared.

`python -m course_staff.demos.rehearse FILE …` does it in this process, one demo after another; `rehearse` starts that process.
"""

import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from course_staff.demos import SETTINGS
from course_staff.demos.needs import plan
from course_staff.demos.script import Demo, Number, Step, read_demo
from course_staff.demos.stage import leave_bets_to_the_room
from course_utils.errors import CourseError
from course_utils.settings import environment_for_child, set_variable

SECONDS = 600


@dataclass(frozen=True)
class Outcome:
    """How a step went; `wrong` says in sentences what was not as expected."""

    demo: Demo
    number: int
    wrong: tuple[str, ...]

    def __str__(self) -> str:
        step = self.demo.steps[self.number - 1]
        head = f"{self.demo.name}, step {self.number} of {len(self.demo.steps)}, {step.title}"
        return f"{head}: {' '.join(self.wrong) or 'as expected'}"


def rehearse(paths: list[Path], seconds: float = SECONDS) -> int:
    """Rehearse the demos in a process with the demos' settings; 0 where all went as expected, 1 where one did not.

    A line for each step goes to this process's output. Raises `CourseError` where a demo is none, or it takes too long.
    """
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "course_staff.demos.rehearse", *map(str, paths)]
        environment = environment_for_child(**SETTINGS, IPYTHONDIR=folder, MPLBACKEND="agg")
        try:
            return subprocess.run(command, env=environment, timeout=seconds, check=False).returncode
        except subprocess.TimeoutExpired:
            raise CourseError(
                f"The demos were not through after {seconds:g} s; rehearse fewer of them at a time."
            ) from None


def outcomes(demo: Demo) -> Iterator[Outcome]:
    """Each step's outcome, in this process; stops after a step whose cell failed."""
    set_variable("COURSE_SCALE", demo.scale)
    leave_bets_to_the_room()
    stage = _Stage()
    for number, (step, unseen, cell) in enumerate(plan(demo), start=1):
        failed = next(filter(None, map(stage.run, unseen)), None) or (stage.run(cell) if cell else None)
        wrong = [failed] if failed else [*stage.click(step), *stage.missing(step)]
        yield Outcome(demo, number, tuple(wrong))
        if failed:
            return


class _Stage:
    """A fresh interactive Python, as a kernel has it, and what the last cell showed."""

    def __init__(self):
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        InteractiveShell.clear_instance()
        quiet = Config({"HistoryManager": {"enabled": False}})
        self.shell = InteractiveShell.instance(config=quiet)
        self.text, self.pictures = "", []

    def run(self, cell) -> str | None:
        """Run a cell of the chapter; what it failed with, or None."""
        from IPython.utils.capture import capture_output

        with capture_output() as captured:
            result = self.shell.run_cell(cell.source)
        self.text, self.pictures = captured.stdout, []
        self._collect(captured.outputs)
        error = result.error_before_exec or result.error_in_exec
        return f"Cell {cell.id!r} failed: {type(error).__name__}: {error}." if error else None

    def click(self, step: Step) -> Iterator[str]:
        """Make the step's clicks; says so where the picture stays as it is."""
        from IPython.utils.capture import capture_output

        from course_staff.demos.controls import press

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
            yield "The clicks change nothing in the picture."

    def missing(self, step: Step) -> Iterator[str]:
        """What the step expects and is not there."""
        output = _normalize(self.text)
        for text in step.text:
            if _normalize(text) not in output:
                yield f"{text!r} does not stand in the output."
        description = _normalize(self.pictures[-1][0]) if self.pictures else ""
        for words in step.picture:
            if _normalize(words) not in description:
                yield f"The picture is not described with {words!r}, but: {description or 'there is none'}"
        yield from filter(None, map(self._compare, step.numbers))

    def _compare(self, number: Number) -> str | None:
        try:
            value = eval(number.of, self.shell.user_ns)  # the author's own expression, over the chapter's names
        except Exception as error:
            return f"{number.of} cannot be computed ({type(error).__name__}: {error})."
        try:
            near = math.isclose(value, number.value, rel_tol=number.within, abs_tol=0.0)
        except TypeError:
            near = value == number.value
        return None if near else f"{number.of} is {value}, expected {number.value} within {number.within:.0%}."

    def _collect(self, outputs: list) -> None:
        for output in outputs:
            self.text += "\n".join(
                str(output.data[kind]) for kind in ("text/plain", "text/markdown") if kind in output.data
            )
            self.text += "\n"
            if "image/png" in output.data:
                self.pictures.append((output.data["text/plain"], output.data["image/png"]))


def _normalize(text: str) -> str:
    """Without what only lays it out: rows of a table may be spaced in one way or another."""
    return re.sub(r"\s+", " ", text)


def main(paths: list[str]) -> int:
    """Rehearse each demo in turn, a line for each step; 1 where something was not as expected, 2 on a demo that is none."""
    wrong = 0
    for path in paths:
        with TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                for outcome in outcomes(read_demo(Path(path))):
                    print(outcome, flush=True)
                    wrong += bool(outcome.wrong)
            except CourseError as error:
                print(error, file=sys.stderr)
                return 2
            finally:
                os.chdir(Path(path).parent)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
