"""The line at a chapter's end that leads to the next one; which one is next follows from the files' names."""

import re
from pathlib import Path

from course_staff.notebooks.files import read_notebook, write_notebook
from course_utils.chapters.places import chapters_in

_LINE = re.compile(r"\s*^\*\*Next:\*\* [^\n]*\s*\Z", re.MULTILINE)


def with_successor(path: Path, text: str) -> str:
    """`text`, the last Markdown of the chapter at `path`, with a line that links to the next chapter, where there is one."""
    line = _line(path)
    return without_successor(text) + (f"\n\n{line}" if line else "")


def without_successor(text: str) -> str:
    """`text` without such a line."""
    return _LINE.sub("", text)


def stamp_successor(path: Path) -> bool:
    """Write today's line into the notebook at `path`; True where that changed the file."""
    notebook = read_notebook(path)
    written = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
    source = with_successor(path, written[-1].source) if written else ""
    changed = bool(written) and written[-1].source != source
    if changed:
        written[-1].source = source
        write_notebook(notebook, path)
    return changed


def _line(path: Path) -> str:
    after = next((other for other in chapters_in(path.parent) if other.name > path.name), None)
    return f"**Next:** [{after.stem.partition('_')[0]} {_title(after)}]({after.name})" if after else ""


def _title(path: Path) -> str:
    """What stands before the colon in the chapter's title, or else its file's name in words."""
    cells = read_notebook(path).cells
    title = re.match(r"# ([^:\n]+)", cells[0].source if cells else "")
    return title[1].strip() if title else path.stem.partition("_")[2].replace("_", " ")
