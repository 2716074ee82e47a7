"""Notebooks in and out of files, so that an unchanged notebook is an unchanged file."""

from pathlib import Path
from typing import TYPE_CHECKING

from course_utils.errors import CourseError

if TYPE_CHECKING:
    from nbformat import NotebookNode


def read_notebook(path: Path) -> "NotebookNode":
    """The notebook at `path`, in format 4, exactly as it is stored; raises `CourseError` where there is none to read."""
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
    """Store `notebook` at `path`, all of it or nothing, in a folder that is created where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".draft")
    try:
        draft.write_text(notebook_text(notebook), encoding="utf-8", newline="\n")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
