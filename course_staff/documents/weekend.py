"""How many lines the files of *A weekend's read* have."""

import re
from pathlib import Path

from course_staff.notebooks.files import edit_text

PAGE = "docs/weekend.md"
_ROW = re.compile(r"^(\| \[\w+\]\(\.\./(course_utils/[\w/]+\.py)\) .*\| )[\d,]+ \|$", re.MULTILINE)
_TOTAL = re.compile(r"[\d,]+(?= lines with the loop)")


def stamp_lines(root: Path) -> bool:
    """Write the numbers of lines into the page of the checkout at `root`, by file and in all; True where that changed it."""

    def count(text: str) -> str:
        lines = {path: len((root / path).read_text(encoding="utf-8").splitlines()) for _, path in _ROW.findall(text)}
        counted = _ROW.sub(lambda row: f"{row[1]}{lines[row[2]]} |", text)
        return _TOTAL.sub(f"{sum(lines.values()):,}", counted)

    return edit_text(root / PAGE, count)
