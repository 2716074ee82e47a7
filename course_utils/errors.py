"""The one exception the course raises on purpose."""


class CourseError(Exception):
    """Something the reader can put right; the message is one sentence that says what and how."""
