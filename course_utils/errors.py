"""The exception for what a reader can put right. (Optimizers by hand raise torch's kinds, as their oracles do.)"""


class CourseError(Exception):
    """Something the reader can put right; the message is one sentence that says what and how."""
