"""Helpers for a course on efficient model training with PyTorch.

Rooms are imported when they are first used, so `import course_utils` is quick and loads neither torch nor transformers.
"""

from course_utils.lazy import import_when_used

_ROOMS = (
    "autodiff", "chapters", "cli", "data", "distributed", "doctor", "errors", "files", "grading", "hardware",
    "hub", "ledger", "lessons", "memory", "models", "optim", "precision", "settings", "techniques", "training", "units", "viz",
)  # fmt: skip

__getattr__, __dir__, _ = import_when_used(__name__, dict.fromkeys(_ROOMS, ()))
