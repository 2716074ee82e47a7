"""Helpers for a course on efficient model training with PyTorch.

Rooms are imported when they are first used, so `import course_utils` is quick and loads neither torch nor transformers.
"""

from pkgutil import iter_modules

from course_utils.lazy import import_when_used

_ROOMS = [module.name for module in iter_modules(__path__)]

__getattr__, __dir__, _ = import_when_used(__name__, dict.fromkeys(_ROOMS, ()))
