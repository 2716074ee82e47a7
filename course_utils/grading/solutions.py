"""Our solutions, from `solutions/` of the checkout, which a learner may not have."""

import json
import re
from pathlib import Path

from course_utils.errors import CourseError
from course_utils.files import find_place
from course_utils.grading.question import EXERCISE_LINE

_STUB = re.compile(r"^ *### BEGIN STUB\n.*?^ *### END STUB(?:\n|\Z)", re.MULTILINE | re.DOTALL)
_SOLUTION_LINE = re.compile(r"^ *### (?:BEGIN|END) SOLUTION(?:\n|\Z)|  ### SOLUTION$", re.MULTILINE)


def solutions_at(name: str) -> Path | None:
    """The notebook with the solutions of the set called `name`; None if it is not on this machine."""
    try:
        path = find_place().root / "solutions" / f"{name}.ipynb"
    except CourseError:
        return None
    return path if path.is_file() else None


def solution_in(path: Path, question_id: str) -> str:
    """The cell that answers `question_id`, without stub and markers; raises `CourseError` if there is none.

    The markers are those of `course_staff/release/source.py`, which learners do not have.
    """
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (OSError, ValueError, KeyError, TypeError):
        sources = []
    source = next((cell for cell in sources if question_id in EXERCISE_LINE.findall(cell)), None)
    if source is None:
        raise CourseError(f"{path} holds no solution of {question_id}; restore it with `git checkout`.")
    return _SOLUTION_LINE.sub("", _STUB.sub("", source)).rstrip("\n")
