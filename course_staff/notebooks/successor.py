"""The line at a chapter's end that leads to the next one; which one is next follows from the files' names."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from course_staff.notebooks.files import edit_notebook, read_notebook
from course_utils.files import chapters_in

if TYPE_CHECKING:
    from nbformat import NotebookNode

_LINE = re.compile(r"\s*^\*\*Next:\*\* [^\n]*\s*\Z", re.MULTILINE)


def with_successor(path: Path, text: str) -> str:
    """`text`, the last Markdown of the chapter at `path`, with a line that links to the next chapter, where there is one.

    The link's text is the part of that chapter's title before the colon, or else its file's name in words.
    """
    after = next((other for other in chapters_in(path.parent) if other.name > path.name), None)
    if after is None:
        return without_successor(text)
    cells = read_notebook(after).cells
    title = re.match(r"# ([^:\n]+)", cells[0].source if cells else "")
    name = title[1].strip() if title else after.stem.partition("_")[2].replace("_", " ")
    return f"{without_successor(text)}\n\n**Next:** [{after.stem.partition('_')[0]} {name}]({after.name})"


def without_successor(text: str) -> str:
    """`text` without such a line."""
    return _LINE.sub("", text)


def stamp_successor(path: Path) -> bool:
    """Write today's line into the notebook at `path`; True where that changed the file."""

    def edit(notebook: "NotebookNode") -> None:
        for cell in [cell for cell in notebook.cells if cell.cell_type == "markdown"][-1:]:
            cell.source = with_successor(path, cell.source)

    return edit_notebook(path, edit)
