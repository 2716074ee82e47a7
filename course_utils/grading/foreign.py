"""Disables what an answer must write itself (`Question.replaces`) while it runs: using it raises `ForeignError`.

The code of functions is replaced in place, so that they fail under every name, also one bound before. With a class the whole
module that defines it is disabled, because a library's class comes with functions that do the same.
"""

import functools
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import BuiltinFunctionType, FunctionType, ModuleType

import torch

from course_utils.errors import CourseError

_CACHED = type(functools.cache(len))
_WRAPPERS = (FunctionType, _CACHED, staticmethod, classmethod, property, functools.cached_property, functools.partial)
_WRAPPED_ATTRIBUTES = ("__func__", "fget", "fset", "func", "__wrapped__")
# Compiled operators that do the work of a module.
_COMPILED = {
    "torch.optim.adam": ("_fused_adam_", "_fused_adamw_"),
    "torch.optim.adamw": ("_fused_adam_", "_fused_adamw_"),
    "torch.optim.sgd": ("_fused_sgd_",),
    "torch.optim.adagrad": ("_fused_adagrad_",),
    "torch.amp.grad_scaler": ("_amp_update_scale_", "_amp_foreach_non_finite_check_and_unscale_"),
}
# Kept alive, because torch drops a library's kernels with it.
_LIBRARIES: list[torch.library.Library] = []
# Audit events of starting a program.
_PROGRAM_EVENTS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system")


class ForeignError(Exception):
    """The answer is, or uses, what it should replace; the message says where that comes from."""


class _ForeignFileError(ForeignError, OSError):
    """The refusal to open a source file, an `OSError` too: what reads a source to show a line of it goes on without."""


@contextmanager
def disable(names: Iterable[str]) -> Iterator[None]:
    """Disable `names` in the block: dotted names of modules, with all below them, classes and functions.

    Raises `CourseError` for a name that does not exist.
    """
    with ExitStack() as undo:
        _take_away(names, undo)
        yield


def forbid(names: Iterable[str]) -> None:
    """Disable `names` for the rest of this process, which ends with the answer: Python cannot remove a hook on opening files.

    Their code is not kept, and neither their source nor a module's `FILE` can be read. A module that is not loaded yet can be
    imported, because a cell may hold other imports too, but not used. No program can be started, since it could use `names`.
    """
    if not names:
        return
    modules = [sys.modules[key] for key in _take_away(names, ExitStack(), for_good=True)]
    paths = [getattr(module, name, None) for module in modules for name in ("__file__", "__cached__", "FILE")]
    files = {os.path.realpath(path) for path in paths if path}

    def watch(event: str, arguments: tuple) -> None:
        if event == "open" and not isinstance(arguments[0], int):  # a number means a file that is already open
            path = os.fsdecode(arguments[0])
            if os.path.realpath(path) in files:
                raise _ForeignFileError(path)
        if event in _PROGRAM_EVENTS:
            raise ForeignError(f"another program ({event})")

    sys.addaudithook(watch)


def _resolve(name: str) -> object:
    """The object with the dotted name; None if that can only be a module that is not loaded yet."""
    if name in sys.modules:
        return sys.modules[name]
    parent, _, last = name.rpartition(".")
    value = _resolve(parent) if parent else None
    if value is None and name.split(".")[0] in sys.modules:
        value = import_module(parent)  # it may be a function there
    return getattr(value, last, None)


def _take_away(names: Iterable[str], undo: ExitStack, for_good: bool = False) -> list[str]:
    """Disable `names` until `undo` is closed; returns the loaded modules among them."""
    modules = []
    absent = []  # modules that are not loaded yet; those that are, so that no second copy is loaded
    for name in names:
        value = _resolve(name)
        if isinstance(value, type):  # which may say that its package defines it
            value = sys.modules[vars(value).get("__init__", value).__module__]
        if value is None or isinstance(value, ModuleType):
            module = value.__name__ if value else name
            loaded = [key for key in list(sys.modules) if key == module or key.startswith(f"{module}.")]
            for key in loaded:
                _take_module(key, undo)
            absent.append(module)
            modules += loaded
        elif isinstance(value, BuiltinFunctionType):
            _take_operator(value.__name__, undo)
        elif functions := list(_functions_in(value)):
            _empty(functions, name, undo)
        else:
            raise CourseError(f"{name} cannot be replaced by an answer; name a module, a class or a function.")
    finder = _RefusingImporter(tuple(absent), for_good)
    sys.meta_path.insert(0, finder)
    undo.callback(sys.meta_path.remove, finder)
    return modules


