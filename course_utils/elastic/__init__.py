"""Training that goes on when processes end, and takes them back when they return.

`serve` is the store at which they meet, a process of its own: `python -m course_utils.elastic.store`.
"""

from course_utils.lazy import import_when_used

# Later: `python -m course_utils.elastic.store` would else find itself imported already.
_HOMES = {"store": ("serve",)}

__getattr__, __dir__, __all__ = import_when_used(__name__, _HOMES)
