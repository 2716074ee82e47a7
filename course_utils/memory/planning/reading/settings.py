"""The settings in a file, a script or a command, each with its origin."""

import ast
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from course_utils.errors import CourseError

# The most bytes of a file of settings.
_MAX_BYTES = 2**20
_JSON_COMMAND = 'python -c "import torch; print(torch.load({!r}, weights_only=False).to_json_string())" > args.json'
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Value:
    """One value and its origin: `trl.yaml:7`, `launch line`, `default of TRL 1.16`."""

    value: object
    origin: str


@dataclass(frozen=True)
class Computed:
    """A value that a script computes: the source of the expression."""

    code: str


Settings = dict[str, Value]


def require_file(path: Path) -> None:
    """Raise `CourseError` unless there is such a file."""
    if not path.is_file():
        raise CourseError(f"There is no file {path} in {Path.cwd().name}/; start course plan where you train.")


def text_of(path: Path) -> str:
    """The text of a file. Raises `CourseError` for a pickle, another binary file, and one that is too large."""
    if path.suffix in (".bin", ".pt", ".pkl"):
        raise CourseError(
            f"{path} is a pickle, which runs code as it is read; where you trust it, write its JSON and give that: "
            + _JSON_COMMAND.format(str(path))
        )
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise CourseError(f"{path} is larger than a megabyte, which no file of settings is; give another.")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise CourseError(f"{path} is no text in UTF-8; give a YAML, JSON or Python file.") from None
    except OSError as error:
        raise CourseError(f"{path} cannot be read ({error.strerror}).") from error


def read_keys(path: Path) -> Settings:
    """The settings in a YAML or JSON file, with inner keys as `outer.inner`.

    Raises `CourseError`, with the line if possible, for a file that cannot be read or has no keys.
    """
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
        line = f" in line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise CourseError(f"{path} is no {path.suffix[1:].upper()} that can be read: {problem}{line}.") from None
    raise CourseError(f"{path} holds no keys with values; give a file of settings.")


@dataclass(frozen=True)
class Script:
    """A Python script's `calls` with their arguments, by function, all `names` in it, and the `options` of its own parser."""

    calls: dict[str, list[Settings]]
    names: frozenset[str]
    options: frozenset[str] = frozenset()


_ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}


def read_script(path: Path, launch_arguments: Settings) -> Script:
    """Read a script from its syntax tree, without running it.

    A value is known if it is written down, is the name of a constant, combines two known numbers by +, -, * or //, or is an
    option of an `argparse` parser (set by `launch_arguments` or by its default). Any other value is `Computed`. Raises
    `CourseError` for a file that is no Python.
    """
    try:
        tree = ast.parse(text_of(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f" (line {error.lineno})" if getattr(error, "lineno", None) else ""
        raise CourseError(f"{path} is no Python that can be read{line}.") from None
    reader = _ScriptReader(path.name, list(ast.walk(tree)), launch_arguments)
    calls: dict[str, list[Settings]] = {}
    for node in sorted((node for node in reader.nodes if isinstance(node, ast.Call)), key=lambda node: node.lineno):
        calls.setdefault(ast.unparse(node.func), []).append(reader.read_arguments(node))
    names = {getattr(node, "id", getattr(node, "attr", "")) for node in reader.nodes}
    return Script(calls, frozenset(names), frozenset(reader.options))


class _ScriptReader:
    """Evaluates expressions of a script from its constants and the `options` of its parsers, which the launch line may set."""

    def __init__(self, file: str, nodes: list[ast.AST], launch_arguments: Settings):
        self.file = file
        self.nodes = nodes
        self.launch_arguments = launch_arguments
        assigned = []
        for node in nodes:
            if isinstance(node, ast.Assign):
                assigned += [(target.id, node.value) for target in node.targets if isinstance(target, ast.Name)]
        stores = [node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)]
        stores += [node.arg for node in nodes if isinstance(node, ast.arg)]
        self.constants = {name: value for name, value in assigned if stores.count(name) == 1}
        self.options = _options_in(nodes)
        called = [(name, ast.unparse(getattr(value, "func", value))) for name, value in assigned]
        self.parsers = {name for name, function in called if function.endswith(".parse_args")}

    def read_arguments(self, call: ast.Call) -> Settings:
        """The arguments of a call by index or name; `**` is what is handed over by it, and `()` says where the call stands."""
        arguments = {str(index): self.read(argument) for index, argument in enumerate(call.args)}
        for keyword in call.keywords:
            value = self.read(keyword.value)
            if keyword.arg is None and isinstance(value.value, dict):
                arguments |= {key: Value(inner, value.origin) for key, inner in value.value.items()}
            else:
                arguments[keyword.arg or "**"] = value
        return arguments | {"()": Value(None, f"{self.file}:{call.lineno}")}

    def read(self, node: ast.expr) -> Value:
        try:
            value = self.evaluate(node)
        except (ValueError, ArithmeticError):
            value = Computed(ast.unparse(node))
        return Value(value, f"{self.file}:{node.lineno}")

    def evaluate(self, node: ast.expr, depth: int = 0) -> object:
        """The value of an expression; raises `ValueError` if it would have to be computed."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner in self.parsers and name in self.options:
                if name in self.launch_arguments:
                    return self.launch_arguments[name].value
                if self.options[name] is not None:
                    return self.evaluate(self.options[name], depth + 1)
            case ast.Name(id=name) if name in self.constants and depth < 20:
                return self.evaluate(self.constants[name], depth + 1)
            case ast.Attribute(value=ast.Name(id="torch"), attr=name):
                return name
            case ast.List(elts=inner) | ast.Tuple(elts=inner):
                return [self.evaluate(node, depth) for node in inner]
            case ast.Dict(keys=keys, values=values) if None not in keys:
                pairs = zip(keys, values, strict=True)
                return {str(self.evaluate(key, depth)): self.evaluate(node, depth) for key, node in pairs}
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                sides = [self.evaluate(side, depth) for side in (left, right)]
                if all(type(side) in (int, float) and abs(side) < 1e12 for side in sides):
                    return _ARITHMETIC[type(op)](*sides)
        raise ValueError


def _options_in(nodes: list[ast.AST]) -> dict[str, ast.expr | None]:
    """The options of `argparse` parsers by name, each with the expression of its default, or None."""
    options = {}
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            flags = [word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
            keywords = {keyword.arg: keyword.value for keyword in node.keywords}
            is_switch = ast.unparse(keywords.get("action", ast.Constant(""))) == "'store_true'"
            default = keywords.get("default", ast.Constant(False) if is_switch else None)
            options |= {flag.lstrip("-").replace("-", "_"): default for flag in flags}
    return options
