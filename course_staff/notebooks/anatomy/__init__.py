"""What makes a notebook a chapter of this course, rule by rule.

A rule takes a `Chapter` and yields a `Violation` for everything that breaks it. `violations_in` applies them all.
"""

from collections.abc import Iterator
from pathlib import Path

from course_staff.notebooks.anatomy import outputs, structure, writing
from course_staff.notebooks.anatomy.chapter import Chapter, Rule, Violation
from course_staff.notebooks.anatomy.structure import SECTIONS
from course_staff.notebooks.files import read_notebook

__all__ = ["RULES", "SECTIONS", "Chapter", "Violation", "violations_in"]

RULES: tuple[Rule, ...] = (
    structure.title_and_aims,
    structure.set_up,
    structure.sections,
    structure.summary,
    structure.successor,
    writing.length_of_prose,
    writing.length_of_code,
    writing.no_empty_cells,
    outputs.executed_in_order,
    outputs.kernel,
    outputs.clean_outputs,
    outputs.alternative_text,
    writing.links,
)


def violations_in(path: Path, address: str | None = None) -> list[Violation]:
    """Everything in the notebook at `path` that breaks a rule; raises `CourseError` where it is not a notebook."""
    chapter = Chapter(Path(path), read_notebook(path), address)
    broken = list(_is_well_formed(chapter))
    return broken or [violation for rule in RULES for violation in rule(chapter)]


def _is_well_formed(chapter: Chapter) -> Iterator[Violation]:
    """The notebook format itself, cell ids included; without it no other rule can be applied."""
    import nbformat

    ids = [cell.get("id") for cell in chapter.notebook["cells"]]
    if None in ids or chapter.notebook["nbformat_minor"] < 5:
        yield chapter.says(0, "it has cells without an id; save it as notebook format 4.5 or later.")
        return
    for number, (cell_id, earlier) in enumerate(zip(ids, _prefixes(ids), strict=True), start=1):
        if cell_id in earlier:
            yield chapter.says(
                number, f"its id {cell_id!r} is that of cell {earlier.index(cell_id) + 1} too; give it one of its own."
            )
            return
    try:
        nbformat.validate(chapter.notebook)
    except nbformat.ValidationError as error:
        yield chapter.says(
            0, f"it is not a valid notebook ({str(error).splitlines()[0]}); save it again from JupyterLab."
        )


def _prefixes(items: list) -> list[list]:
    return [items[:count] for count in range(len(items))]
