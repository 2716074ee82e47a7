"""The ledger: for each technique the prediction, the measurement, and the difference."""

import re
from dataclasses import asdict, dataclass
from math import inf

import pandas as pd

from course_utils.errors import CourseError
from course_utils.settings import settings
from course_utils.store import Section
from course_utils.units import format_bytes, format_seconds

UNITS = {"bytes": format_bytes, "seconds": format_seconds}
_COLUMNS = ["technique", "quantity", "predicted", "measured", "not attributed", "error", "scale", "device"]


@dataclass(frozen=True)
class Row:
    """One prediction and its measurement in `unit`, one of `UNITS`; `quantity` is what was measured ("peak of a step")."""

    chapter: str
    technique: str
    quantity: str
    predicted: float
    measured: float
    scale: str
    device: str
    unit: str = "bytes"

    def __post_init__(self):
        if self.unit not in tuple(UNITS):  # a list has no hash
            raise ValueError("the unit of a row is unknown")
        kinds = int if self.unit == "bytes" else (int, float)
        figures = self.predicted, self.measured
        if not all(isinstance(figure, kinds) and 0 < figure < inf for figure in figures):
            raise ValueError("the figures of a row are positive numbers, whole ones for bytes")

    @property
    def not_attributed(self) -> float:
        """Measured less predicted: what the prediction does not explain; negative when it promised too much."""
        return self.measured - self.predicted

    @property
    def error(self) -> float:
        """The share of the measurement that was not attributed."""
        return self.not_attributed / self.measured

    def in_words(self, value: float) -> str:
        """`value` with a readable unit: `'502 MiB'`, `'42.0 ms'`."""
        return UNITS[self.unit](value)

    @property
    def key(self) -> tuple[str, ...]:
        """Two rows with equal keys say the same thing; the later one counts."""
        return self.chapter, self.technique, self.quantity, self.unit, self.scale, self.device


@dataclass(frozen=True, repr=False)
class Ledger:
    """Rows, shown as a table."""

    rows: tuple[Row, ...]

    @classmethod
    def load(cls) -> "Ledger":
        """All rows recorded under the settings' home, by chapter."""
        return cls(tuple(row for rows in ROWS.load().values() for row in rows))

    @classmethod
    def of_this_process(cls) -> "Ledger":
        """The rows that this process recorded."""
        return cls(tuple(sorted(ROWS.in_memory.values(), key=lambda row: row.chapter)))

    def table(self) -> pd.DataFrame:
        """The rows as a data frame of text: figures with their units, shares in percent."""
        frame = pd.DataFrame(map(asdict, self.rows), columns=[*Row.__dataclass_fields__])
        for column in ("predicted", "measured", "not_attributed"):
            frame[column.replace("_", " ")] = [row.in_words(getattr(row, column)) for row in self.rows]
        frame["error"] = [f"{row.error:+.1%}" for row in self.rows]
        return frame.set_index("chapter")[_COLUMNS]

    def __str__(self):
        if not self.rows:
            return "The ledger is empty; run a chapter first, for example with `make run`."
        return self.table().reset_index().to_string(index=False)

    __repr__ = __str__

    def _repr_html_(self):
        return self.table().to_html() if self.rows else str(self)


ROWS = Section("ledger", lambda rows: [Row(**row) for row in rows])
"""The rows: stored by their chapter's name; those of this process, in `in_memory`, by their keys."""


def record(
    chapter: str, technique: str, quantity: str, *, predicted: float, measured: float, unit: str = "bytes"
) -> Ledger:
    """Write one row, replacing an older one of the same key, and return this chapter's rows at this scale and device.

    `chapter` is the notebook's name, `unit` one of `UNITS`. Raises `CourseError` when a figure is no positive number, and
    for another unit; where the home cannot be written the row is shown, and a line says that it will not be remembered.
    """
    if unit not in tuple(UNITS):  # a list has no hash
        raise CourseError(f"A ledger row cannot be in {unit!r}; give it in {' or in '.join(UNITS)}.")
    if not isinstance(chapter, str) or not re.fullmatch(r"[^/\\]+", chapter):
        raise CourseError(f"{chapter!r} is not a chapter's name; use the notebook's, such as '03_adamw'.")
    run_settings = settings()
    try:
        figures = [round(float(value)) if unit == "bytes" else float(value) for value in (predicted, measured)]
        new = Row(chapter, technique, quantity, *figures, run_settings.scale.name, run_settings.device.type, unit)
    except (TypeError, ValueError, OverflowError):  # no number; not a number, or not above 0; infinite
        message = f"A ledger row needs two positive numbers of {unit}, not {predicted} and {measured}."
        raise CourseError(message) from None
    ROWS.in_memory[new.key] = new
    rows = ROWS.update(chapter, lambda rows: [row for row in rows or () if row.key != new.key] + [new])
    return Ledger(tuple(row for row in rows if (row.scale, row.device) == (new.scale, new.device)))
