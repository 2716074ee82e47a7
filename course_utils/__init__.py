"""Helpers for a course on efficient model training with PyTorch.

Rooms are imported when they are first used, so `import course_utils` is quick and loads neither torch nor transformers.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules


def import_when_used(package: str, homes: Mapping[str, Sequence[str]]) -> tuple[Callable, Callable, list[str]]:
    """`__getattr__`, `__dir__` and the names for the module called `package`, of names that are imported when first used.

    `homes` has the modules inside `package` with the names that each holds; a module without names is a name itself.
    """
    home_of = {name: module for module, names in homes.items() for name in names or [module]}
    names = sorted(home_of)

    def getattribute(name: str):
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(names)}")
        value = import_module(f"{package}.{home_of[name]}")
        if homes[home_of[name]]:
            value = getattr(value, name)
        setattr(sys.modules[package], name, value)
        return value

    return getattribute, lambda: sorted({*vars(sys.modules[package]), *names}), names


_ROOMS = [module.name for module in iter_modules(__path__)]

__getattr__, __dir__, _ = import_when_used(__name__, dict.fromkeys(_ROOMS, ()))
