"""What an answer is to replace is not to be had where it runs: whoever uses it gets a `ForeignError`.

Functions are emptied in place, so that they fail under every name, also one that was taken before. A class stands for all of
the module that defines it, because a library's class comes with functions that do the same.
"""

import functools
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType

import torch

from course_utils.errors import CourseError

_WRAPPERS = (staticmethod, classmethod, property, functools.cached_property, functools.partial)
_INSIDE = ("__func__", "fget", "fset", "func", "__wrapped__")
_CACHED = type(functools.cache(len))
_COMPILED = {
    "torch.optim.adam": ("_fused_adam_", "_fused_adamw_"),
    "torch.optim.adamw": ("_fused_adam_", "_fused_adamw_"),
    "torch.optim.sgd": ("_fused_sgd_",),
    "torch.optim.adagrad": ("_fused_adagrad_",),
    "torch.amp.grad_scaler": ("_amp_update_scale_", "_amp_foreach_non_finite_check_and_unscale_"),
}
"""Operators that do by themselves what a module is for."""
_PROGRAMS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system")
"""Python's own names of what starts one."""


class ForeignError(Exception):
    """The answer is, or rests on, what it should replace; the message says where that comes from."""


class _ForeignFileError(ForeignError, OSError):
    """For who reads a source to show a line of it, a file that cannot be read."""


@contextmanager
def without(names: Iterable[str], answer: object = None) -> Iterator[None]:
    """In the block nothing in `names` can be used; raises `ForeignError` where the class `answer` inherits from it.

    `names` are dotted: of modules, with all below them, classes and functions. Raises `CourseError` for a name that is none.
    """
    with ExitStack() as undo:
        taken = _take_away(names, undo)
        for base in answer.__mro__ if isinstance(answer, type) else ():
            if base in taken:
                raise ForeignError(_name_of(base))
        yield


def forbid(names: Iterable[str]) -> None:
    """The same in this whole process from now on, for good: nothing of it is kept, and neither its source nor a module's `FILE`
    can be read by Python. What is not loaded yet can be imported and named, since a cell may do so that holds other imports, but
    not used. No program can be started: in a fresh Python it would all be there.

    For a process that ends with the answer: Python has no way to take back a hook that watches files.
    """
    modules = [sys.modules[place] for name in names for place in _below(_module_of(_resolve(name)[0]))]
    paths = {
        str(path) for m in modules for name in ("__file__", "__cached__", "FILE") if (path := getattr(m, name, None))
    }
    files, programs = {_identity(path) for path in paths} - {None}, _PROGRAMS if names else ()
    _take_away(names, ExitStack(), for_good=True)

    def watch(event: str, arguments: tuple) -> None:
        if event == "open" and files and _identity(arguments[0]) in files:
            raise _ForeignFileError(str(arguments[0]))
        if event in programs:
            raise ForeignError(f"another program ({event})")

    sys.addaudithook(watch)


def _identity(path: object) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except (OSError, TypeError, ValueError):
        return None
    return status.st_dev, status.st_ino


def _module_of(value: object) -> str:
    """The name of a module, and of the one that defines a class; empty for anything else."""
    if isinstance(value, ModuleType):
        return value.__name__
    if not isinstance(value, type):
        return ""
    functions = (each for member in list(vars(value).values()) for each in _functions_in(member))
    inside = (each.__module__ for each in functions if str(each.__module__).startswith(value.__module__))
    return next(inside, value.__module__)  # a class may say that its package defines it


def _below(name: str) -> list[str]:
    """The loaded modules of this name, and below it."""
    loaded = _list_modules(len(sys.modules), next(reversed(sys.modules)))
    return re.findall(rf"^{re.escape(name)}(?:\..*)?$", loaded, re.MULTILINE) if name else []


@functools.lru_cache(maxsize=1)
def _list_modules(count: int, last: str) -> str:
    """The names of all loaded modules, of which there are `count`, in one text: a forked process that looked at each name would
    copy the page that it lies on."""
    return "\n".join(sys.modules)


def list_modules() -> None:
    """Before a fork: what `forbid` looks through afterwards."""
    _below("torch")


def _take_away(names: Iterable[str], undo: ExitStack, for_good: bool = False) -> set[type]:
    """Empty all of it, and say which classes that were; `undo` brings it back when it is closed."""
    taken, absent = set(), []
    for name in names:
        value, rest = _resolve(name)
        if rest:
            absent.append(name)
        elif module := _module_of(value):
            absent.append(module)  # what of it is not loaded yet, and a second copy of what is
            taken |= _take_module(module, undo)
        elif isinstance(value, BuiltinFunctionType):
            _take_operator(value.__name__, undo)
        elif functions := list(_functions_in(value)):
            _empty(functions, name, undo)
        else:
            raise CourseError(f"{name} cannot be replaced by an answer; name a module, a class or a function.")
    if absent:
        finder = _Absent(tuple(absent), for_good)
        sys.meta_path.insert(0, finder)
        undo.callback(sys.meta_path.remove, finder)
    return taken


