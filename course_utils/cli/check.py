"""`course check`."""

import argparse
from pathlib import Path

from course_utils.errors import CourseError

HELP = "run the public checks of an exercise notebook in the terminal"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The notebook, and the set where its name does not say it."""
    parser.add_argument("notebook", help="the name of an exercise, such as 03_adamw, or the path of a notebook")
    parser.add_argument("--set", metavar="NAME", help="the exercise set (default: called as the notebook)")


def run(arguments: argparse.Namespace) -> int:
    """Print what `check(...)` would say of each question; 1 where one is not passed."""
    from course_utils.grading.grade import check_notebook

    path = _notebook(arguments.notebook)
    passed, total = 0, 0
    for shown, is_passed in check_notebook(path, arguments.set or path.stem):
        print(f"{shown}\n", flush=True)
        passed, total = passed + is_passed, total + 1
    print(f"{passed} of {total} questions passed.")
    return 0 if passed == total else 1


def _notebook(name: str) -> Path:
    """A path as it is given, or the exercise of that name in the checkout."""
    given = Path(name)
    if given.suffix == ".ipynb" or given.exists():
        if not given.is_file():
            raise CourseError(f"There is no notebook at {given}; check the name.")
        return given
    from course_utils.chapters import find_place

    folder = find_place().notebooks.parent / "exercises"
    found = sorted(folder.glob(f"{name}*.ipynb"))
    if len(found) != 1:
        known = ", ".join(path.stem for path in sorted(folder.glob("*.ipynb"))) or "none yet"
        raise CourseError(f"No single exercise is called {name!r}; the exercises are: {known}.")
    return found[0]
