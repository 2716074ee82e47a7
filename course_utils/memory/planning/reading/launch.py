"""Launch lines: which launcher starts what on how many ranks."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import yaml

from course_utils.errors import CourseError
from course_utils.memory.planning.reading.settings import Settings, Value, read_keys, require_file
from course_utils.memory.planning.reading.tools import AT_LEAST, Unmodeled, tables

LAUNCH_ORIGIN = "launch line"
_LAUNCHERS = {
    "accelerate": "launch",
    "llamafactory-cli": "train",
    "axolotl": "train",
    "trl": "",
    "torchrun": "",
    "deepspeed": "",
    "python": "",
}
_MODULE_LAUNCHERS = {"torch.distributed.run": ["torchrun"], "accelerate.commands.launch": ["accelerate", "launch"]}


class LaunchLine(NamedTuple):
    """The parts of a line such as `accelerate launch --num_processes 2 sft.py --bf16 true`."""

    launcher: str
    flags: Settings  # the launcher's
    target: str  # what it runs
    arguments: Settings  # the target's
    files: list[str]  # that stand among these


def split_launch_line(argv: list[str]) -> LaunchLine:
    """The parts of a launch line; raises `CourseError` for a line of another form."""
    launcher, argv = _split_launcher(argv)
    suffixes = (".py", ".yaml", ".yml", ".json")

    def is_target(index: int) -> bool:
        before = argv[index - 1] if index else ""
        is_named = before in ("-m", "--module") or (launcher == "trl" and not index)
        return is_named or argv[index].endswith(suffixes[0] if before.startswith("-") else suffixes)

    index = next(filter(is_target, range(len(argv))), None)
    if index is None or argv[index].startswith("-"):
        raise CourseError(f"The launch line of {launcher} names nothing to run; give it whole, as you type it.")
    return LaunchLine(launcher, _read_flags(argv[:index])[0], argv[index], *_read_flags(argv[index + 1 :]))


def _split_launcher(argv: list[str]) -> tuple[str, list[str]]:
    """The launcher by its usual name, and the words after it and its command."""
    try:
        argv = shlex.split(argv[0]) if len(argv) == 1 else [word for word in argv if word.strip("\\ \n")]
    except ValueError as error:
        raise CourseError(f"The launch line cannot be taken apart: {error}.") from None
    # Variables and commands that may come before the launcher.
    while argv and (re.match(r"[A-Za-z_]\w*=", argv[0]) or argv[0] in ("uv", "run", "srun")):
        argv = argv[1:]
    if argv and argv[0].endswith(".py"):  # `uv run` starts a script in this way
        argv = ["python", *argv]
    launcher = re.sub(r"^python[\d.]+$", "python", Path(argv[0]).name) if argv else ""
    if launcher == "python" and len(argv) > 2 and argv[1] == "-m" and argv[2] in _MODULE_LAUNCHERS:
        argv = [*_MODULE_LAUNCHERS[argv[2]], *argv[3:]]
        launcher = argv[0]
    order = _LAUNCHERS.get(launcher)
    if order is None or order and argv[1:2] != [order]:
        launchers = ", ".join(" ".join(filter(None, pair)) for pair in _LAUNCHERS.items())
        raise CourseError(
            f"{' '.join(argv[:2])!r} starts no training that can be read; after -- give one of {launchers}, as you type it."
        )
    return launcher, argv[2:] if order else argv[1:]


def read_launcher(launcher: str, flags: Settings) -> tuple[Settings, dict[str, Unmodeled]]:
    """The settings that a launcher adds, and what it leaves unknown.

    They are the number of ranks, and for accelerate those in its file, or in the one by `accelerate config`.
    """
    settings: Settings = {}
    problems: dict[str, Unmodeled] = {}
    if launcher == "accelerate":
        config = flags.get("config_file")
        path = Path(str(config.value)) if config else Path.home() / ".cache/huggingface/accelerate/default_config.yaml"
        if config:
            require_file(path)
        settings = tables().tools["accelerate"].translate((read_keys(path) if path.is_file() else {}) | flags)
    ranks = flags.get("nproc_per_node") or flags.get("num_gpus")
    nodes = flags.get("nnodes") or flags.get("num_nodes") or Value(1, "")
    if ranks is not None and isinstance(ranks.value, int) and isinstance(nodes.value, int):
        settings["ranks"] = Value(ranks.value * nodes.value, ranks.origin)
    elif launcher in ("python", "torchrun"):
        settings["ranks"] = Value(1, LAUNCH_ORIGIN if launcher == "python" else "default of torchrun")
    elif "ranks" not in settings:
        reason = f"{launcher} starts a rank on each device; say how many with --ranks"
        problems["ranks"] = Unmodeled(AT_LEAST, reason)
    return settings, problems


def _read_flags(argv: list[str]) -> tuple[Settings, list[str]]:
    """The flags of a line, with underscores in their names, and the other words.

    Flags are `--name value`, `--name=value`, `--name` alone and `name=value`.
    """
    by_flag, others = {}, []
    name = None
    for word in argv:
        if match := re.fullmatch(r"-{0,2}([A-Za-z][\w.-]*)=(.*)", word, re.DOTALL):
            by_flag[match[1].replace("-", "_")] = [_read_word(match[2])]
            name = None
        elif re.match(r"-{1,2}[A-Za-z]", word):
            name = word.lstrip("-").replace("-", "_")
            by_flag[name] = []
        elif name is None:
            others.append(word)
        else:
            by_flag[name].append(_read_word(word))
    by_flag = {key: values or [True] for key, values in by_flag.items()}
    flags = {key: Value(values if len(values) > 1 else values[0], LAUNCH_ORIGIN) for key, values in by_flag.items()}
    return flags, others


def _read_word(word: str) -> object:
    """A word as YAML reads it, so that 2 is a number and true a boolean; the word itself if it is no YAML."""
    try:
        return yaml.safe_load(word)
    except (yaml.YAMLError, ValueError):
        return word
