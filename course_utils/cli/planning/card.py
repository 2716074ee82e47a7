"""The card in a question to `course plan`."""

import re

from course_utils.errors import CourseError, suggest
from course_utils.hardware import MACHINES, canonical_name
from course_utils.units import GiB, MiB

_UNITS = {"GB": GiB, "GIB": GiB, "MB": MiB, "MIB": MiB, "TB": 1024 * GiB, "TIB": 1024 * GiB}
# A number from this one on is a card's name, such as 3090, and not a size in GB.
_MIN_CARD_NUMBER = 1000


def read_card(memory: str, machine: str | None) -> tuple[int, str | None]:
    """The bytes of a card, from its name or size in `memory`, and the name of the machine for which to predict seconds, or None.

    Raises `CourseError` for an unknown card or machine, and for a size without a unit.
    """
    card = canonical_name(memory)
    if machine:
        machine = canonical_name(machine)
        if machine not in MACHINES:
            raise CourseError(
                f"No card is called {machine!r}; {suggest(machine, MACHINES)} To predict seconds for another card, name "
                "one with similar memory bandwidth and compute."
            )
    if card in MACHINES:
        return MACHINES[card].memory, machine or card
    text = memory.strip()
    if text.isdigit() and int(text) < _MIN_CARD_NUMBER:
        raise CourseError(f"--memory {text} has no unit; did you mean {text}GB?")
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*([A-Za-z]+)", text)
    if not match or match[2].upper() not in _UNITS:
        contained = (name for name in MACHINES if re.search(rf"(?i)\b{re.escape(name)}\b", text))
        raise CourseError(
            f"{memory!r} is neither a memory size, such as 24GB or 16000MiB, nor a known card; "
            f"{suggest(next(contained, text), MACHINES)} "
            "For any other card give its memory and, for seconds, a similar card with --machine."
        )
    return int(float(match[1]) * _UNITS[match[2].upper()]), machine
