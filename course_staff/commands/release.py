"""`course release`."""

import argparse

from course_utils.chapters import chapters_in, find_place
from course_utils.units import format_counted

HELP = "generate the exercises and their checks from the solutions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which sets, and whether to write."""
    parser.add_argument("sets", nargs="*", help="sets in solutions/: 03_adamw, 03 or 3; by default every one")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a generated file differs")


def run(arguments: argparse.Namespace) -> int:
    """Write what differs and name it; with `--check`, 1 where there is anything to name."""
    from course_staff.grading.release import differing, released, write

    root = find_place().root
    paths = chapters_in(root / "solutions", arguments.sets)
    sets, exercises = root / "course_utils" / "grading" / "sets", root / "exercises"
    done, handle = ("differs", differing) if arguments.check else ("written", write)
    changed = [file for path in paths for file in handle(released(path, exercises, sets))]
    for file in changed:
        print(f"{file.relative_to(root).as_posix()}: {done}")
    count = f"{format_counted(len(changed), 'file')} {'differing' if arguments.check else 'changed'}"
    print(f"{format_counted(len(paths), 'set')} released, {count}.")
    return 1 if arguments.check and changed else 0
