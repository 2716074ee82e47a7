"""The exception for what a reader can put right. (Optimizers by hand raise torch's kinds, as their oracles do.)"""


class CourseError(Exception):
    """Something the reader can put right; the message is one sentence that says what and how."""


def require_count(name: str, value) -> None:
    """Raise `CourseError` unless `value` is a whole number from 1 on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CourseError(f"{name} must be a whole number from 1 on, not {value!r}.")
