"""`course train`."""

import argparse
import ast
import os
import sys
from pathlib import Path

from course_utils.errors import CourseError
from course_utils.script.choices import LOGS, PRECISIONS, SAVING, STRATEGIES
from course_utils.settings import environment_for_child

HELP = "train as a script: alone, or on several ranks under torchrun; goes on by itself after it was ended"
_COUNTS = {
    "batch": "examples of an update, on all ranks together",
    "micro-batch": "examples of a forward pass (default: a rank's whole share)",
    "sequence": "tokens of an example",
    "steps": "updates",
    "warmup": "updates over which the learning rate rises",
    "chunked-loss": "the loss by so many tokens at a time",
    "lora": "train adapters of this rank only",
    "replicas": "groups of hsdp",
    "sync-every": "updates of a round of local-sgd and diloco",
    "seed": "of the order and of dropout",
    "save-every": "updates between two checkpoints (default: only the last)",
    "keep": "checkpoints",
    "log-every": "updates of a row in the log",
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
        help="a folder or a name on the Hub, or bytes (default: the model's own, else bytes)",
    )
    add("--strategy", metavar="NAME", help=f"{', '.join(STRATEGIES)} (default: none)")
    add("--ranks", type=int, metavar="N", help="start so many processes on this machine, under torchrun")
    add("--max-restarts", type=int, metavar="N", default=3, help="with --ranks: how often ended ranks start again")
    add("--store", metavar="HOST:PORT", help="where members of local-sgd or diloco meet that may die and come back")
    add("--member", metavar="K/N", help="with --store: this process's share of every batch, 0/4 to 3/4")
    add("--optimizer", metavar="NAME", help="adamw and others of course plan, torch.CLASS, course.CLASS, muon")
    add("--option", action="append", metavar="NAME=VALUE", help="an argument of the optimizer: weight_decay=0.1")
    add("--precision", metavar="NAME", help=f"{', '.join(PRECISIONS)} (default: fp32)")
    add("--lr", type=float, metavar="X", help="the highest learning rate")
    add("--floor", type=float, metavar="X", help="which share of it is left at the end (default: 0)")
    add("--saving", metavar="NAME", help=f"who writes checkpoints: {', '.join(SAVING)} (default: sync)")
    add("--logs", nargs="*", metavar="NAME", help=f"{', '.join(LOGS)} (default: csv)")
    for name, what in _COUNTS.items():
        add(f"--{name}", type=int, metavar="N", help=what)
    for name, what in _SWITCHES.items():
        add(f"--{name}", action="store_true", default=None, help=what)


def run(arguments: argparse.Namespace) -> int:
    """Check what is asked for, then train: here, or under torchrun with `--ranks`."""
    from course_utils.script.rank import place

    job = _job(arguments)
    here = place()
    if arguments.ranks is not None:
        if here.ranks > 1 or here.agent:
            raise CourseError("This is a rank already; leave --ranks to what starts it.")
        job.on(arguments.ranks)
        _become_torchrun(arguments.ranks, arguments.max_restarts, job.flags())
    from course_utils.script.run import train

    try:
        train(job, progress=sys.stderr.isatty())
    except CourseError:
        if here.rank:  # one sentence is enough
            return 2
        raise
    return 0


def _become_torchrun(ranks: int, restarts: int, flags: list[str]) -> None:
    """In place of this process; comes back only as an error."""
    from course_utils.memory.command import FRESH_ADDRESSES

    words = ["--standalone", "--nproc-per-node", str(ranks), "--max-restarts", str(restarts)]
    command = [sys.executable, "-m", "torch.distributed.run", *words, "-m", "course_utils.cli", "train", *flags]
    os.execve(sys.executable, command, environment_for_child(**FRESH_ADDRESSES))


def _job(arguments: argparse.Namespace):
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
