"""`course lint`."""

import argparse

from course_utils.chapters import chapters_in, find_place

HELP = "check that notebooks have the anatomy of a chapter"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The chapters to check."""
    parser.add_argument("chapters", nargs="*", help="beginnings of file names, or paths; by default every chapter")


def run(arguments: argparse.Namespace) -> int:
    """Print one line per violation; 1 where there is any."""
    from course_utils.chapters.anatomy import violations_in

    paths = chapters_in(find_place().notebooks, arguments.chapters)
    violations = [violation for path in paths for violation in violations_in(path)]
    for violation in violations:
        print(violation)
    print(f"{len(paths)} chapters checked, {len(violations)} violations.")
    return 1 if violations else 0
