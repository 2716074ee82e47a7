"""`course`: the commands of the course. Each is a module here with `HELP`, `add_arguments` and `run`."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from course_utils.doctor.packages import HOW_TO_INSTALL
from course_utils.errors import CourseError

COMMANDS = ("plan", "doctor", "lab", "run", "ledger", "lint", "stamp", "check", "grade", "release", "new", "demo")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (by default the process's own); returns the exit code.

    0: done. 1: done, and something is to be put right. 2: not done; one sentence on stderr says why.
    """
    arguments = _parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except CourseError as error:
        print(f"course {arguments.command}: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        package = (error.name or "course_utils").partition(".")[0]
        if package == "course_utils" or package in sys.stdlib_module_names:
            raise
        print(f"course {arguments.command}: The package {package} is missing: {HOW_TO_INSTALL}.", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read has read enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print(f"course {arguments.command}: stopped.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="course", description="Efficient model training with PyTorch: the course's commands."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name in COMMANDS:
        module = import_module(f"course_utils.cli.{name}")
        command = commands.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser
