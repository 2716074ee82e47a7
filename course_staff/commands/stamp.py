"""`course stamp`."""

import argparse

from course_utils.files import chapters_in, find_place

HELP = "update everything derived from other files: set-up cells, links, the README's badges and pictures, line counts"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The repository's address."""
    parser.add_argument(
        "--repository",
        metavar="URL",
        help="the address to clone from, written into pyproject.toml and every page and cell that shows it; "
        '"" removes it (default: unchanged)',
    )


def run(arguments: argparse.Namespace) -> int:
    """Stamp whatever of this the checkout has, and say which files changed."""
    from course_staff.documents import readme
    from course_staff.documents.weekend import PAGE, stamp_lines
    from course_staff.notebooks import setup_cell, successor
    from course_staff.notebooks.address import repository_address, set_address, stamp_citation
    from course_staff.notebooks.glossary import GLOSSARY, read_glossary, stamp_links

    root = find_place().root
    if arguments.repository is not None:
        set_address(root, arguments.repository)
    address = repository_address(root)
    chapters = chapters_in(root / "notebooks")
    page, citation = root / "README.md", root / "CITATION.cff"
    paths = [*chapters, *chapters_in(root / "solutions"), *chapters_in(root / "exercises")]
    changes = [(path, "set-up cell") for path in paths if setup_cell.stamp(path, address)]
    if (root / GLOSSARY).is_file():
        terms = read_glossary(root / GLOSSARY)
        changes += [(path, "glossary links") for path in chapters if stamp_links(path, terms)]
    changes += [(path, "link to the next chapter") for path in chapters if successor.stamp_successor(path)]
    changes += [(path, "address") for path in (page,) if path.is_file() and readme.stamp_address(path, address)]
    changes += [(path, "address") for path in (citation,) if path.is_file() and stamp_citation(path, address)]
    if (root / "docs").is_dir():
        changes += [(path, "picture") for path in readme.stamp_pictures(root)]
    if (root / PAGE).is_file() and stamp_lines(root):
        changes.append((root / PAGE, "numbers of lines"))
    for path, description in changes:
        print(f"{path.relative_to(root).as_posix()}: new {description}")
    print(f"{len({path for path, _ in changes} & set(paths))} of {len(paths)} notebooks changed.")
    return 0
