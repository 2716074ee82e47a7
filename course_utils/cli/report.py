"""`course report`, which writes a page on what a learner did."""

import argparse
from pathlib import Path

HELP = "write a page with your bets, the ledger, the capstone's choices and this machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the page (default: report.html in the course's home folder)"
    )


def run(arguments: argparse.Namespace) -> int:
    from course_utils.desk import report

    report.write(arguments.out)
    return 0
