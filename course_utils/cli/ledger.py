"""`course ledger`."""

import argparse

HELP = "print all predictions and measurements so far"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(arguments: argparse.Namespace) -> int:
    """Print the ledger of all chapters."""
    from course_utils.desk.ledger import Ledger

    print(Ledger.load())
    return 0
