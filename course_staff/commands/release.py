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
    from course_staff.grading.release import released

    root = find_place().root
    paths = chapters_in(root / "solutions", arguments.sets)
    sets, exercises = root / "course_utils" / "grading" / "sets", root / "exercises"
    differing = []
    for path in paths:
        one = released(path, exercises, sets)
        differing += one.differing() if arguments.check else one.write()
    for path in differing:
        print(f"{path.relative_to(root).as_posix()}: {'differs' if arguments.check else 'written'}")
    changed = f"{format_counted(len(differing), 'file')} {'differing' if arguments.check else 'changed'}"
    print(f"{format_counted(len(paths), 'set')} released, {changed}.")
    return 1 if arguments.check and differing else 0
