"""`course`: the commands of the course. Each is a module with `HELP`, `add_arguments` and `run`.

A learner's commands are here. Those of the staff join through the entry points `course.commands` of the package that has them.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType

from course_utils.doctor import HOW_TO_INSTALL
from course_utils.errors import CourseError

COMMANDS = ("plan", "guide", "train", "doctor", "lab", "ledger", "report", "check")
STAFF = ("run", "lint", "stamp", "grade", "release", "new", "demo", "site")


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
        if package in ("course_utils", "course_staff") or package in sys.stdlib_module_names:
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
    modules = {name: import_module(f"course_utils.cli.{name}") for name in COMMANDS}
    modules |= _staffs_modules()
    for name, module in modules.items():
        command = commands.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    for name in set(STAFF) - set(modules):
        command = commands.add_parser(name, help="for authors and instructors; not installed here", prefix_chars="\0")
        command.add_argument("rest", nargs="*")
        command.set_defaults(run=_say_how_to_install)
    return parser


def _staffs_modules() -> dict[str, ModuleType]:
    """The staff's commands by name; none where their package is missing."""
    try:
        return {entry.name: entry.load() for entry in entry_points(group="course.commands")}
    except ModuleNotFoundError as error:
        if error.name != "course_staff":
            raise
        return {}


def _say_how_to_install(arguments: argparse.Namespace) -> int:
    raise CourseError(f"It belongs to course_staff, which is not installed here: {HOW_TO_INSTALL}.")
