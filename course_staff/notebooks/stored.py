"""The ledger's rows as the repository stores them, in docs/ledger.json: those that the chapters show in their stored outputs."""

import html
import json
from dataclasses import asdict
from pathlib import Path

from course_staff.notebooks.clean import STORED_SCALE
from course_staff.notebooks.files import read_notebook
from course_staff.notebooks.traces import texts_of
from course_utils.desk.ledger import Ledger, Row
from course_utils.files import write_text

PLACE = "docs/ledger.json"


def stored_rows(root: Path) -> list[Row]:
    """The rows stored in the checkout at `root`, by chapter; none where there is no such file."""
    path = root / PLACE
    return [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))] if path.is_file() else []


def store_rows(root: Path, notebook: Path) -> None:
    """Store this machine's rows of the chapter at `notebook`, which was just executed, in place of those that were stored.

    A row that its outputs do not show is left over from an earlier run, and stays out.
    """
    rows = [row for row in Ledger.load().rows if row.chapter == notebook.stem and row.scale == STORED_SCALE]
    others = [row for row in stored_rows(root) if row.chapter != notebook.stem]
    text = shown_text(notebook)
    rows_to_store = sorted([*others, *(row for row in rows if shows(text, row))], key=lambda row: row.chapter)
    rows_as_json = json.dumps([asdict(row) for row in rows_to_store], indent=1, ensure_ascii=False)
    write_text(root / PLACE, f"{rows_as_json}\n")


def shown_text(notebook: Path) -> str:
    """All that the stored outputs of a notebook say."""
    outputs = (output for cell in read_notebook(notebook).cells for output in cell.get("outputs", []))
    return html.unescape("\n".join(text for output in outputs for text in texts_of(output)))


def shows(text: str, row: Row) -> bool:
    """Whether a chapter's outputs contain a row's names and its measured figure."""
    return all(phrase in text for phrase in (row.technique, row.quantity, row.in_words(row.measured)))
