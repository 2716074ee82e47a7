"""`course new`."""

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from course_staff.notebooks.setup_cell import setup_source
from course_utils.errors import CourseError
from course_utils.files import find_place, names_with_number

if TYPE_CHECKING:
    from nbformat import NotebookNode

HELP = "write the skeleton of a chapter or a question for you to change"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What, where, and of which kind."""
    parser.add_argument("what", choices=["chapter", "question"], help="what to write")
    parser.add_argument(
        "file",
        type=Path,
        help="a chapter's name, such as 11c_pruning; or, for a question, a notebook in solutions/ or its number, made if missing",
    )
    parser.add_argument(
        "--kind",
        default="function",
        metavar="NAME",
        help="the kind of question (see docs/authors.md): {course_staff.release.skeleton:SKELETONS} (default: function)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the notebook or the question, and print what to do next."""
    return (_chapter if arguments.what == "chapter" else _question)(arguments)


def chapter_skeleton(path: Path) -> "NotebookNode":
    """A notebook for the chapter at `path` that has every section in its order, and runs."""
    from course_staff.notebooks.files import read_notebook

    notebook = read_notebook(Path(__file__).parents[1] / "notebooks" / "chapter.ipynb")
    notebook.cells[1].source = setup_source()
    for cell in notebook.cells:
        cell.source = cell.source.replace("99_name", path.stem)
    return notebook


def _chapter(arguments: argparse.Namespace) -> int:
    from course_staff.notebooks.files import write_notebook

    path = _path(arguments.file, "notebooks")
    if not re.fullmatch(r"\d\d[a-z]?_\w+", path.stem):
        raise CourseError(f"{path.stem!r} is not a chapter name; begin with a number, such as 11c_pruning.")
    number = path.stem.partition("_")[0]
    if other := next(iter(sorted(path.parent.glob(f"{number}_*.ipynb"))), None):
        raise CourseError(f"{other.name} already has this number; use another or add a letter, such as {number[:2]}c.")
    write_notebook(chapter_skeleton(path), path)
    print(f"{path.name} written. Edit it, then run `course run {path.stem} --save`, `course stamp` and `course lint`.")
    return 0


def _question(arguments: argparse.Namespace) -> int:
    from nbformat import from_dict

    from course_staff.notebooks.files import read_notebook, write_notebook
    from course_staff.release.skeleton import empty_notebook, with_question

    path = _path(arguments.file, "solutions")
    before = read_notebook(path) if path.is_file() else empty_notebook(path.stem, setup_source())
    notebook, name = with_question(before, arguments.kind)
    write_notebook(from_dict(notebook), path)
    print(f"{path.name}: question {name} added. Edit it, then run `course release {path.stem}`.")
    return 0


def _path(file: Path, folder: str) -> Path:
    """The file as given, or the notebook in `folder` of that name or number."""
    path = file if file.suffix == ".ipynb" else file.with_name(f"{file.name}.ipynb")
    if not re.fullmatch(r"\w+", path.stem):
        raise CourseError(f"{path.stem!r} is not a notebook name; use letters, digits and _, such as 04_adafactor.")
    if file.parent != Path():
        return path
    home = find_place().root / folder
    stems = names_with_number(path.stem, [path.stem for path in home.glob("*.ipynb")])
    return home / f"{stems[0] if len(stems) == 1 else path.stem}.ipynb"
