"""`course run`."""

import argparse
from pathlib import Path

from course_staff.commands import seconds
from course_staff.notebooks.clean import STORED_SCALE, clean
from course_utils.errors import CourseError
from course_utils.files import chapters_in, find_place
from course_utils.settings import SCALES, settings

HELP = "execute chapters without a browser, then print the ledger"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which chapters, how large, and whether to store the outputs."""
    parser.add_argument("chapters", nargs="*", help="chapters (03_adamw, 03 or 3), or paths; by default all")
    parser.add_argument("--scale", choices=SCALES, help="size of models and data (default: COURSE_SCALE)")
    parser.add_argument(
        "--save",
        action="store_true",
        help=f"store the outputs in the notebooks (at {STORED_SCALE} scale), and the ledger's rows in docs/ledger.json",
    )
    parser.add_argument(
        "--timeout", type=seconds, default=600.0, metavar="S", help="time limit per cell in seconds (default: 600)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Execute in order; stops, and stores nothing of that chapter, at the first cell that fails."""
    from course_staff.notebooks.execute import run_chapters
    from course_utils.desk.ledger import Ledger

    if arguments.save and arguments.scale not in (None, STORED_SCALE):
        raise CourseError(f"Stored outputs come from the {STORED_SCALE} scale; drop --scale or --save.")
    paths = chapters_in(find_place().notebooks, arguments.chapters)
    scale = STORED_SCALE if arguments.save else arguments.scale or settings().scale.name
    into = settings().home / "runs"
    for path, copy in zip(paths, run_chapters(paths, into, scale, arguments.timeout), strict=True):
        print(f"{path.stem}: executed copy in {copy}")
        if arguments.save:
            _save(copy, path)
    print(f"\n{Ledger.load()}")
    return 0


def _save(copy: Path, path: Path) -> None:
    from course_staff.notebooks.files import read_notebook, write_notebook
    from course_staff.notebooks.stored import store_rows

    executed = read_notebook(copy)
    if [cell.source for cell in executed.cells] != [cell.source for cell in read_notebook(path).cells]:
        raise CourseError(f"{path.name} changed while it ran, so it was not stored; run it again, or see {copy}.")
    write_notebook(clean(executed, path.name, STORED_SCALE), path)
    if (path.parents[1] / "docs").is_dir():
        store_rows(path.parents[1], path)
