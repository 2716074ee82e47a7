"""`course release`."""

import argparse
from pathlib import Path

from course_utils.chapters import chapters_in, find_place
from course_utils.units import format_counted

HELP = "generate the exercises and their checks from the solutions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which sets, whether to write, and for whom."""
    parser.add_argument("sets", nargs="*", help="sets in solutions/: 03_adamw, 03 or 3; by default every one")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a generated file differs")
    parser.add_argument(
        "--nbgrader",
        type=Path,
        metavar="FOLDER",
        help="write the sources of nbgrader assignments in this folder instead",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write what differs, keep a copy of what stood there, and name both; with `--check`, 1 where something differs."""
    from course_staff.grading.nbgrader import source_files
    from course_staff.grading.release import differing, released, write
    from course_utils.files import keep_copies
    from course_utils.settings import settings

    root = find_place().root
    folder = arguments.nbgrader.resolve() if arguments.nbgrader else root
    paths = chapters_in(root / "solutions", arguments.sets)
    sets, exercises = root / "course_utils" / "grading" / "sets", root / "exercises"
    changed = []
    for path in paths:
        texts = source_files(path, folder) if arguments.nbgrader else released(path, exercises, sets)
        files = differing(texts)
        if not arguments.check:
            # Somebody may have changed an exercise by hand, or answered it there.
            copies = keep_copies([file for file in files if file.suffix == ".ipynb"], settings().home / "copies")
            write(texts)
        for file in files:
            kept = "" if arguments.check or file.suffix != ".ipynb" or not copies else f"; the old one is in {copies}"
            print(f"{file.relative_to(folder).as_posix()}: {'differs' if arguments.check else 'written'}{kept}")
        changed += files
    count = f"{format_counted(len(changed), 'file')} {'differing' if arguments.check else 'changed'}"
    print(f"{format_counted(len(paths), 'set')} released, {count}.")
    return 1 if arguments.check and changed else 0
