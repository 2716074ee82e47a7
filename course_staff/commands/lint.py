"""`course lint`."""

import argparse

from course_utils.chapters import chapters_in, find_place
from course_utils.errors import CourseError
from course_utils.units import format_counted

HELP = (
    "check that notebooks have the anatomy of a chapter, that their demos fit them, and that they show the code by hand"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The chapters to check."""
    parser.add_argument("chapters", nargs="*", help="chapters (03_adamw, 03 or 3), or paths; by default every one")


def run(arguments: argparse.Namespace) -> int:
    """Print one line per violation; 1 where there is any."""
    from course_staff.notebooks.anatomy import violations_in

    paths = chapters_in(find_place().notebooks, arguments.chapters)
    violations = [violation for path in paths for violation in violations_in(path)]
    for violation in violations:
        print(violation)
    violations += _of_demos([path.stem for path in paths])
    if not arguments.chapters:
        violations += _of_code_by_hand()
    print(f"{format_counted(len(paths), 'chapter')} checked, {format_counted(len(violations), 'violation')}.")
    return 1 if violations else 0


def _of_code_by_hand() -> list[str]:
    """Print how much of each file by hand the chapters show; a sentence where it is too little of all."""
    from course_staff.notebooks.shown import SHOWN_AT_LEAST, share, shown_lines

    counts = shown_lines(find_place().root)
    if not counts:
        return []
    for name, (shown, total) in counts.items():
        print(f"{name:36} {shown:4} of {total:4} lines shown")
    print(f"Code by hand: the chapters show {share(counts):.1%} of it; at least {SHOWN_AT_LEAST:.0%} is asked for.")
    return ["too little code by hand is shown"] if share(counts) < SHOWN_AT_LEAST else []


def _of_demos(chapters: list[str]) -> list[str]:
    """Print and return a sentence for each demo of these chapters that is none or does not fit."""
    from course_staff.demos import demos_in, read_demo
    from course_staff.demos.needs import check

    broken = []
    for path in demos_in(find_place().notebooks):
        try:
            if path.stem in chapters:
                check(read_demo(path))
        except CourseError as error:
            print(error)
            broken.append(str(error))
    return broken
