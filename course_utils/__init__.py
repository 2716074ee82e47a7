"""Helpers for a course on efficient model training with PyTorch.

Rooms are imported when they are first used, so `import course_utils` is quick and loads neither torch nor transformers.
"""

from importlib import import_module

_ROOMS = (
    "autodiff", "chapters", "cli", "data", "distributed", "doctor", "errors", "files", "grading", "hardware",
    "hub", "ledger", "lessons", "memory", "models", "optim", "precision", "settings", "techniques", "training", "units", "viz",
)  # fmt: skip


def __getattr__(name: str):
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; its rooms are {', '.join(_ROOMS)}")


def __dir__():
    return [*globals(), *_ROOMS]
