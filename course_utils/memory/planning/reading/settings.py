"""Settings as they stand in a file, a script or a command: each value with the place that says it."""

import ast
import operator
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from course_utils.errors import CourseError

LAUNCH = "launch line"
_LARGEST = 2**20  # bytes of a file that somebody wrote
_TO_JSON = 'python -c "import torch; print(torch.load({!r}, weights_only=False).to_json_string())" > args.json'
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Value:
    """One value and where it stands: `trl.yaml:7`, `launch line`, `default of TRL 1.16`."""

    value: object
    where: str


@dataclass(frozen=True)
class Computed:
    """What a script computes instead of writing it down: its source text."""

    code: str


Settings = dict[str, Value]


def text_of(path: Path) -> str:
    """A file that somebody wrote. Raises `CourseError` for a pickle, for another binary file and for one that is too large."""
    if path.suffix in (".bin", ".pt", ".pkl"):
        raise CourseError(
            f"{path} is a pickle, which runs code as it is read; where you trust it, write its JSON and give that: "
            + _TO_JSON.format(str(path))
        )
    try:
        if path.stat().st_size > _LARGEST:
            raise CourseError(f"{path} is larger than a megabyte, which no file of settings is; give another.")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise CourseError(f"{path} is no text in UTF-8; give a YAML, JSON or Python file.") from None
    except OSError as error:
        raise CourseError(f"{path} cannot be read ({error.strerror}).") from error


def read_keys(path: Path) -> Settings:
    """The keys of a YAML or JSON file, inner ones as `outer.inner`; raises `CourseError` where it has none, with the line."""
    loader = _Loader(text_of(path).replace("\t", "  "))  # JSON may have tabs, which YAML takes nowhere

    def walk(node: yaml.MappingNode, outer: str = "") -> Iterator[tuple[str, Value]]:
        for key, inner in node.value:
            name = f"{outer}{loader.construct_object(key, deep=True)}"
            yield name, Value(loader.construct_object(inner, deep=True), f"{path.name}:{key.start_mark.line + 1}")
            if isinstance(inner, yaml.MappingNode):
                yield from walk(inner, f"{name}.")

    try:
        node = loader.get_single_node()
        if isinstance(node, yaml.MappingNode):
            return dict(walk(node))
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        kind = path.suffix[1:].upper()
        raise CourseError(
            f"{path} is no {kind} that can be read: {getattr(error, 'problem', None) or error}{where}."
        ) from None
    raise CourseError(f"{path} holds no keys with values; give a file of settings.")


@dataclass(frozen=True)
class Script:
    """What a Python script writes down: `calls`, by the function's name, with their arguments, the `names` it mentions, and the
    `options` that a parser of its own takes."""

    calls: dict[str, list[Settings]]
    names: frozenset[str]
    options: frozenset[str] = frozenset()


_ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}


