"""Where a name in the learner's notebook comes from: the cell and the line, so that a check can prove what it graded."""

import ast
import hashlib
import inspect
import linecache
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType

from course_utils.grading.question import EXERCISE_LINE


@dataclass(frozen=True)
class Definition:
    """The `kind` of answer ("a function"), the number of its `cell` (None outside a notebook), the cell's `source` if known."""

    kind: str
    cell: int | None = None
    file: str = ""
    line: int | None = None
    source: str = ""

    def sentence(self, name: str, numbered: bool = True) -> str:
        """`'Graded: `f`, a function from In [3], line 1.'`, or by its text where nobody sees the cells' numbers."""
        cell = f"In [{self.cell}]" if numbered else cell_in_words(self.source)
        origin = f" from {cell}" if self.cell else f" from {self.file}" if self.file else ""
        return f"Graded: `{name}`, {self.kind}{origin}{f', line {self.line}' if self.line and origin else ''}."


def cell_in_words(source: str) -> str:
    """`'the cell of q1'`, or `'the cell that begins `import torch`'`."""
    if match := EXERCISE_LINE.search(source):
        return f"the cell of {match[1]}"
    first = next(iter(source.strip().splitlines()), "").replace("`", "'")
    return f"the cell that begins `{first}`"


def find_definition(
    name: str, answer: object, names: Mapping, compiler: object = None, failed_cells: Collection[int] = ()
) -> Definition:
    """Find where `answer`, called `name` in the namespace `names`, was defined; `compiler` is IPython's, where there is one.

    The code of a function or class tells; any other value is from the last cell that assigns the name and did not fail before.
    """
    kind = _name_kind(answer)
    history = history_in(names)
    code = _code_of(answer)
    if code is None:
        for number in reversed(range(len(history))):
            line = binding_line(history[number], name)
            if line and number not in failed_cells:
                return Definition(kind, number, "", line, history[number])
        return Definition(kind)
    file = code.co_filename
    source = "".join(linecache.getlines(file))
    line = binding_line(source, name) or code.co_firstlineno
    cell = _cell_of(file, source, history, compiler)
    return Definition(kind, cell, "" if cell else file, line, source)


def digest_of_cell(source: str) -> str:
    """A hash of the cell's code, without spaces and blank lines."""
    return hashlib.sha256(" ".join(source.split()).encode()).hexdigest()[:16]


def binding_line(source: str, name: str) -> int | None:
    """The line of the last statement at the source's top level (inside `if`, `for`, `with` too) that binds `name`."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    return max((node.lineno for node in _top_level_nodes(tree) if name in _names_bound_by(node)), default=None)


def _top_level_nodes(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _top_level_nodes(child)


def _names_bound_by(node: ast.AST) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return {node.id}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.split(".")[0] for alias in node.names}
    return set()


def _name_kind(answer: object) -> str:
    if isinstance(answer, type):
        return "a class"
    if inspect.isroutine(answer):
        return "a function"
    kind = type(answer).__name__
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _code_of(answer: object) -> CodeType | None:
    """The code of a function, or of the first method that a class defines itself."""
    if not isinstance(answer, type):
        return _code_of_function(answer)
    methods = (getattr(value, "__func__", value) for value in vars(answer).values())
    return next(filter(None, map(_code_of_function, methods)), None)


def _code_of_function(function: object) -> CodeType | None:
    if not inspect.isfunction(function):
        return None
    try:
        return inspect.unwrap(function).__code__
    except (ValueError, AttributeError):  # wrappers in a circle, or around what is no function
        return function.__code__


def history_in(names: Mapping) -> Sequence[str]:
    """The cells that were run, by number, where `names` are those of an IPython shell."""
    history = names.get("In")
    return history if isinstance(history, list) else []


def _cell_of(file: str, source: str, history: Sequence[str], compiler: object) -> int | None:
    """The number of the cell that was compiled under the name `file`."""
    number = getattr(compiler, "_filename_map", {}).get(file)  # IPython 8 and later
    if number:
        return number
    if match := re.match(r"<ipython-input-(\d+)-", file):  # IPython 7, as in Colab
        return int(match[1])
    matches = [i for i, cell in enumerate(history) if source and cell.strip() == source.strip()]
    return matches[-1] if matches else None
