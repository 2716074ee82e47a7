"""`course train`, which runs a job in this process or on several ranks."""

import argparse
import ast
import logging
import os
import sys
import warnings
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from course_utils.cli import FORMS
from course_utils.errors import CourseError
from course_utils.script.job import Job, flag_of
from course_utils.settings import environment_for_child

if TYPE_CHECKING:
    from course_utils.script.rank import ThisRank

HELP = "train as a script, in one process or on several ranks under torchrun; resumes after an interruption"
_FORMS = FORMS | {
    bool: {"action": "store_true", "default": None},
    tuple[str, ...]: {"nargs": "*", "metavar": "NAME"},
    dict: {"action": "append", "metavar": "NAME=VALUE"},
    Path | None: {"type": Path, "metavar": "FILE"},
    Path: {"type": Path, "metavar": "FOLDER", "required": True},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for field in fields(Job):
        default = " ".join(field.default) if isinstance(field.default, tuple) else field.default
        has_default = field.type in (int, float) or isinstance(default, str) and default
        text = field.metadata["help"] + (f" (default: {default})" if has_default else "")
        parser.add_argument(flag_of(field.name), dest=field.name, help=text, **_FORMS[field.type])
    for flag, text in (
        ("--ranks", "start this many processes on this machine, under torchrun"),
        ("--max-restarts", "with --ranks: how often to restart failed ranks (default: 3)"),
    ):
        parser.add_argument(flag, type=int, metavar="N", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Check the arguments, then train in this process, or under torchrun with `--ranks`."""
    from course_utils.script.rank import find_rank

    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns of kernels that nothing here needs
    warnings.simplefilter("ignore", FutureWarning)  # a library's own deprecations do not concern the learner
    warnings.formatwarning = lambda message, *_, **__: f"course train: {message}\n"
    job = job_from(arguments)
    this_rank = find_rank()
    if arguments.ranks is not None:
        _become_torchrun(job, this_rank, arguments)
    if arguments.max_restarts is not None:
        raise CourseError("--max-restarts requires --ranks; add --ranks 2, for example.")
    from course_utils.script.loop import train

    if not this_rank.rank:
        task = f"{job.model} on {job.data}" if job.model else "the course's own task"
        print(f"Training {task}; log and checkpoints go to {job.out}.", flush=True)
    watched = sys.stderr.isatty()
    try:
        train(job, [] if watched else [_Lines()], progress=watched)
    except CourseError:
        if this_rank.rank:  # one sentence is enough
            return 2
        raise
    return 0


class _Lines:
    """Prints a line for each row of the log, if stderr is no terminal with a progress bar."""

    def log(self, step: int, values: dict) -> None:
        print(
            f"Update {step}: loss {values['loss']:.4f}, {values['tokens_per_second']:,.0f} tokens a second", flush=True
        )

    def close(self) -> None:
        """Do nothing, since nothing is open."""


def _become_torchrun(job: Job, this_rank: "ThisRank", arguments: argparse.Namespace) -> None:
    """Check what can be checked, then replace this process by torchrun. Raises `CourseError` inside a rank."""
    from course_utils.memory.planning.command import FRESH_ADDRESSES
    from course_utils.script.loop import explain_file_errors, prepare

    if this_rank.world_size > 1 or this_rank.has_agent:
        raise CourseError("This process is already a rank; give --ranks only to the command that starts it.")
    _, _, examples = prepare(job, arguments.ranks)
    with explain_file_errors(job.out):
        prepared = examples.hand_over(job)
    restarts = 3 if arguments.max_restarts is None else arguments.max_restarts
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    argv += ["--nproc-per-node", str(arguments.ranks), "--max-restarts", str(restarts)]
    # Behind "--" torchrun leaves every flag alone; else it takes `--logs` for the beginning of one of its own.
    argv += ["-m", "--", "course_utils.cli", "train", *job.flags()]
    os.execve(sys.executable, argv, environment_for_child(**FRESH_ADDRESSES, **prepared))


def job_from(arguments: argparse.Namespace) -> Job:
    """The job in the arguments; raises `CourseError` for an impossible one."""
    values = {field.name: getattr(arguments, field.name) for field in fields(Job)}
    options = {name: value for name, value in values.items() if value is not None}
    options["options"] = dict(map(_read_option, values["options"] or ()))
    if values["logs"] is not None:
        options["logs"] = tuple(values["logs"])
    return Job(**options)


def _read_option(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    try:
        return name.strip().replace("-", "_"), ast.literal_eval(value)
    except (ValueError, SyntaxError) as error:
        if equals and value.replace("_", "").isalnum():
            return name.strip(), value
        raise CourseError(f"--option {text} is not NAME=VALUE; write weight_decay=0.1, for example.") from error
