"""Tables for spreadsheets: written so that no cell is taken for a formula, and read however people saved them."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from course_utils.errors import CourseError
from course_utils.grading.rendering import printable

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def read_rows(path: Path, required: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """(number as a spreadsheet counts, column to text) of each row that is not empty; nothing if there is no file.

    Commas, semicolons or tabs may separate cells. Raises `CourseError` if the file cannot be read as such a table.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return
    except OSError as error:
        raise CourseError(f"{path} cannot be read ({error.strerror}); check its permissions.") from None
    except UnicodeDecodeError:
        raise CourseError(f"{path} is not in UTF-8; save it as “CSV UTF-8”.") from None
    try:
        rows, _ = parse_table(text, ",;\t")
    except csv.Error as error:
        raise CourseError(f"{path} is not a table ({error}); save it as “CSV UTF-8”.") from None
    columns = [name.strip().lower() for name in rows[0]] if rows else []
    if missing := [name for name in required if name not in columns]:
        raise CourseError(f"{path} has no column {missing[0]!r} in its first row; add it.")
    for number, row in enumerate(rows[1:], start=2):
        cells = dict(zip(columns, row, strict=False))
        if any(text.strip() for text in cells.values()):
            yield number, {**dict.fromkeys(columns, ""), **cells}


def parse_table(text: str, delimiters: str) -> tuple[list[list[str]], str]:
    """The rows of a CSV text, and which of the `delimiters` its first line has most of; raises `csv.Error`."""
    delimiter = max(delimiters, key=text.partition("\n")[0].count)
    return list(csv.reader(io.StringIO(text), delimiter=delimiter)), delimiter


def number_in(text: str) -> float:
    """The number in a text, with a comma or a point before its decimals; NaN if there is none."""
    try:
        return float(text.strip().replace(",", "."))
    except ValueError:
        return math.nan


def csv_text(rows: Sequence[Sequence], delimiter: str = ",") -> str:
    """CSV in which no cell is taken for a formula; texts are quoted, since a name may contain `;`, which separates cells too."""
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writerows([no_formula(value) for value in row] for row in rows)
    return out.getvalue()


def no_formula(value: object) -> object:
    """The value for a cell; a text that a spreadsheet would run as a formula gets an apostrophe before it."""
    if isinstance(value, str):
        value = printable(value)
        return f"'{value}" if value.startswith(_FORMULA) else value
    return value
