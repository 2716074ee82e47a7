"""Questions, checks that say what is wrong, and grading that a submission cannot forge."""

from course_utils import import_when_used

_HOMES = {
    "board": ("my_progress",),
    "check": ("FailedCheckError", "Checker", "exercise"),
    "compare": ("Rule", "at_most"),
    "kinds": ("account", "choice", "collective", "design", "function", "kills", "stream"),
    "question": ("Case", "Mistake", "Question", "Tolerance", "Variant"),
    "subjects": ("Zoo",),
    "weighing": ("weighed",),
}

__getattr__, __dir__, __all__ = import_when_used(__name__, _HOMES)
