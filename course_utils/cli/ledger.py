"""`course ledger`, which prints predictions and measurements so far."""

import argparse

HELP = "print all predictions and measurements so far"


def run(arguments: argparse.Namespace) -> int:
    from course_utils.desk.ledger import Ledger

    print(Ledger.load())
    return 0
