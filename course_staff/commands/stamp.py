"""`course stamp`."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from course_utils.chapters import chapters_in, find_place

HELP = (
    "write what follows from other files: set-up cells, links to the glossary and on, the README's badges and picture"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(arguments: argparse.Namespace) -> int:
    """Stamp whatever of this the checkout has, and say which files changed."""
    root = find_place().root
    paths = [path for folder in ("notebooks", "solutions", "exercises") for path in chapters_in(root / folder)]
    changed = [*_set_up(paths), *_linked(root), *_led_on(root), *_shown(root)]
    for path, what in changed:
        print(f"{path.relative_to(root).as_posix()}: new {what}")
    print(f"{len({path for path, _ in changed} & set(paths))} of {len(paths)} notebooks changed.")
    return 0


def _set_up(paths: list[Path]) -> Iterator[tuple[Path, str]]:
    from course_staff.notebooks.setup_cell import stamp

    return ((path, "set-up cell") for path in paths if stamp(path))


def _linked(root: Path) -> Iterator[tuple[Path, str]]:
    from course_staff.notebooks.glossary import GLOSSARY, read_glossary, stamp_links

    if (root / GLOSSARY).is_file():
        terms = read_glossary(root / GLOSSARY).terms
        yield from ((path, "glossary links") for path in chapters_in(root / "notebooks") if stamp_links(path, terms))


def _led_on(root: Path) -> Iterator[tuple[Path, str]]:
    from course_staff.notebooks.successor import stamp_successor

    return ((path, "link to the next chapter") for path in chapters_in(root / "notebooks") if stamp_successor(path))


def _shown(root: Path) -> Iterator[tuple[Path, str]]:
    from course_staff.notebooks.readme import stamp_badges, stamp_pictures
    from course_staff.notebooks.setup_cell import repository_address

    if (root / "README.md").is_file() and stamp_badges(root / "README.md", repository_address()):
        yield root / "README.md", "badges"
    if (root / "docs").is_dir():
        yield from ((path, "picture") for path in stamp_pictures(root))
