"""An exercise set as the source of an nbgrader assignment: `source/SET/SET.ipynb`, and one `nbgrader_config.py` for all sets.

An answer's cell is there as its author wrote it, with the solution and its marks, and is a solution cell. nbgrader puts the
same text in the place of every solution; the configuration puts each question's own stub, which the cell's metadata holds. The
check below an answer is a locked grade cell worth the question's points: nbgrader gives all of them where it does not raise, and
of a question in parts the number that it returns (https://nbgrader.readthedocs.io/en/stable/user_guide/creating_and_grading_assignments.html).
The hidden part of a question stays in `solutions/`: nbgrader judges by the public cases.
"""

from pathlib import Path

from course_staff.notebooks.files import notebook_text, read_notebook
from course_staff.release.release import digest_of, exercise_notebook
from course_staff.release.source import load_solutions, marker
from course_utils.errors import CourseError
from course_utils.grading.loading import load_set
from course_utils.grading.question import Question

STUB = "course_stub"
"""The name in an answer's metadata of what learners get in its place."""

CONFIGURATION = Path(__file__).parent / "skeletons" / "nbgrader_config.txt"


def source_files(path: Path, folder: Path) -> dict[Path, str]:
    """The files that the solutions at `path` become in nbgrader's course `folder`, with their texts; writes nothing.

    A configuration that is there stays as it is.
    Raises `CourseError` if the set that checks the answers was not released from these solutions.
    """
    from nbformat import from_dict

    if load_set(path.stem)["source"] != digest_of(path):
        raise CourseError(
            f"{path.name} was changed since the set was released; run `course release {path.stem}` first."
        )
    files = {folder / "source" / path.stem / path.name: notebook_text(from_dict(source_notebook(path)))}
    if not (configuration := folder / "nbgrader_config.py").exists():
        files[configuration] = CONFIGURATION.read_text(encoding="utf-8")
    return files


def source_notebook(path: Path) -> dict:
    """The exercises of the solutions at `path`, with the solutions and nbgrader's metadata."""
    all_authored = load_solutions(path)
    original = read_notebook(path)
    answers = {cell["id"]: cell["source"] for cell in original["cells"] if marker(cell)}
    notebook = exercise_notebook(original, all_authored)
    questions = {authored.question.id: authored.question for authored in all_authored}
    cells = [add_metadata(cell, questions) for cell in notebook["cells"]]
    return {**notebook, "cells": [{**cell, "source": answers.get(cell["id"], cell["source"])} for cell in cells]}


def add_metadata(cell: dict, questions: dict[str, Question]) -> dict:
    """A cell of an exercise notebook with nbgrader's metadata: an answer, a check, or a cell that is only to be run."""
    if cell["cell_type"] != "code":
        return cell
    common = {"schema_version": 3, "grade_id": cell["id"], "task": False}
    if marker(cell):
        metadata = {"nbgrader": {**common, "grade": False, "locked": False, "solution": True}, STUB: cell["source"]}
        return {**cell, "metadata": {**cell["metadata"], **metadata}}
    checked = next((question for question in questions.values() if cell["source"] == f'check("{question.id}")'), None)
    kind = {**common, "grade": checked is not None, "locked": True, "solution": False}
    if checked:
        kind["points"] = checked.points
    source = f'check("{checked.id}", points=True)' if checked and checked.parts else cell["source"]
    return {**cell, "source": source, "metadata": {**cell["metadata"], "nbgrader": kind}}
