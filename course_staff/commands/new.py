"""`course new`."""

import argparse
import re
from pathlib import Path

from course_staff.notebooks.setup_cell import setup_source
from course_utils.chapters import find_place, numbered
from course_utils.errors import CourseError

HELP = "write the skeleton of a question, to be changed into yours"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What, where, and of which kind."""
    parser.add_argument("what", choices=["question"], help="what to write")
    parser.add_argument(
        "file", type=Path, help="a notebook in solutions/, such as 04_adafactor, or its number; created where missing"
    )
    parser.add_argument(
        "--kind", default="function", help="function (the default), stream, account, cost, choice or design"
    )


def run(arguments: argparse.Namespace) -> int:
    """Append the question's cells to the notebook and say what to do next."""
    from nbformat import from_dict

    from course_staff.grading.skeleton import empty_notebook, with_question
    from course_staff.notebooks.files import read_notebook, write_notebook

    path = _path(arguments.file)
    before = read_notebook(path) if path.is_file() else empty_notebook(path.stem, setup_source())
    notebook, name = with_question(before, arguments.kind)
    write_notebook(from_dict(notebook), path)
    print(f"{path.name}: question {name} added. Change it into yours, then `course release {path.stem}`.")
    return 0


def _path(named: Path) -> Path:
    """The file as given, or the notebook in `solutions/` of that name or number."""
    path = named if named.suffix == ".ipynb" else named.with_name(f"{named.name}.ipynb")
    if not re.fullmatch(r"\w+", path.stem):
        raise CourseError(f"No set can be called {path.stem!r}; use letters, digits and _, such as 04_adafactor.")
    if named.parent != Path():
        return path
    folder = find_place().root / "solutions"
    begun = numbered(path.stem, [one.stem for one in folder.glob("*.ipynb")])
    return folder / f"{begun[0] if len(begun) == 1 else path.stem}.ipynb"
