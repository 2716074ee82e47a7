"""The capstone's choices: for each scenario the recipe that was chosen, with its budget, its prediction and its measurement.

Where nobody reads along nothing is kept or looked up.
"""

import json
import re
from dataclasses import asdict, dataclass
from math import isfinite
from typing import NamedTuple

from course_utils.errors import CourseError
from course_utils.settings import settings
from course_utils.store import Section
from course_utils.units import format_bytes, format_seconds, three_digits


class BudgetLine(NamedTuple):
    """One number of a choice: what it is of, its budget, the prediction, and the measurement or None.

    `unit` is `bytes`, `seconds`, `bytes sent`, or any other word, such as `%`, that stands behind the number.
    """

    quantity: str
    budget: float
    predicted: float
    measured: float | None
    unit: str

    def in_words(self, figure: float) -> str:
        """`figure` in this unit, for people: `'502 MiB'`, `'42.0 ms'`, `'91.2 %'`."""
        if self.unit.startswith("bytes"):
            return format_bytes(figure)
        if self.unit == "seconds":
            return format_seconds(figure)
        number = f"{figure:,.0f}" if figure == int(figure) else three_digits(figure)
        return f"{number} {self.unit}".strip()


@dataclass(frozen=True)
class Choice:
    """What was chosen for `scenario`: the fields of a `memory.Recipe`, the layout over devices where there are several, and
    `rows`, a `BudgetLine` or its five values each.

    Raises `ValueError` where the rows are none of that, and where a number of theirs is not finite.
    """

    scenario: str
    recipe: dict
    layout: dict | None
    rows: tuple[BudgetLine, ...]

    def __post_init__(self):
        try:
            rows = tuple(BudgetLine(*row) for row in self.rows)
            is_named = re.fullmatch(r"\w[\w-]*", self.scenario)
            right = is_named and isinstance(self.recipe, dict) and isinstance(self.layout, dict | None)
            right = right and all(map(_is_sound, rows))
        except (TypeError, OverflowError):  # no rows, and a whole number beyond every float
            right = False
        if not right:
            raise ValueError("a choice has a scenario, a recipe, and rows of finite numbers with a unit")
        object.__setattr__(self, "rows", rows)


def _is_sound(row: BudgetLine) -> bool:
    numbers = [row.budget, row.predicted, *([] if row.measured is None else [row.measured])]
    finite = all(isinstance(number, (int, float)) and isfinite(number) for number in numbers)
    return finite and isinstance(row.quantity, str) and isinstance(row.unit, str)


CHOICES = Section("capstone", lambda value: Choice(**value))  # by scenario


def keep(choice: Choice) -> None:
    """Keep the choice in place of an earlier one for the same scenario.

    Raises `CourseError` where the recipe or the layout holds something that a file of JSON cannot.
    """
    try:
        fields = json.loads(json.dumps(asdict(choice), allow_nan=False))
    except (TypeError, ValueError):
        problem = f"The choice for {choice.scenario} cannot be kept"
        raise CourseError(f"{problem}; give an optimizer and the like by name, not as a function.") from None
    CHOICES.in_memory[choice.scenario] = Choice(**fields)
    if settings().attended:
        CHOICES.put(choice.scenario, fields)


def load() -> tuple[Choice, ...]:
    """The choices of this reader, ordered by scenario; where nobody reads along, those of this process.

    What is damaged is put aside, and a line says so.
    """
    choices = {**(CHOICES.load() if settings().attended else {}), **CHOICES.in_memory}
    return tuple(choices[name] for name in sorted(choices))
