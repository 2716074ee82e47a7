"""The course's own solutions, by set. Each is read once in a process, since reading one runs its cells."""

from functools import cache
from pathlib import Path

from course_staff.release.source import AuthoredQuestion, load_solutions

PATHS = sorted((Path(__file__).parents[1] / "solutions").glob("*.ipynb"))


@cache
def solutions_of(name: str) -> list[AuthoredQuestion]:
    (path,) = (path for path in PATHS if path.stem == name)
    return load_solutions(path)
