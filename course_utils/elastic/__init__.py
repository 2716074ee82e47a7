"""Training that goes on when processes end, and takes them back when they return.

`serve` is the store at which they meet, a process of its own: `python -m course_utils.elastic.store`. `ElasticRounds` is local
SGD, or DiLoCo, among those that are there.
"""

from course_utils import import_when_used

# Imported late: `python -m course_utils.elastic.store` would otherwise find the module imported already, and warn.
_HOMES = {"rounds": ("ElasticRounds",), "store": ("serve",)}

__getattr__, __dir__, __all__ = import_when_used(__name__, _HOMES)
