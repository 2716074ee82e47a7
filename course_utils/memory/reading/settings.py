"""Settings as they stand in a file or a command: each value with the line that says it."""

import ast
import json
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
_TO_JSON = 'python -c "import torch; print(torch.load({name!r}, weights_only=False).to_json_string())" > args.json'  # theirs to run


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
            + _TO_JSON.format(name=str(path))
        )
    try:
        if path.stat().st_size > _LARGEST:
            raise CourseError(f"{path} is larger than a megabyte, which no file of settings is; give another.")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise CourseError(f"{path} is no text in UTF-8; give a YAML, JSON or Python file.") from None
    except OSError as error:
        raise CourseError(f"{path} cannot be read ({error.strerror}).") from error


def read_yaml(path: Path) -> Settings:
    """The keys of a YAML mapping, inner ones as `outer.inner`. Raises `CourseError` where it holds none, with the line."""
    loader = yaml.SafeLoader(text_of(path))
    try:
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise CourseError(f"{path} holds no keys with values; give a YAML file of settings.")
        return dict(_pairs(loader, node, path.name))
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise CourseError(
            f"{path} is no YAML that can be read: {getattr(error, 'problem', None) or error}{where}."
        ) from None


def _pairs(loader: yaml.SafeLoader, node: yaml.MappingNode, name: str, outer: str = "") -> Iterator[tuple[str, Value]]:
    for key, inner in node.value:
        said = f"{outer}{loader.construct_object(key, deep=True)}"
        if isinstance(inner, yaml.MappingNode):
            yield from _pairs(loader, inner, name, f"{said}.")
        value = loader.construct_object(inner, deep=True)
        yield said, Value(value, f"{name}:{key.start_mark.line + 1}")


def read_json(path: Path) -> Settings:
    """The keys of a JSON object, inner ones as `outer.inner`; raises `CourseError` where it holds none."""
    text = text_of(path)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CourseError(f"{path} is no JSON that can be read: {error}.") from None
    if not isinstance(found, dict):
        raise CourseError(f"{path} holds no object with keys; give a JSON file of settings.")

    def walk(inner: dict, outer: str, start: int) -> Iterator[tuple[str, Value]]:
        for key, value in inner.items():
            match = re.compile(rf"{re.escape(json.dumps(key))}\s*:").search(text, start)
            at = match.start() if match else start
            yield outer + key, Value(value, f"{path.name}:{text.count(chr(10), 0, at) + 1}")
            if isinstance(value, dict):
                yield from walk(value, f"{outer}{key}.", at)

    return dict(walk(found, "", 0))


def read_word(word: str) -> object:
    """A value of a command as YAML reads it, so that 2 is a number and true is true; text where it is no YAML."""
    try:
        return yaml.safe_load(word)
    except (yaml.YAMLError, ValueError):
        return word


@dataclass(frozen=True)
class Script:
    """What a Python script writes down: `calls`, by the function's name, with their arguments, and the `names` it mentions."""

    calls: dict[str, list[Settings]]
    names: frozenset[str]

    def settings(self, *functions: str) -> Settings:
        """The arguments of all calls of these functions; a later call counts."""
        return {key: value for name in functions for call in self.calls.get(name, []) for key, value in call.items()}


_ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}


