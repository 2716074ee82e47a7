"""`course site`."""

import argparse
from pathlib import Path

from course_utils.chapters import chapters_in, find_place

HELP = "build the course as a web site, without a network"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to, and where it will stand."""
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="where to write (default: build/site)")
    parser.add_argument(
        "--address", default="", metavar="URL", help="where the site will stand, for previews of links to it"
    )
    parser.add_argument(
        "--stills",
        nargs="*",
        metavar="CHAPTER",
        help="draw the stills of figures to play with anew: these chapters', or all",
    )


def run(arguments: argparse.Namespace) -> int:
    """Build, and say what Sphinx warns of; 1 where it warns of anything."""
    from course_staff.notebooks.setup_cell import known_repository
    from course_staff.site.build import build

    place = find_place()
    if arguments.stills is not None:
        from course_staff.site.stills import draw

        for path in chapters_in(place.notebooks, arguments.stills):
            print(f"{path.stem}: {len(draw(path))} stills")
        return 0
    output = (arguments.output or place.root / "build" / "site").absolute()
    address = arguments.address.rstrip("/") + "/" if arguments.address else ""
    warnings = build(place, output, known_repository(), address)
    for line in warnings:
        print(line)
    print(f"{output / 'index.html'}: open it in a browser, or serve the folder.")
    return 1 if warnings else 0
