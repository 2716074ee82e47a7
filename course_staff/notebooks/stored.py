"""What the stored outputs of the chapters say: the rows of the ledger, as a reader of the notebooks sees them."""

import html
import re
from collections.abc import Iterator
from pathlib import Path

from course_staff.notebooks.clean import STORED_SCALE
from course_staff.notebooks.files import read_notebook
from course_utils.chapters.places import chapters_in
from course_utils.ledger import Row
from course_utils.units import parse_bytes

_TABLE = re.compile(r"<table\b.*?</table>", re.DOTALL)
_ROW = re.compile(r"<tr\b.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", re.DOTALL)
_COLUMNS = ["technique", "quantity", "predicted", "measured", "not attributed", "error", "scale", "device"]


def stored_rows(folder: Path) -> list[Row]:
    """The rows in bytes of every ledger stored in the notebooks of `folder`, in their order, each key once.

    Figures have the three digits that the table shows; their difference has all of its own.
    """
    rows = (row for path in chapters_in(folder) for row in _rows_of(path))
    return list({row.key: row for row in rows}.values())


def _rows_of(path: Path) -> Iterator[Row]:
    for cell in read_notebook(path).cells:
        for output in cell.get("outputs", []):
            for table in _TABLE.findall(output.get("data", {}).get("text/html", "")):
                yield from _rows_in(table)


def _rows_in(table: str) -> Iterator[Row]:
    head, *body = ([html.unescape(cell).strip() for cell in _CELL.findall(row)] for row in _ROW.findall(table))
    if head[1:] != _COLUMNS:
        return
    for chapter, *values in body:
        entry = dict(zip(_COLUMNS, values, strict=True))
        if chapter != "chapter" and entry["scale"] == STORED_SCALE and entry["measured"].endswith("B"):
            yield _row(chapter, entry)


def _row(chapter: str, entry: dict[str, str]) -> Row:
    measured = round(parse_bytes(entry["measured"]))
    predicted = measured - round(parse_bytes(entry["not attributed"]))
    figures = {"predicted": predicted, "measured": measured}
    return Row(chapter, entry["technique"], entry["quantity"], **figures, scale=entry["scale"], device=entry["device"])