def read_script(path: Path, given: Settings | None = None) -> Script:
    """A script by its syntax tree; it is not run.

    A value counts where it is written down, also by the name of a constant, as the sum or product of two numbers, or as an option
    of an `argparse` parser, which is what is `given` for it or else its default; anything else is `Computed`. Raises
    `CourseError` where it is no Python.
    """
    try:
        tree = ast.parse(text_of(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f" (line {error.lineno})" if getattr(error, "lineno", None) else ""
        raise CourseError(f"{path} is no Python that can be read{line}.") from None
    nodes = list(ast.walk(tree))
    stores = [node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)]
    stores += [node.arg for node in nodes if isinstance(node, ast.arg)]
    assigned = [
        (target.id, node.value)
        for node in nodes
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    constants = {name: value for name, value in assigned if stores.count(name) == 1}
    options = _options_in(nodes)
    parsers = {name for name, value in assigned if ast.unparse(getattr(value, "func", value)).endswith(".parse_args")}

    def value_of(node: ast.expr, depth: int = 0) -> object:
        """What an expression says; raises `ValueError` where it is computed."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in parsers:
            if given and node.attr in given and node.attr in options:
                return given[node.attr].value
            if options.get(node.attr) is not None:
                return value_of(options[node.attr], depth + 1)
        if isinstance(node, ast.Name) and node.id in constants and depth < 20:
            return value_of(constants[node.id], depth + 1)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
            return node.attr
        if isinstance(node, ast.List | ast.Tuple):
            return [value_of(one, depth) for one in node.elts]
        if isinstance(node, ast.Dict) and None not in node.keys:
            pairs = zip(node.keys, node.values, strict=True)
            return {str(value_of(key, depth)): value_of(one, depth) for key, one in pairs}
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            sides = [value_of(side, depth) for side in (node.left, node.right)]
            if all(type(side) in (int, float) and abs(side) < 1e12 for side in sides):
                return _ARITHMETIC[type(node.op)](*sides)
        raise ValueError

    def read(node: ast.expr) -> Value:
        where = f"{path.name}:{node.lineno}"
        try:
            return Value(value_of(node), where)
        except (ValueError, ArithmeticError):
            return Value(Computed(ast.unparse(node)), where)

    calls: dict[str, list[Settings]] = {}
    for node in sorted((one for one in nodes if isinstance(one, ast.Call)), key=lambda one: one.lineno):
        arguments = {str(place): read(one) for place, one in enumerate(node.args)}
        for keyword in node.keywords:
            value = read(keyword.value)
            if keyword.arg is None and isinstance(value.value, dict):
                arguments |= {key: Value(one, value.where) for key, one in value.value.items()}
            else:
                arguments[keyword.arg or "**"] = value
        arguments["()"] = Value(None, f"{path.name}:{node.lineno}")
        calls.setdefault(ast.unparse(node.func), []).append(arguments)
    names = {getattr(node, "id", getattr(node, "attr", "")) for node in nodes}
    return Script(calls, frozenset(names), frozenset(options))


def _options_in(nodes: list[ast.AST]) -> dict[str, ast.expr | None]:
    """By name the options of a parser of `argparse`, each with its default, None where it has none."""
    options = {}
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            flags = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            keywords = {keyword.arg: keyword.value for keyword in node.keywords}
            is_switch = ast.unparse(keywords.get("action", ast.Constant(""))) == "'store_true'"
            default = keywords.get("default", ast.Constant(False) if is_switch else None)
            options |= {flag.lstrip("-").replace("-", "_"): default for flag in flags}
    return options


_LAUNCHERS = {
    "accelerate": "launch",
    "llamafactory-cli": "train",
    "axolotl": "train",
    "trl": "",
    "torchrun": "",
    "deepspeed": "",
    "python": "",
}
_AS_MODULE = {"torch.distributed.run": ["torchrun"], "accelerate.commands.launch": ["accelerate", "launch"]}


def read_launch(words: list[str]) -> tuple[str, Settings, str, Settings, list[str]]:
    """Of a launch line the launcher, its flags, the target that it runs, and the target's arguments and files.

    Such a line is `accelerate launch --num_processes 2 sft.py --bf16 true`; raises `CourseError` for another.
    """
    try:
        words = shlex.split(words[0]) if len(words) == 1 else [word for word in words if word.strip("\\ \n")]
    except ValueError as error:
        raise CourseError(f"The launch line cannot be taken apart: {error}.") from None
    # What stands before a command.
    while words and (re.match(r"[A-Za-z_]\w*=", words[0]) or words[0] in ("uv", "run", "srun")):
        words = words[1:]
    if words and words[0].endswith(".py"):  # as `uv run` starts a script
        words = ["python", *words]
    launcher = re.sub(r"^python[\d.]+$", "python", Path(words[0]).name) if words else ""
    if launcher == "python" and len(words) > 2 and words[1] == "-m" and words[2] in _AS_MODULE:
        words = [*_AS_MODULE[words[2]], *words[3:]]
        launcher = words[0]
    order = _LAUNCHERS.get(launcher)
    if order is None or order and words[1:2] != [order]:
        launchers = ", ".join(" ".join(filter(None, pair)) for pair in _LAUNCHERS.items())
        raise CourseError(
            f"{' '.join(words[:2])!r} starts no training that can be read; after -- give one of {launchers}, as you type it."
        )
    words = words[2:] if order else words[1:]
    ends = (".py", ".yaml", ".yml", ".json")

    def is_target(at: int) -> bool:
        before = words[at - 1] if at else ""
        is_named = before in ("-m", "--module") or (launcher == "trl" and not at)
        return is_named or words[at].endswith(ends[0] if before.startswith("-") else ends)

    place = next(filter(is_target, range(len(words))), None)
    if place is None or words[place].startswith("-"):
        raise CourseError(f"The launch line of {launcher} names nothing to run; give it whole, as you type it.")
    return launcher, _flags(words[:place])[0], words[place], *_flags(words[place + 1 :])


def _flags(words: list[str]) -> tuple[Settings, list[str]]:
    """`--name value`, `--name=value`, `--name` alone and `name=value`, with underscores in names; and words that are neither."""
    by_flag, alone, name = {}, [], None
    for word in words:
        if match := re.fullmatch(r"-{0,2}([A-Za-z][\w.-]*)=(.*)", word, re.DOTALL):
            by_flag[match[1].replace("-", "_")], name = [_read_word(match[2])], None
        elif re.match(r"-{1,2}[A-Za-z]", word):
            name = word.lstrip("-").replace("-", "_")
            by_flag[name] = []
        elif name is None:
            alone.append(word)
        else:
            by_flag[name].append(_read_word(word))
    values = {key: many if len(many) > 1 else many[0] if many else True for key, many in by_flag.items()}
    return {key: Value(value, LAUNCH) for key, value in values.items()}, alone


def _read_word(word: str) -> object:
    """A value of a command as YAML reads it: 2 is a number and true is true; text where it is no YAML."""
    try:
        return yaml.safe_load(word)
    except (yaml.YAMLError, ValueError):
        return word