def read_script(path: Path) -> Script:
    """A script by its syntax tree; it is not run.

    A value counts where it is written down, also by the name of a constant or as the sum or product of two numbers; anything
    else is `Computed`. Raises `CourseError` where it is no Python.
    """
    try:
        tree = ast.parse(text_of(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f" (line {error.lineno})" if getattr(error, "lineno", None) else ""
        raise CourseError(f"{path} is no Python that can be read{line}.") from None
    nodes = list(ast.walk(tree))
    bound: dict[str, list[ast.expr | None]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr | ast.For):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            plain = isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (inner for outer in targets for inner in ast.walk(outer) if isinstance(inner, ast.Name)):
                bound.setdefault(target.id, []).append(node.value if plain and target in targets else None)
        elif isinstance(node, ast.arg):
            bound.setdefault(node.arg, []).append(None)

    def value_of(node: ast.expr | None, depth: int = 0) -> object:
        """What an expression says; raises `ValueError` where it is computed."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name) and len(bound.get(node.id, ())) == 1 and depth < 20:
            return value_of(bound[node.id][0], depth + 1)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
            return node.attr
        if isinstance(node, ast.List | ast.Tuple):
            return [value_of(one, depth) for one in node.elts]
        if isinstance(node, ast.Dict) and None not in node.keys:
            return {value_of(key, depth): value_of(one, depth) for key, one in zip(node.keys, node.values, strict=True)}
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -_number(value_of(node.operand, depth))
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            sides = (_number(value_of(side, depth)) for side in (node.left, node.right))
            return _ARITHMETIC[type(node.op)](*sides)
        raise ValueError

    def said(node: ast.expr) -> object:
        try:
            return value_of(node)
        except (ValueError, TypeError, ArithmeticError):
            return Computed(ast.unparse(node))

    calls: dict[str, list[Settings]] = {}
    for node in sorted((one for one in nodes if isinstance(one, ast.Call)), key=lambda one: one.lineno):
        arguments = {str(place): Value(said(one), f"{path.name}:{one.lineno}") for place, one in enumerate(node.args)}
        for keyword in node.keywords:
            where, found = f"{path.name}:{keyword.value.lineno}", said(keyword.value)
            if keyword.arg is None and isinstance(found, dict):
                arguments |= {str(key): Value(one, where) for key, one in found.items()}
            else:
                arguments[keyword.arg or "**"] = Value(found, where)
        calls.setdefault(ast.unparse(node.func).rpartition("(")[0] or ast.unparse(node.func), []).append(arguments)
    named = [node.id for node in nodes if isinstance(node, ast.Name)]
    named += [node.attr for node in nodes if isinstance(node, ast.Attribute)]
    by_last = {}
    for function, found in calls.items():
        by_last.setdefault(function.rpartition(".")[2], []).extend(found)
    return Script(calls | by_last, frozenset(named))


def _number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e12:
        raise ValueError
    return value


@dataclass(frozen=True)
class Launch:
    """A launch line taken apart: the `launcher`, its `flags`, the `target` that it runs, the target's `flags` and `files`."""

    launcher: str
    flags: Settings
    target: str
    arguments: Settings
    files: tuple[str, ...]


_LAUNCHERS = {
    "accelerate": "launch",
    "trl": "",
    "llamafactory-cli": "train",
    "axolotl": "train",
    "torchrun": "",
    "deepspeed": "",
}


def read_launch(words: list[str]) -> Launch:
    """A launch line such as `accelerate launch --num_processes 2 sft.py --bf16 true`; raises `CourseError` for another."""
    if len(words) == 1:  # a line in quotation marks
        try:
            words = shlex.split(words[0])
        except ValueError as error:
            raise CourseError(f"The launch line cannot be taken apart: {error}.") from None
    words = [word for word in words if word.strip() and word != "\\"]
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):  # variables of the shell
        words = words[1:]
    launcher, words = (Path(words[0]).name, words[1:]) if words else ("", [])
    if launcher == "uv" and words[:1] == ["run"]:
        return read_launch(words[1:])
    if re.fullmatch(r"python[\d.]*|py", launcher):
        launcher = "python"
        if words[:2] in (["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"]):
            launcher, words = "torchrun", words[2:]
        elif words[:2] == ["-m", "accelerate.commands.launch"]:
            launcher, words = "accelerate", ["launch", *words[2:]]
    if launcher != "python" and launcher not in _LAUNCHERS:
        raise CourseError(
            f"{launcher or 'Nothing'!r} starts no training that can be read; after -- give accelerate launch, torchrun, deepspeed, "
            "trl sft, llamafactory-cli train, axolotl train or python, as you type it."
        )
    if wanted := _LAUNCHERS.get(launcher):
        if words[:1] != [wanted]:
            raise CourseError(f"{launcher} trains by `{launcher} {wanted}`; give the line as you type it.")
        words = words[1:]
    if launcher == "trl":
        if not words or words[0].startswith("-"):
            raise CourseError("trl takes what to do first; give trl sft, for example.")
        flags, files = _flags(words[1:])
        return Launch(launcher, {}, words[0], flags, tuple(files))
    place = next((at for at, word in enumerate(words) if _is_target(word, words[at - 1] if at else "")), None)
    if place is None:
        raise CourseError(
            f"The launch line of {launcher} names no script; give it whole, with sft.py and its arguments."
        )
    before = words[:place] if words[place - 1] not in ("-m", "--module") else words[: place - 1]
    flags, files = _flags(words[place + 1 :])
    return Launch(launcher, _flags(before)[0], words[place], flags, tuple(files))


def _is_target(word: str, before: str) -> bool:
    return (
        before in ("-m", "--module")
        or word.endswith(".py")
        or (word.endswith((".yaml", ".yml", ".json")) and not before.startswith("-"))
    )


def _flags(words: list[str]) -> tuple[Settings, list[str]]:
    """`--name value`, `--name=value`, `--name` alone and `name=value`; names with underscores. And the words that are neither."""
    found, alone, name = {}, [], None
    for word in words:
        if match := re.fullmatch(r"(-{0,2})([A-Za-z][\w.-]*)=(.*)", word, re.DOTALL):
            found[match[2].replace("-", "_")], name = [read_word(match[3])], None
        elif re.match(r"-{1,2}[A-Za-z]", word):
            name = word.lstrip("-").replace("-", "_")
            found[name] = []
        elif name is None:
            alone.append(word)
        else:
            found[name].append(read_word(word))
    values = {key: (True if not one else one[0] if len(one) == 1 else one) for key, one in found.items()}
    return {key: Value(value, LAUNCH) for key, value in values.items()}, alone
