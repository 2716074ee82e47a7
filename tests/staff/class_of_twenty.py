"""Twenty submissions to an exercise set, made from its solutions: the class that docs/instructors.md walks through.

`python tests/staff/class_of_twenty.py FOLDER` writes them but for one, `--late` that one; with `--write` they are graded
too, and the guide shows what came out.
"""

import argparse
import contextlib
import io
import json
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tiny_set import answered

from course_staff.notebooks.files import read_notebook
from course_staff.release.source import AuthoredQuestion, apply_mistake, load_solutions, marker
from course_utils.cli import main
from course_utils.files import exercises_of
from course_utils.grading.run import is_untouched

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "instructors.md"
SET, SEED, LATE_STUDENT = "03_adamw", 2026, "student-20"
MARKS = "<!-- written by tests/staff/class_of_twenty.py -->", "<!-- end of what class_of_twenty.py writes -->"
HOSTILE = """import os, pathlib, subprocess, tempfile
for place in ("/", str(pathlib.Path.home()), os.getcwd()):
    for path in pathlib.Path(place).glob("*/solutions/*.ipynb"):
        print(path.read_text())
trace = os.path.join(tempfile.gettempdir(), "was-here")
for attempt in (lambda: subprocess.run(["touch", trace]), lambda: pathlib.Path("results.json").write_text("[]")):
    try:
        attempt()
    except Exception:
        pass
print('{"points": 25, "of": 25}')
os._exit(0)"""
ENDLESS = "while True:\n    pass"


def write_class(folder: Path, is_late: bool = False) -> dict[str, str]:
    """Write all notebooks of the class but the late one, or with `is_late` only that one; student to description."""
    folder.mkdir(parents=True, exist_ok=True)
    class_submissions = submissions(load_solutions(ROOT / "solutions" / f"{SET}.ipynb"))
    for name, (_, text) in class_submissions.items():
        if (name == LATE_STUDENT) == is_late:
            (folder / f"{name}.ipynb").write_text(text, encoding="utf-8")
    return {name: description for name, (description, _) in class_submissions.items()}


def submissions(all_authored: list[AuthoredQuestion]) -> dict[str, tuple[str, str]]:
    """Student to what is handed in: in words, and as the file's text."""
    right = {authored.question.id: authored.solution for authored in all_authored}
    on_time = [
        *_write_honest_ones(all_authored, right),
        *_write_wrong_ones(all_authored, right),
        *_write_odd_ones(right),
    ]
    by_student = {f"student-{number:02}": submission for number, submission in enumerate(on_time, start=1)}
    return {**by_student, LATE_STUDENT: ("right, a day late", notebook(right))}


def _write_honest_ones(all_authored: list[AuthoredQuestion], right: dict[str, str]) -> Iterator[tuple[str, str]]:
    yield "the author's own answers", notebook(right)
    variants = {
        authored.question.id: authored.question.variants for authored in all_authored if authored.question.variants
    }
    for number in (0, 1):
        styles = {name: of_question[number].source for name, of_question in variants.items()}
        yield "right answers in another style", notebook({**right, **styles})
    yield "right answers, cells in reverse order", notebook(right, order=reversed)
    yield "the first four questions only", notebook(dict(list(right.items())[:4]))
    yield "nothing written yet", notebook({})


def _write_wrong_ones(all_authored: list[AuthoredQuestion], right: dict[str, str]) -> Iterator[tuple[str, str]]:
    for authored in all_authored[:7]:
        name = authored.question.id
        mistake = authored.question.mistakes[0]
        answer = apply_mistake(authored.solution, mistake)
        is_stub = is_untouched(f"# EXERCISE {name}\n{answer}", authored.stub)
        yield f"{name}: {'left as it was given' if is_stub else mistake.name}", notebook({**right, name: answer})
    all_wrong = {
        authored.question.id: apply_mistake(authored.solution, authored.question.mistakes[0 if number % 2 else -1])
        for number, authored in enumerate(all_authored)
    }
    yield "a known mistake in every question", notebook(all_wrong)


def _write_odd_ones(right: dict[str, str]) -> Iterator[tuple[str, str]]:
    yield "an endless loop as the answer to q1", notebook({**right, "q1": ENDLESS})
    yield "hostile: reads, writes, lies, and ends the process", notebook({**right, "q1": HOSTILE})
    yield "a broken file: the upload was cut off", notebook(right)[:5000]
    other_notebook = read_notebook(ROOT / "exercises" / "00_exercises_start_here.ipynb")
    yield "the exercises of another chapter", json.dumps(other_notebook)
    yield "the answer's cell of q5 deleted", notebook({**right, "q5": None})


def notebook(answers: dict[str, str | None], order=list) -> str:
    """The exercise as learners get it, with these answers in its cells; a cell whose answer is None is left out."""
    left_out = {("EXERCISE", question) for question, answer in answers.items() if answer is None}
    sources = {question: answer for question, answer in answers.items() if answer is not None}
    exercises = json.loads(answered(ROOT / exercises_of(SET), sources))
    cells = order([cell for cell in exercises["cells"] if marker(cell) not in left_out])
    return json.dumps({**exercises, "cells": list(cells)})


def graded(folder: Path) -> str:
    """What `course grade` prints for `folder`, the place of the results left out."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
        assert main(["grade", str(folder), "--set", SET, "--seed", str(SEED)]) == 0
    return re.sub(r"\nResults are in .*\n$", "", output.getvalue()).rstrip()


def render_guide(handed_in: dict[str, str], first: str, second: str) -> str:
    """What the guide shows of the class: who handed in what, and the command's words before and after the late one."""
    rows = "\n".join(f"| {student} | {description} |" for student, description in handed_in.items())
    head, *_, last = second.split("\n\n")
    table = f"| | handed in |\n|---|---|\n{rows}"
    second_part = f"And with the late one, at its beginning and its end:\n\n```text\n{head}\n…\n{last}\n```"
    return f"{table}\n\nThe first run says:\n\n```text\n{first}\n```\n\n{second_part}"


def in_guide() -> str:
    """What the guide shows today."""
    return GUIDE.read_text(encoding="utf-8").partition(MARKS[0])[2].partition(MARKS[1])[0].strip()


def grade_twice(folder: Path) -> tuple[str, float]:
    """What the guide should show, and the seconds of the first run."""
    handed_in = write_class(folder)
    start = time.monotonic()
    first = graded(folder)
    seconds = time.monotonic() - start
    write_class(folder, is_late=True)
    return render_guide(handed_in, first, graded(folder)), seconds


def _write(text: str) -> None:
    before, _, rest = GUIDE.read_text(encoding="utf-8").partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    GUIDE.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}", encoding="utf-8")


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="where to write the notebooks")
    parser.add_argument("--late", action="store_true", help="write only the one that comes a day later")
    parser.add_argument("--write", action="store_true", help="grade them, and write what came out into the guide")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp()) / "class"
    if not arguments.write:
        write_class(folder, arguments.late)
        print(folder)
        return
    text, seconds = grade_twice(folder)
    _write(text)
    print(f"{seconds:.0f} s for 19 submissions; {folder}")


if __name__ == "__main__":
    run()
