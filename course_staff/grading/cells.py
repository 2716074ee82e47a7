"""Tables that a spreadsheet opens and saves: written so that no cell is taken for a formula, and read as people leave them."""

import csv
import io
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from course_utils.errors import CourseError
from course_utils.grading.pages import printable

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class NamedRows:
    """Students by the names that stand in cells, where a name like a formula has an apostrophe before it."""

    def __init__(self, file: str, students: Sequence[str]):
        cells = [(cell, name) for name in students for cell in {name, no_formula(name)}]
        count = Counter(cell for cell, _ in cells)
        self._file, self._names = file, {cell: name for cell, name in cells if count[cell] == 1}

    def student(self, place: int, cell: str) -> str:
        """The student of this row; raises `CourseError` where there is none."""
        if cell not in self._names:
            raise CourseError(
                f"{self._file}, row {place}: there is no student {cell!r}; write the name as in results.csv, or take the row out."
            )
        return self._names[cell]


def columns_of(path: Path) -> tuple[list[str], str]:
    """The names in the first row of a table that `read_rows` takes, in small letters, and what cuts its cells."""
    return _first_row(path.read_text(encoding="utf-8-sig"))


def _first_row(text: str) -> tuple[list[str], str]:
    head = text.partition("\n")[0]
    delimiter = max(",;\t", key=head.count)
    return [name.strip().lower() for name in next(csv.reader([head], delimiter=delimiter), [])], delimiter


def read_rows(path: Path, needed: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """(number as a spreadsheet counts, column to text) of each row that names a student; none where no file is.

    Cells may be cut by commas, semicolons or tabs. Raises `CourseError` for a file that is no such table.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return
    except OSError as error:
        raise CourseError(f"{path} cannot be read ({error.strerror}); check who may read it.") from None
    except UnicodeDecodeError:
        raise CourseError(f"{path} is not in UTF-8; save it as “CSV UTF-8”.") from None
    try:
        columns, delimiter = _first_row(text)
        rows = list(csv.reader(io.StringIO(text), delimiter=delimiter))
    except csv.Error as error:
        raise CourseError(f"{path} is no table ({error}); save it as “CSV UTF-8”.") from None
    if missing := [name for name in needed if name not in columns]:
        raise CourseError(f"{path} lacks the column {missing[0]!r} in its first row; write it there.")
    for place, row in enumerate(rows[1:], start=2):
        named = dict(zip(columns, row, strict=False))
        if any(text.strip() for text in named.values()):
            yield place, {**dict.fromkeys(columns, ""), **named}


def number_in(text: str) -> float:
    """The number, with a comma or a point before its decimals; NaN where it is none."""
    try:
        return float(text.strip().replace(",", "."))
    except ValueError:
        return math.nan


def csv_text(rows: Sequence[Sequence], delimiter: str = ",") -> str:
    """CSV of which no cell is taken for a formula; texts stand in quotes, since a name may hold `;`, which cuts cells too."""
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writerows([no_formula(value) for value in row] for row in rows)
    return out.getvalue()


def no_formula(value):
    """The value of a cell; a text that begins like a formula, which a spreadsheet would run, behind an apostrophe."""
    if isinstance(value, str):
        value = printable(value)
        return f"'{value}" if value.startswith(_FORMULA) else value
    return value
