"""Questions, checks that say what is wrong, and grading that a submission cannot forge."""

from importlib import import_module

_HOMES = {
    "board": ("my_progress",),
    "check": ("FailedCheckError", "Checker", "exercise"),
    "compare": ("Rule", "at_most"),
    "kinds": ("account", "choice", "collective", "cost", "design", "function", "scaler", "sharded", "stream"),
    "question": ("Case", "Mistake", "Question", "Tolerance", "Variant"),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}
__all__ = sorted(_MODULES)


def __getattr__(name: str):
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__():
    return [*globals(), *__all__]
