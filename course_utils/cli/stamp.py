"""`course stamp`."""

import argparse

from course_utils.chapters import chapters_in, find_place

HELP = "write today's set-up cell, with the repository's address, into every notebook"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(arguments: argparse.Namespace) -> int:
    """Stamp every notebook of the checkout that has a set-up cell to stamp, and say which changed."""
    from course_utils.chapters.setup_cell import stamp

    root = find_place().root
    paths = [path for folder in ("notebooks", "solutions", "exercises") for path in chapters_in(root / folder)]
    changed = [path for path in paths if stamp(path)]
    for path in changed:
        print(f"{path.relative_to(root).as_posix()}: new set-up cell")
    print(f"{len(changed)} of {len(paths)} notebooks changed.")
    return 0
