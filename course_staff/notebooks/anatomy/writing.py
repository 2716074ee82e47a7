"""Rules for what is written in the cells: how much, none of it left over, no link into nothing."""

from collections.abc import Iterator

from course_staff.notebooks import markdown
from course_staff.notebooks.anatomy.chapter import Chapter, Violation
from course_staff.notebooks.links import dead_links
from course_staff.notebooks.successor import without_successor

MOST_WORDS = 2_500
USUAL_LINES, MOST_LINES, LONG_SHARE = 10, 15, 0.1


def length_of_prose(chapter: Chapter) -> Iterator[Violation]:
    """A chapter is read in one sitting."""
    words = sum(markdown.count_words(without_successor(text)) for _, text in chapter.prose)
    if words >= MOST_WORDS:
        yield chapter.says(0, f"its prose has {words:,} words; bring it under {MOST_WORDS:,}.")


def length_of_code(chapter: Chapter) -> Iterator[Violation]:
    """A cell shows one thing: few lines, counted without blank ones and comments."""
    lengths = {number: _lines_of_code(cell["source"]) for number, cell in chapter.code}
    for number, lines in lengths.items():
        if lines > MOST_LINES:
            yield chapter.says(
                number, f"the cell has {lines} lines of code; split it so that none has more than {MOST_LINES}."
            )
    long = [number for number, lines in lengths.items() if USUAL_LINES < lines <= MOST_LINES]
    if len(long) > LONG_SHARE * len(lengths):
        share = f"{len(long)} of {len(lengths)} code cells have more than {USUAL_LINES} lines"
        yield chapter.says(long[0], f"{share}, this one first; shorten them until at most one in ten has.")


def _lines_of_code(source: str) -> int:
    lines = (line.strip() for line in source.splitlines())
    return sum(bool(line) and not line.startswith("#") for line in lines)


def no_empty_cells(chapter: Chapter) -> Iterator[Violation]:
    """An empty cell is left over, unless a tag says what it is for."""
    for number, cell in chapter.cells:
        if not cell["source"].strip() and not cell["metadata"].get("tags"):
            yield chapter.says(number, "the cell is empty; delete it, or tag it where it is meant.")


def links(chapter: Chapter) -> Iterator[Violation]:
    """Every link within the course leads somewhere, and every other is well formed."""
    attached = frozenset(name for _, cell in chapter.cells for name in cell.get("attachments", {}))
    for number, text in chapter.prose:
        for remark in dead_links(chapter.path, text, attached):
            yield chapter.says(number, remark)
