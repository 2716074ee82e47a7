"""How many lines the files of *A weekend's read* have."""

import re
from pathlib import Path

from course_utils.files import replacing

PAGE = "docs/weekend.md"
_ROW = re.compile(r"^(\| \[\w+\]\(\.\./(course_utils/[\w/]+\.py)\) .*\| )[\d,]+ \|$", re.MULTILINE)
_TOTAL = re.compile(r"[\d,]+(?= lines with the loop)")


def stamp_lines(root: Path) -> bool:
    """Write the numbers of lines into the page of the checkout at `root`, by file and in all; True where that changed it."""
    before = (root / PAGE).read_text(encoding="utf-8")
    lines = {path: len((root / path).read_text(encoding="utf-8").splitlines()) for _, path in _ROW.findall(before)}
    after = _ROW.sub(lambda row: f"{row[1]}{lines[row[2]]} |", before)
    after = _TOTAL.sub(f"{sum(lines.values()):,}", after)
    if after != before:
        with replacing(root / PAGE) as draft:
            draft.write_text(after, encoding="utf-8")
    return after != before
