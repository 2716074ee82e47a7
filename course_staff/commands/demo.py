"""`course demo`."""

import argparse
from importlib.util import find_spec

from course_utils.files import find_place

HELP = "show a chapter's demo to a class in the browser, or rehearse it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which demo, and whether it is shown or rehearsed."""
    parser.add_argument("chapter", nargs="?", help="the chapter: 03_adamw, 03 or 3 (default: list the demos)")
    parser.add_argument(
        "--check",
        action="store_true",
        help="run every step without a browser and check its expectations (default: all demos)",
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def run(arguments: argparse.Namespace) -> int:
    """List, rehearse or serve until interrupted; returns 1 if a rehearsal went otherwise than expected."""
    from course_staff.demos import demos_in, read_demo, server
    from course_utils.settings import has_display

    paths = demos_in(find_place().notebooks, [arguments.chapter] if arguments.chapter else [])
    if arguments.check:
        from course_staff.demos.rehearse import rehearse

        return rehearse([path.absolute() for path in paths])
    if arguments.chapter is None:
        for demo in map(read_demo, paths):
            print(f"{demo.name:27} {demo.minutes:3g} min, {len(demo.steps)} steps: {demo.title}")
        return 0
    if find_spec("voila") is None:  # said before anything else is
        raise ModuleNotFoundError(name="voila")
    server.serve(read_demo(paths[0]), browser=has_display() and not arguments.no_browser)
    return 0
