"""`course new`."""

import argparse
from pathlib import Path

from course_utils.chapters import find_place
from course_utils.chapters.setup_cell import setup_source

HELP = "write the skeleton of a question, to be changed into yours"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What, where, and of which kind."""
    parser.add_argument("what", choices=["question"], help="what to write")
    parser.add_argument("file", type=Path, help="a notebook in solutions/, such as 04_adafactor; created where missing")
    parser.add_argument("--kind", default="function", help="function (the default), stream, account or choice")


def run(arguments: argparse.Namespace) -> int:
    """Append the question's cells to the notebook and say what to do next."""
    from course_utils.grading.release import write_text
    from course_utils.grading.skeleton import empty_notebook, with_question
    from course_utils.grading.source import read_plain

    path = _path(arguments.file)
    before = read_plain(path) if path.is_file() else empty_notebook(path.stem, setup_source())
    notebook, name = with_question(before, arguments.kind)
    write_text(path, notebook)
    print(f"{path.name}: question {name} added. Change it into yours, then `course release {path.stem}`.")
    return 0


def _path(named: Path) -> Path:
    """The file as given, or the notebook of that name in `solutions/`."""
    path = named if named.suffix == ".ipynb" else named.with_name(f"{named.name}.ipynb")
    return path if named.parent != Path() else find_place().root / "solutions" / path.name
