"""Refuses what an answer must write itself (`Question.replaces`): its cell is searched for ways to it, and using it raises.

The code of functions is replaced in place, so that they fail under every name, also one bound before. With a class the whole
module that defines it is disabled, because a library's class comes with functions that do the same.
"""

import ast
import functools
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from types import BuiltinFunctionType, FunctionType, ModuleType
from unittest.mock import patch

from course_utils.errors import CourseError

# Another program, a file, a copy of a module, a compiled optimizer.
_DETOUR = re.compile(
    r"(exec|importlib|open|os\.system|subprocess|get_ipython\(\)\.(system|getoutput)|torch\.(\w+\.)*_fused_\w+)\b"
)
_IMPORTS = (ast.Import, ast.ImportFrom)
_FUNCTIONS = (FunctionType, staticmethod, classmethod, type(functools.cache(len)))
# The names that are disabled now, each time with the number of modules that were loaded by then.
_disabled_names: list[tuple[tuple[str, ...], int]] = []


class ForeignError(Exception):
    """The answer is, or uses, what it should replace; the message says where that comes from."""


def find_foreign(source: str, names: Iterable[str]) -> str:
    """What the `source` of an answer's cell takes from `names`, which it should replace, or by a detour; empty if nothing.

    Of `names` only indented imports are looked for, as in a function, because they come too late for `disable`.
    """
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""  # such a cell does not run either
    for node in nodes:
        is_late_import = isinstance(node, _IMPORTS) and node.col_offset > 0
        for path in _paths_in(node):
            if _DETOUR.match(path):
                return f"{path} (a way to another's work)"
            if is_late_import and any(f"{path}.".startswith(f"{name}.") for name in names):
                return path
    return ""


def _paths_in(node: ast.AST) -> list[str]:
    """The names that are written in a node of a syntax tree."""
    if isinstance(node, ast.Name | ast.Attribute):
        return [ast.unparse(node)]
    if isinstance(node, _IMPORTS):
        package = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        return [f"{package}{alias.name}" for alias in node.names]
    return []


@contextmanager
def disable(names: Iterable[str]) -> Iterator[None]:
    """Disable `names` in the block: dotted names of classes, functions and modules, with all below them that is loaded.

    A block within one of the same names does nothing, unless a module has been loaded since. Raises `CourseError` for a name of
    anything else.
    """
    names = tuple(names)
    if not names or (names, len(sys.modules)) in _disabled_names:
        yield
        return
    with ExitStack() as undo:
        for name in names:
            value = _resolve(name)
            if isinstance(value, type):  # which may say that its package defines it
                value = sys.modules[vars(value).get("__init__", value).__module__]
            if value is None or isinstance(value, ModuleType):
                _disable_modules(value.__name__ if value else name, undo)
            elif isinstance(value, BuiltinFunctionType):
                undo.enter_context(patch(name, FunctionType(_refuse.__code__.replace(co_name=name), globals())))
            elif isinstance(value, _FUNCTIONS):
                _empty(value, name, undo)
            else:
                raise CourseError(f"{name} cannot be replaced by an answer; name a module, a class or a function.")
        _disabled_names.append((names, len(sys.modules)))
        undo.callback(_disabled_names.pop)
        yield


def _resolve(name: str) -> object:
    """The object with the dotted name; None if it is not loaded, but what is the course's own is loaded."""
    if name.startswith("course_utils."):
        module = import_module(name)
        for key in getattr(module, "__all__", ()):  # a room loads its files when they are first used
            getattr(module, key)
        return module
    parent, _, last = name.rpartition(".")
    return sys.modules.get(name) or (getattr(_resolve(parent), last, None) if parent else None)


def _disable_modules(name: str, undo: ExitStack) -> None:
    """Disable what the module `name` and those below it define, and what they list in `__all__`."""
    for path, module in list(sys.modules.items()):
        for key, value in list(vars(module).items()) if f"{path}.".startswith(f"{name}.") else ():
            home = getattr(value, "__module__", None)
            if home != path and key not in getattr(module, "__all__", ()):
                continue
            for member in list(vars(value).values()) if isinstance(value, type) else [value]:
                # A class may have methods of another module.
                if getattr(member, "__module__", None) in (path, home):
                    _empty(member, f"{path}.{key}", undo)


def _empty(function: object, name: str, undo: ExitStack) -> None:
    """Replace the code of a function, and of those that it wraps, by one that raises `ForeignError(name)`."""
    while isinstance(function, _FUNCTIONS):
        if hasattr(function, "cache_clear"):
            function.cache_clear()
        if isinstance(function, FunctionType):
            code = function.__code__
            undo.callback(setattr, function, "__code__", code)
            # Python takes only code with as many variables from outside as the function has.
            function.__code__ = _refuse.__code__.replace(co_name=name, co_freevars=code.co_freevars)
        function = getattr(function, "__wrapped__", None)


def _refuse(*_, **__):
    """The code of an emptied function, whose own globals it runs with; its code's name says what it was."""
    import sys

    from course_utils.grading.foreign import ForeignError

    raise ForeignError(sys._getframe().f_code.co_name)
