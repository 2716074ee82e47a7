"""A question of each kind to begin with, put into a notebook of solutions."""

from course_staff.grading.release import facts
from course_staff.grading.source import marker
from course_staff.grading.templates import KINDS
from course_utils.errors import CourseError
from course_utils.grading.released import run_question

_FIELDS = """\
    id="{id}",
    title="{title}",
    points=1,
    difficulty=1,
    minutes=5,
    hints=("A nudge.", "An outline.", "Nearly the code."),
"""


def empty_notebook(name: str, setup: str) -> dict:
    """A solutions notebook without questions; `setup` is the source of the course's set-up cell."""
    title = f"# Exercises {name}\n\nWhat these questions are about, with a link to the chapter."
    check = f'from course_utils.grading import exercise\n\ncheck = exercise("{name}")'
    return {
        "cells": [_text("title-text", title), _code("setup", setup, "setup"), _code("check-setup", check)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def with_question(notebook: dict, kind: str) -> tuple[dict, str]:
    """The notebook with one question more at its end, and that question's id; raises `CourseError` for an unknown kind."""
    if kind not in KINDS:
        raise CourseError(f"There is no skeleton of the kind {kind!r}; there are {', '.join(KINDS)}.")
    name = _free_id(notebook["cells"])
    title, statement, asked, answer = KINDS[kind]
    code = f"# QUESTION {name}\n{asked.format(fields=_FIELDS.format(id=name, title=title))}"
    question = run_question(f"{code}\n", name)["question"]
    added = [
        _text(f"{name}-statement", f"## {name[1:]}. {title}\n\n{facts(question)}\n\n{statement}"),
        _code(f"{name}-question", code, "question"),
        _code(f"{name}-exercise", f"# EXERCISE {name}\n{answer}", "exercise"),
        _code(f"{name}-check", f'check("{name}")'),
    ]
    return {**notebook, "cells": [*notebook["cells"], *added]}, name


def _free_id(cells: list[dict]) -> str:
    taken = {mark[1] for cell in cells if (mark := marker(cell))}
    return next(f"q{i}" for i in range(1, len(taken) + 2) if f"q{i}" not in taken)


def _text(name: str, source: str) -> dict:
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": source}


def _code(name: str, source: str, *tags: str) -> dict:
    metadata = {"tags": list(tags)} if tags else {}
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": name,
        "metadata": metadata,
        "outputs": [],
        "source": source,
    }