def _resolve(name: str) -> tuple[object, list[str]]:
    """What the dotted name stands for; the last part is left over where it can only be a module that is not loaded yet."""
    first, *rest = name.split(".")
    where, value = first, sys.modules.get(first)
    if value is None:
        return None, [name]
    for i, part in enumerate(rest, start=1):
        where = f"{where}.{part}"
        if where in sys.modules:
            value = sys.modules[where]
        elif hasattr(value, part):
            value = getattr(value, part)
        elif i == len(rest):
            return value, [part]
        else:
            value = import_module(where)
    return value, []


def _take_module(name: str, undo: ExitStack) -> set[type]:
    classes = set()
    for place in _below(name):
        module = sys.modules[place]
        listed = getattr(module, "__all__", ())
        for key, value in list(vars(module).items()):
            if key in listed or _home(value) == place:
                if isinstance(value, type):
                    classes.add(value)
                    _close(value, undo)
                _empty(_functions_in(value), f"{place}.{key}", undo)
        for operator in _COMPILED.get(place, ()):
            _take_operator(operator, undo)
    return classes


def _home(value: object) -> str:
    has_module = isinstance(value, (type, FunctionType, _CACHED, *_WRAPPERS))
    return str(getattr(value, "__module__", "")) if has_module else ""


def _close(kind: type, undo: ExitStack) -> None:
    """Nobody inherits from the class, and none of its methods runs."""
    for value in list(vars(kind).values()):
        own = (each for each in _functions_in(value) if each.__module__ == _module_of(kind))  # some hold their base's
        _empty(own, _name_of(kind), undo)
    with suppress(AttributeError, TypeError):  # a class that lets nothing be set
        before = vars(kind).get("__init_subclass__")
        kind.__init_subclass__ = classmethod(_refusal(_name_of(kind)))
        undo.callback(
            *((setattr, kind, "__init_subclass__", before) if before else (delattr, kind, "__init_subclass__"))
        )


def _functions_in(value: object) -> Iterator[FunctionType]:
    """The Python functions behind a method, a property, a decorated or a cached function."""
    waiting, seen = [value], set()
    while waiting:
        each = waiting.pop()
        if id(each) in seen or not isinstance(each, (FunctionType, _CACHED, *_WRAPPERS)):
            continue
        seen.add(id(each))
        waiting += [getattr(each, name, None) for name in _INSIDE]
        if isinstance(each, _CACHED):
            each.cache_clear()
        if isinstance(each, FunctionType):
            yield each
            for cell in each.__closure__ or ():
                with suppress(ValueError):  # an empty one
                    if getattr(cell.cell_contents, "__module__", None) == each.__module__:
                        waiting.append(cell.cell_contents)


def _empty(functions: Iterable[FunctionType], where: str, undo: ExitStack) -> None:
    for function in list(functions):
        undo.callback(setattr, function, "__code__", function.__code__)
        function.__code__ = _refusing(where, len(function.__code__.co_freevars))


@functools.cache
def _refusing(where: str, cells: int) -> CodeType:
    """Code that refuses, with as many variables from outside as the function has whose code it becomes."""
    outside = [f"_{i}" for i in range(cells)]
    lines = [
        "def make():",
        *(f"    {name} = None" for name in outside),
        "    def refuse(*_, **__):",
        "        from course_utils.grading.foreign import ForeignError",
        f"        raise ForeignError({where!r})",
        *(f"        {name}" for name in outside),
        "    return refuse",
    ]
    names: dict = {}
    exec("\n".join(lines), names)
    return names["make"]().__code__


def _refusal(where: str) -> Callable:
    def refuse(*_, **__):
        raise ForeignError(where)

    return refuse


def _take_operator(name: str, undo: ExitStack) -> None:
    """Whatever way leads to one of torch's operators on the CPU, it refuses."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings(action="ignore"):  # torch's, that a kernel is replaced
        for overload in getattr(torch.ops.aten, name).overloads():
            full = name if overload == "default" else f"{name}.{overload}"
            library.impl(full, _refusal(f"torch.{name}"), "CPU", allow_override=True)
    _LIBRARIES.append(library)
    undo.callback(library._destroy)
    undo.callback(_LIBRARIES.remove, library)


_LIBRARIES: list[torch.library.Library] = []
"""A library's kernels go with it."""


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


class _Absent(MetaPathFinder, Loader):
    """Finds these modules, and what is below them, before anybody else does, and loads none."""

    def __init__(self, names: tuple[str, ...], for_good: bool):
        self.names, self.for_good = names, for_good

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec, so that who only asks whether there is such a module hears that there is."""
        mine = any(fullname == name or fullname.startswith(f"{name}.") for name in self.names)
        return spec_from_loader(fullname, self, is_package=self.for_good) if mine else None

    def exec_module(self, module: ModuleType) -> None:
        """Raises `ForeignError`; for good, whatever is taken from the module does so when it is used."""
        if not self.for_good:
            raise ForeignError(module.__name__)
        module.__getattr__ = _StandIn(module.__name__).__getattr__


class _StandIn:
    """Something that is not to be had: it can be named, and nobody can call it or inherit from it."""

    def __init__(self, where: str):
        self._where = where

    def __getattr__(self, name: str) -> "_StandIn":
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn(f"{self._where}.{name}")

    def __call__(self, *_, **__):
        raise ForeignError(self._where)

    def __mro_entries__(self, bases: tuple) -> tuple:
        raise ForeignError(self._where)