def _take_module(name: str, undo: ExitStack) -> None:
    module = sys.modules[name]
    listed = getattr(module, "__all__", ())
    for key, value in list(vars(module).items()):
        if key not in listed and getattr(value, "__module__", None) != name:
            continue
        if isinstance(value, type):
            methods = [function for member in list(vars(value).values()) for function in _functions_in(member)]
            # A class may inherit methods of another module; only its own are emptied.
            own_functions = [function for function in methods if function.__module__ in (name, value.__module__)]
            _empty(own_functions, f"{value.__module__}.{value.__qualname__}", undo)
        else:
            _empty(list(_functions_in(value)), f"{name}.{key}", undo)
    for operator in _COMPILED.get(name, ()):
        _take_operator(operator, undo)


def _functions_in(value: object) -> Iterator[FunctionType]:
    """The Python functions behind a method, a property, a decorated or a cached function."""
    if isinstance(value, _CACHED):
        value.cache_clear()
    if isinstance(value, FunctionType):
        yield value
    if isinstance(value, _WRAPPERS):
        for name in _WRAPPED_ATTRIBUTES:
            yield from _functions_in(getattr(value, name, None))


def _empty(functions: list[FunctionType], name: str, undo: ExitStack) -> None:
    """Replace the functions' code by one that raises `ForeignError(name)`."""

    def refuse(*_, **__):
        from course_utils.grading.foreign import ForeignError

        raise ForeignError("NAME")

    # A closure over `name` would be a variable from outside; so the name goes into the code, as a constant.
    consts = tuple(name if constant == "NAME" else constant for constant in refuse.__code__.co_consts)
    for function in functions:
        undo.callback(setattr, function, "__code__", function.__code__)
        # Python takes only code with as many variables from outside as the function has.
        function.__code__ = refuse.__code__.replace(co_consts=consts, co_freevars=function.__code__.co_freevars)


def _take_operator(name: str, undo: ExitStack) -> None:
    """Make one of torch's operators refuse on the CPU, however it is called."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings(action="ignore"):  # torch's, that a kernel is replaced
        for overload in getattr(torch.ops.aten, name).overloads():
            full_name = name if overload == "default" else f"{name}.{overload}"
            library.impl(full_name, _RefusingModule(f"torch.{name}"), "CPU", allow_override=True)
    _LIBRARIES.append(library)
    undo.callback(library._destroy)


class _RefusingImporter(MetaPathFinder, Loader):
    """An importer for these modules and those below them, which loads none."""

    def __init__(self, names: tuple[str, ...], for_good: bool):
        self.names = names
        self.for_good = for_good

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for each disabled module, so that code which only looks for it still finds it."""
        is_absent = any(f"{fullname}.".startswith(f"{name}.") for name in self.names)
        return spec_from_loader(fullname, self, is_package=self.for_good) if is_absent else None

    def exec_module(self, module: ModuleType) -> None:
        """Raises `ForeignError`; for good, only the module's attributes do so, when they are used."""
        if not self.for_good:
            raise ForeignError(module.__name__)
        module.__getattr__ = _RefusingModule(module.__name__).__getattr__


class _RefusingModule:
    """A placeholder for a disabled module: its attributes can be named; calls and subclassing raise `ForeignError`."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> "_RefusingModule":
        if name.startswith("__"):
            raise AttributeError(name)
        return _RefusingModule(f"{self._name}.{name}")

    def __call__(self, *_, **__):
        raise ForeignError(self._name)

    __mro_entries__ = __call__
