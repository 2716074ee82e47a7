"""`course train`."""

import argparse
import ast
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from course_utils.errors import CourseError
from course_utils.script.choices import LOGS, PRECISIONS, STRATEGIES
from course_utils.settings import environment_for_child

if TYPE_CHECKING:
    from course_utils.script.job import Job
    from course_utils.script.rank import ThisRank

HELP = "train as a script: alone, or on several ranks under torchrun; goes on by itself after it was ended"
_COUNTS = {
    "batch": "examples of an update, on all ranks together (default: 32)",
    "micro-batch": "examples of a forward pass (default: a rank's whole share)",
    "sequence": "tokens of an example (default: 128)",
    "steps": "updates (default: 100)",
    "warmup": "updates over which the learning rate rises (default: 0)",
    "chunked-loss": "the loss by so many tokens at a time, whole logits never (default: 0, not so)",
    "lora": "train adapters of this rank only (default: 0, none)",
    "replicas": "groups of hsdp that hold everything each (default: 1)",
    "seed": "of the order and of dropout (default: 0)",
    "save-every": "updates between two checkpoints (default: only the last)",
    "keep": "how many checkpoints are kept (default: 2)",
    "log-every": "updates of a row in the log (default: 10)",
}
_SWITCHES = {
    "clipping": "gradients to norm 1",
    "checkpointing": "recompute blocks in backward",
    "packed": "several documents in a row",
    "compile": "by torch.compile",
    "quick": "no prediction of the peak, no calibration: starts sooner",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The fields of `script.Job`, and how many ranks to start."""
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="FOLDER", help="logs and checkpoints; a run there is taken up again")
    add("--model", metavar="NAME", help="a causal language model: a name, a config.json or its folder")
    add(
        "--data", type=Path, metavar="FILE", help="its text: .txt, documents parted by blank lines, or .jsonl with text"
    )
    add(
        "--tokenizer",
        metavar="NAME",
        help="a folder or a name on the Hub, or bytes (default: that of --weights, or the model's own, else bytes)",
    )
    add(
        "--weights",
        metavar="NAME",
        help="begin with the trained weights of a folder or of the Hub (default: random ones)",
    )
    add("--strategy", metavar="NAME", help=f"{', '.join(STRATEGIES)} (default: none)")
    add("--ranks", type=int, metavar="N", help="start so many processes on this machine, under torchrun")
    add("--max-restarts", type=int, metavar="N", help="with --ranks: how often ended ranks start again (default: 3)")
    add(
        "--optimizer",
        metavar="NAME",
        help="adamw and others of course plan, torch.CLASS, course.CLASS, muon (default: adamw)",
    )
    add("--option", action="append", metavar="NAME=VALUE", help="an argument of the optimizer: weight_decay=0.1")
    add("--precision", metavar="NAME", help=f"{', '.join(PRECISIONS)} (default: fp32)")
    add("--lr", type=float, metavar="X", help="the highest learning rate (default: 0.001)")
    add("--floor", type=float, metavar="X", help="which share of it is left at the end (default: 0.0)")
    add("--logs", nargs="*", metavar="NAME", help=f"{', '.join(LOGS)} (default: csv)")
    for name, what in _COUNTS.items():
        add(f"--{name}", type=int, metavar="N", help=what)
    for name, what in _SWITCHES.items():
        add(f"--{name}", action="store_true", default=None, help=what)


def run(arguments: argparse.Namespace) -> int:
    """Check what is asked for, then train: here, or under torchrun with `--ranks`."""
    from course_utils.script.rank import this_rank

    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns of kernels that nothing here needs
    warnings.simplefilter("ignore", FutureWarning)  # what libraries will rename is nothing to do for who trains
    warnings.formatwarning = lambda message, *where, **more: f"course train: {message}\n"
    job = _job(arguments)
    here = this_rank()
    if arguments.ranks is not None:
        _become_torchrun(job, here, arguments)
    if arguments.max_restarts is not None:
        raise CourseError("--max-restarts is for ranks that are started here; add --ranks 2, say.")
    from course_utils.script.run import train

    watched = sys.stderr.isatty()
    try:
        train(job, [] if watched else [_Lines()], progress=watched)
    except CourseError:
        if here.rank:  # one sentence is enough
            return 2
        raise
    return 0


class _Lines:
    """A line for each row of the log, where nobody sees a bar."""

    def log(self, step: int, values: dict) -> None:
        print(
            f"Update {step}: loss {values['loss']:.4f}, {values['tokens_per_second']:,.0f} tokens a second", flush=True
        )

    def close(self) -> None:
        """Nothing is open."""


def _become_torchrun(job: "Job", here: "ThisRank", arguments: argparse.Namespace) -> None:
    """In place of this process, when all is checked that can be; comes back only as an error."""
    from course_utils.memory.command import FRESH_ADDRESSES
    from course_utils.script.run import naming_files, prepare

    restarts = 3 if arguments.max_restarts is None else arguments.max_restarts
    if here.world_size > 1 or here.agent:
        raise CourseError("This is a rank already; leave --ranks to what starts it.")
    if restarts < 0:
        raise CourseError(f"Ranks cannot start again {restarts} times; give --max-restarts 0 or more.")
    _, _, examples = prepare(job, arguments.ranks)
    with naming_files(job.out):
        prepared = examples.hand_over(job)
    words = ["--standalone", "--nproc-per-node", str(arguments.ranks), "--max-restarts", str(restarts)]
    # Behind "--" torchrun leaves every flag alone; else it takes `--logs` for the beginning of one of its own.
    words += ["-m", "--", "course_utils.cli", "train", *job.flags()]
    command = [sys.executable, "-m", "torch.distributed.run", *words]
    os.execve(sys.executable, command, environment_for_child(**FRESH_ADDRESSES, **prepared))


def _job(arguments: argparse.Namespace) -> "Job":
    from course_utils.script.job import Job

    given = {name: value for name, value in vars(arguments).items() if value is not None}
    fields = {name: value for name, value in given.items() if name in Job.__dataclass_fields__}
    if "compile" in given:
        fields["compiled"] = True
    if "logs" in fields:
        fields["logs"] = tuple(fields["logs"])
    fields["options"] = dict(map(_option, given.get("option", ())))
    return Job(**fields)


def _option(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    try:
        return name.strip().replace("-", "_"), ast.literal_eval(value)
    except (ValueError, SyntaxError) as error:
        if equals and value.replace("_", "").isalnum():
            return name.strip(), value
        raise CourseError(f"--option {text} is no NAME=VALUE; write weight_decay=0.1, say.") from error
