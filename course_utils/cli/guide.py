"""`course guide`, which writes the one-page decision guide."""

import argparse
from pathlib import Path

HELP = "write the one-page decision guide: what to change when training does not fit or is slow"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="the file to write: a `.pdf` to print on A4, or a `.svg`"
    )


def run(arguments: argparse.Namespace) -> int:
    from course_utils.viz import guide

    guide.save(arguments.file)
    print(f"Guide written to {arguments.file}.")
    return 0
