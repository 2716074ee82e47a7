"""`course lab`, which opens the course in JupyterLab."""

import argparse
from pathlib import Path

HELP = "open your own copy of the course in JupyterLab"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("notebook", nargs="?", help="a chapter (03_adamw, 03 or 3; default: your start page)")
    parser.add_argument(
        "--folder",
        type=Path,
        help="the folder for your copies (default: my-course, in COURSE_HOME or else in the checkout)",
    )
    parser.add_argument("--port", type=int, default=8888, help="the port; 0 for any free one (default: 8888)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def run(arguments: argparse.Namespace) -> int:
    """Serve until interrupted, unless the copy is already open. Raises `CourseError` without the notebook or JupyterLab."""
    from course_utils.desk.lab import open_course

    return open_course(arguments.notebook, arguments.folder, arguments.port, not arguments.no_browser)
