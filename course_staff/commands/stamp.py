"""`course stamp`."""

import argparse

from course_utils.chapters import chapters_in, find_place

HELP = (
    "write what follows from other files: set-up cells, links to the glossary and on, the README's badges and picture"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(arguments: argparse.Namespace) -> int:
    """Stamp whatever of this the checkout has, and say which files changed."""
    from course_staff.notebooks import readme, setup_cell, successor
    from course_staff.notebooks.glossary import GLOSSARY, read_glossary, stamp_links

    root = find_place().root
    chapters, page = chapters_in(root / "notebooks"), root / "README.md"
    paths = [*chapters, *chapters_in(root / "solutions"), *chapters_in(root / "exercises")]
    changed = [(path, "set-up cell") for path in paths if setup_cell.stamp(path)]
    if (root / GLOSSARY).is_file():
        terms = read_glossary(root / GLOSSARY)
        changed += [(path, "glossary links") for path in chapters if stamp_links(path, terms)]
    changed += [(path, "link to the next chapter") for path in chapters if successor.stamp_successor(path)]
    if page.is_file() and readme.stamp_badges(page, setup_cell.repository_address()):
        changed.append((page, "badges"))
    if (root / "docs").is_dir():
        changed += [(path, "picture") for path in readme.stamp_pictures(root)]
    for path, what in changed:
        print(f"{path.relative_to(root).as_posix()}: new {what}")
    print(f"{len({path for path, _ in changed} & set(paths))} of {len(paths)} notebooks changed.")
    return 0
