"""The card that `course plan` is asked about."""

import re

from course_utils.errors import CourseError, suggest
from course_utils.hardware import MACHINES, known_as
from course_utils.units import GiB, MiB

_UNITS = {"GB": GiB, "GIB": GiB, "MB": MiB, "MIB": MiB, "TB": 1024 * GiB, "TIB": 1024 * GiB}
_MOST_GB = 1000  # more digits than these are a card's number


def read_card(memory: str, machine: str | None) -> tuple[int, str | None]:
    """The bytes of a card by its name or its size, and the machine whose seconds are asked for."""
    card, words = known_as(memory), memory.strip()
    named = known_as(machine) if machine else card if card in MACHINES else None
    if named is not None and named not in MACHINES:
        raise CourseError(
            f"No card is called {named!r}; {suggest(named, MACHINES)} To predict seconds for another card, name "
            "one with similar memory bandwidth and compute."
        )
    if card in MACHINES:
        return MACHINES[card].memory, named
    if words.isdigit() and int(words) < _MOST_GB:
        raise CourseError(f"--memory {words} has no unit; did you mean {words}GB?")
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*([A-Za-z]+)", words)
    if not match or match[2].upper() not in _UNITS:
        within = (name for name in MACHINES if re.search(rf"(?i)\b{re.escape(name)}\b", words))
        raise CourseError(
            f"{memory!r} is neither a memory size, such as 24GB or 16000MiB, nor a known card; "
            f"{suggest(next(within, words), MACHINES)} "
            "For any other card give its memory and, for seconds, a similar card with --machine."
        )
    return int(float(match[1]) * _UNITS[match[2].upper()]), named
