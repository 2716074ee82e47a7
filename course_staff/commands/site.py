"""`course site`."""

import argparse
from importlib.util import find_spec
from pathlib import Path

from course_utils.errors import CourseError
from course_utils.files import chapters_in, find_place

_TOOLS = ("sphinx", "myst_nb", "sphinx_book_theme", "latex2mathml", "bs4")
HELP = "build the course as a web site, without a network"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The folder, the site's future address, and the stills."""
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="where to write (default: build/site)")
    parser.add_argument("--address", default="", metavar="URL", help="the site's future address, for link previews")
    parser.add_argument(
        "--stills",
        nargs="*",
        metavar="CHAPTER",
        help="build nothing; redraw the stills of the interactive figures of these chapters, or of all",
    )


def run(arguments: argparse.Namespace) -> int:
    """Build, and print Sphinx's warnings; returns 1 if there are any."""
    place = find_place()
    if arguments.stills is not None:
        from course_staff.site.stills import draw

        for path in chapters_in(place.notebooks, arguments.stills):
            print(f"{path.stem}: {len(draw(path))} stills")
        return 0
    if missing := [name for name in _TOOLS if find_spec(name) is None]:
        raise CourseError(
            f"The site's tools are not installed ({', '.join(missing)}): run `make site`, or "
            '`pip install -e ".[course,lab,site]"` in the course\'s folder.'
        )
    from course_staff.notebooks.address import repository_address
    from course_staff.site.build import build

    output = (arguments.output or place.root / "build" / "site").absolute()
    address = arguments.address.rstrip("/") + "/" if arguments.address else ""
    if address and not address.startswith(("https://", "http://")):
        raise CourseError(
            f"{arguments.address} is not a site address; write it in full, like https://example.org/course."
        )
    warnings = build(place, output, repository_address(place.root), address)
    for line in warnings:
        print(line)
    print(f"{output / 'index.html'}: open it in a browser, or serve the folder.")
    return 1 if warnings else 0
