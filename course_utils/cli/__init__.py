"""The command `course`, whose subcommands are modules with `HELP`, `run` and, if they take arguments, `add_arguments`.

A learner's commands are in this package. The staff's are found by the entry points `course.commands` of `course_staff`.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType
from typing import NoReturn

from course_utils.errors import HOW_TO_INSTALL, CourseError, suggest

COMMANDS = {
    "plan": "llama-7b --memory 24GB",
    "guide": "guide.pdf",
    "train": "--out runs/first --steps 20",
    "doctor": "",
    "lab": "03",
    "ledger": "",
    "report": "--out report.html",
    "check": "03",
}
"""A learner's commands, with arguments for an example of each."""
STAFF = {
    "run": "03 --scale smoke",
    "lint": "03 --notes",
    "stamp": "",
    "grade": "class --set 03 --seed 7",
    "release": "03 --check",
    "new": "question 04_adafactor --kind choice",
    "demo": "03",
    "site": "--output build/site",
}
"""The staff's commands, with arguments for an example of each."""
FORMS = {
    int: {"type": int, "metavar": "N"},
    float: {"type": float, "metavar": "X"},
    str: {"metavar": "NAME"},
}
"""The arguments of `add_argument`, by a field's type."""
EXIT_CODES = "exit codes: 0 done; 1 done, but something needs fixing; 2 not done, with the reason"

# Options by other names, each with the course's name.
_ALIASES = dict.fromkeys(("--gpu", "--card", "--device-memory", "--vram"), "--memory")
_NAMES = re.compile(r"\{([\w.]+):(\w+)\}")


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line that says what is wrong and what may have been meant.

    In a help text `{module:NAMES}` stands for the names in that constant. They are looked up when the help is printed, since most
    of these modules take a second to load.
    """

    def format_help(self) -> str:
        for action in self._actions:
            action.help = action.help and _NAMES.sub(_list_names, action.help)
        return super().format_help()

    def parse_known_args(
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        arguments, unknown = super().parse_known_args(args, namespace)
        positional = (action for action in self._actions if not action.option_strings)
        variadic = next((action.dest for action in positional if action.nargs == "*"), None)
        # More positional arguments may follow an option: plan gpt2 --memory 8GB trl.yaml.
        if variadic and not any(word.startswith("-") for word in unknown):
            setattr(arguments, variadic, [*getattr(arguments, variadic), *unknown])
            return arguments, []
        if unknown:
            self._refuse(unknown[0].partition("=")[0])
        return arguments, unknown

    def _refuse(self, word: str) -> NoReturn:
        options = re.findall(r"(?<![\w-])--[\w-]+", super().format_help())
        meant = suggest(word, options, f"`{self.prog} --help` lists all options.")
        if _ALIASES.get(word) in options:
            meant = f"did you mean {_ALIASES[word]}?"
        self.error(f"unknown {'option' if word.startswith('-') else 'argument'} {word}; {meant}")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            option = "".join(f"{name} " for name in action.option_strings)
            self.error(f"unknown {option}{value!r}; {suggest(str(value), action.choices)}")

    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith((".", "?")) else "."
        self.exit(2, f"{self.prog}: {message[0].upper()}{message[1:]}{end}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv`, by default the process's own, and return one of the `EXIT_CODES`.

    If that is 2, a sentence on stderr says why.
    """
    parser = make_parser()
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv:
        parser.print_help(sys.stderr)
        return 2
    launch = argv[argv.index("--") + 1 :] if argv[0] == "plan" and "--" in argv else None
    arguments = parser.parse_args(argv if launch is None else argv[: argv.index("--")])
    arguments.launch = launch
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
    except BrokenPipeError:  # the reader of the pipe has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print(f"course {arguments.command}: stopped.", file=sys.stderr)
        return 130


def make_parser() -> Parser:
    """The parser of the command line, with this package's commands and those that other packages add."""
    parser = Parser(
        prog="course",
        description="Efficient model training with PyTorch: the course's commands.",
        epilog=f"`course COMMAND --help` describes a command. {EXIT_CODES[0].upper()}{EXIT_CODES[1:]}.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    modules = {name: import_module(f"course_utils.cli.{name}") for name in COMMANDS}
    modules |= _load_staffs_modules()
    for name, module in modules.items():
        example = f"course {name} {(COMMANDS | STAFF).get(name, '')}".strip()
        command = commands.add_parser(
            name,
            help=module.HELP,
            description=f"{module.HELP[0].upper()}{module.HELP[1:]}.",
            epilog=f"example: {example}\n{EXIT_CODES}",
            formatter_class=_Help,
        )
        if hasattr(module, "add_arguments"):
            module.add_arguments(command)
        command.set_defaults(run=module.run)
    for name in set(STAFF) - set(modules):
        command = commands.add_parser(name, help="for authors and instructors; not installed here", prefix_chars="\0")
        command.add_argument("rest", nargs="*", help="its arguments")
        command.set_defaults(run=_say_how_to_install)
    return parser


class _Help(argparse.HelpFormatter):
    """A formatter that keeps the line breaks of an epilog."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(super(_Help, self)._fill_text(line, width, indent) for line in text.splitlines())


def _list_names(reference: re.Match) -> str:
    """The names in a constant, as a text; an ellipsis if a package that its module needs is missing."""
    try:
        names = getattr(import_module(reference[1]), reference[2])
    except ModuleNotFoundError:
        return "…"
    return ", ".join(str(name).replace("%", "%%") for name in names if name != "")


def _load_staffs_modules() -> dict[str, ModuleType]:
    """The staff's commands by name; none if `course_staff` is missing."""
    try:
        return {entry.name: entry.load() for entry in entry_points(group="course.commands")}
    except ModuleNotFoundError as error:
        if error.name != "course_staff":
            raise
        return {}


def _say_how_to_install(arguments: argparse.Namespace) -> int:
    raise CourseError(f"This command is in course_staff, which is not installed here. To install it, {HOW_TO_INSTALL}.")
