"""A question of each kind to begin with, put into a notebook of solutions.

Each notebook in `skeletons/` holds one question, small and complete, meant to be changed line by line into another.
"""

import re
from pathlib import Path

from course_staff.notebooks.files import read_notebook
from course_staff.release.source import marker
from course_utils.errors import CourseError, suggest

_FOLDER = Path(__file__).parent / "skeletons"
SKELETONS = tuple(sorted(path.stem for path in _FOLDER.glob("*.ipynb")))


def empty_notebook(name: str, setup: str) -> dict:
    """A solutions notebook without questions; `setup` is the source of the course's set-up cell."""
    notebook = read_notebook(_FOLDER / "function.ipynb")
    title, check = notebook.cells[:2]
    for cell in (title, check):
        cell.source = cell.source.replace("99_name", name)
    set_up = {**check, "id": "setup", "metadata": {"tags": ["setup"]}, "source": setup}
    return {**notebook, "cells": [title, set_up, check]}


def with_question(notebook: dict, kind: str) -> tuple[dict, str]:
    """The notebook with one question more at its end, and that question's id; raises `CourseError` for an unknown kind."""
    if kind not in SKELETONS:
        raise CourseError(f"There is no skeleton for the kind {kind!r}; {suggest(kind, SKELETONS)}")
    name = _free_id(notebook["cells"])
    cells = read_notebook(_FOLDER / f"{kind}.ipynb").cells[2:]
    for cell in cells:
        cell.id = cell.id.replace("q1", name)
        cell.source = re.sub(r"^## 1\.", f"## {name[1:]}.", re.sub(r"\bq1\b", name, cell.source))
    return {**notebook, "cells": [*notebook["cells"], *cells]}, name


def _free_id(cells: list[dict]) -> str:
    used_ids = {mark[1] for cell in cells if (mark := marker(cell))}
    return next(f"q{i}" for i in range(1, len(used_ids) + 2) if f"q{i}" not in used_ids)
