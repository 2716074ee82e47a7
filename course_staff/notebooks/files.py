"""Notebooks in and out of files, so that an unchanged notebook is an unchanged file."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from course_utils.errors import CourseError
from course_utils.files import require_writable, write_text

if TYPE_CHECKING:
    from nbformat import NotebookNode

_MAKE_ROOM = "make room for it, or set COURSE_HOME to a folder of your own"


def read_notebook(path: Path) -> "NotebookNode":
    """The notebook at `path`, in format 4, exactly as it is stored; raises `CourseError` if there is none to read."""
    import nbformat

    try:
        notebook = nbformat.v4.reads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CourseError(f"There is no notebook at {path}; check the name.") from None
    except (ValueError, AttributeError, KeyError, TypeError):
        notebook = {}
    if not isinstance(notebook, dict) or notebook.get("nbformat") != 4:
        raise CourseError(
            f"{path} is not a notebook of format 4; restore it from the repository, or save it from JupyterLab."
        )
    return notebook


def notebook_text(notebook: "NotebookNode") -> str:
    """The text a notebook is stored as: JSON as Jupyter writes it, with a newline at the end."""
    import nbformat

    return nbformat.writes(notebook).rstrip("\n") + "\n"


def write_notebook(notebook: "NotebookNode", path: Path) -> None:
    """Store `notebook` at `path`, all of it or nothing, in a folder that is created where it is missing.

    Raises `CourseError` if nothing can be written there.
    """
    text = notebook_text(notebook)
    with require_writable(path, _MAKE_ROOM):
        write_text(path, text)


def edit_notebook(path: Path, edit: Callable[["NotebookNode"], None]) -> bool:
    """Let `edit` change the notebook at `path`; True where that changed the file."""
    notebook = read_notebook(path)
    before = notebook_text(notebook)
    edit(notebook)
    is_changed = notebook_text(notebook) != before
    if is_changed:
        write_notebook(notebook, path)
    return is_changed


def edit_text(path: Path, edit: Callable[[str], str]) -> bool:
    """Let `edit` change the text at `path`; True where that changed it."""
    before = path.read_text(encoding="utf-8")
    after = edit(before)
    if after != before:
        write_text(path, after)
    return after != before


def make_folder(folder: Path) -> None:
    """Create `folder` where it is missing; raises `CourseError` if that cannot be done."""
    with require_writable(folder, _MAKE_ROOM):
        folder.mkdir(parents=True, exist_ok=True)
