"""Two pieces of the package's source as the difference between them."""

import inspect
import textwrap
from collections.abc import Callable
from difflib import ndiff

from IPython.display import Markdown


def difference(before: Callable, after: Callable) -> Markdown:
    """What turns the source of one function into another's, lines with − and +; for short ones, since all lines are shown."""
    lines = [line.rstrip() for line in ndiff(_lines(before), _lines(after)) if not line.startswith("?")]
    names = " → ".join(f"`{each.__module__}.{each.__qualname__}`" for each in (before, after))
    return Markdown(names + "\n\n```diff\n" + "\n".join(lines) + "\n```")


def _lines(thing: Callable) -> list[str]:
    return textwrap.dedent(inspect.getsource(thing)).rstrip().splitlines()
