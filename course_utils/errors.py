"""The exception for what a reader can put right. (Optimizers by hand raise torch's kinds, as their oracles do.)"""

import re
from collections.abc import Iterable
from difflib import get_close_matches

HOW_TO_INSTALL = 'run `make lab` in the course\'s folder or, with a wheel, `pip install "course-utils[course,lab]"`'
"""What to do about a missing package, for the end of a sentence."""


class CourseError(Exception):
    """Something the reader can put right; the message is one sentence that says what and how."""


def first_line(error: BaseException) -> str:
    """What an error says, for a sentence: the first line of its message, or its kind where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def shorten(text: str, max_length: int) -> str:
    """At most so many characters of a text, and a sign that the rest is cut."""
    return text if len(text) <= max_length else f"{text[:max_length]}…"


def require_count(name: str, value: object) -> None:
    """Raise `CourseError` unless `value` is a whole number from 1 on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CourseError(f"{name} must be a whole number from 1 on, not {value!r}.")


_PRECISION_ALIASES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def suggest(name: object, choices: Iterable[object], fallback: str = "") -> str:
    """How the refusal of an unknown `name` ends: `did you mean adamw?`, or `fallback`, by default all that is known.

    Upper and lower case do not count, and a name that differs by them alone is the only one that is asked about.
    """
    names = {str(choice).lower(): str(choice) for choice in choices}
    query = str(name).lower().rpartition("/")[2]  # of a model on the Hub, without whose it is
    query = _PRECISION_ALIASES.get(query, query)
    matches = [query] if query in names else [choice for choice in names if _begins_a_part(query, choice)][:3]
    matches = matches or get_close_matches(query, names, 2)
    if matches:
        return f"did you mean {' or '.join(names[choice] for choice in matches)}?"
    return fallback or f"choose one of {', '.join(names.values())}."


def _begins_a_part(query: str, name: str) -> bool:
    """Whether somebody who writes `3090` or `bert` may mean `rtx 3090` or `bert-base`."""
    return len(query) > 2 and any(part.startswith(query) for part in re.split(r"[\s._-]", name))
