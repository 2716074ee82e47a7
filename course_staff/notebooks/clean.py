"""An executed notebook made fit to be stored: nothing in it changes from one run to the next but results."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from course_staff.notebooks.traces import machine_trace, texts_of
from course_utils.errors import CourseError
from course_utils.grading.board import FRESH

if TYPE_CHECKING:
    from nbformat import NotebookNode

STORED_SCALE = "laptop"
"""The scale that stored outputs come from, and that the prose speaks of."""

FRESH_TAG = "fresh-learner"
"""The tag of a cell that shows the reader's own progress: what is stored of it is that of somebody who begins."""

_BAR = re.compile(r"\d+%\||\bit/s\]|\bs/it\]")
_CONSTRUCTOR = re.compile(r"\w+\(")
_WIDGET = "application/vnd.jupyter.widget-view+json"
_KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
_LANGUAGE = {"name": "python"}


def clean(notebook: "NotebookNode", name: str, scale: str) -> "NotebookNode":
    """`notebook`, changed in place, as it is to be stored after a run at `scale`.

    Progress bars, widgets (none of which works in a stored notebook), execution times and the kernel's version go; a text given
    with a widget stays. Raises `CourseError` where an output holds something of this machine: that is the author's to mend, as
    cutting it out would store what no reader gets to see.
    """
    for count, cell in enumerate(_code_cells(notebook), start=1):
        cell.execution_count = count
        cell.outputs = [_still(output, count) for output in cell.outputs if not _is_moving(output)]
    for number, cell in enumerate(notebook.cells, start=1):
        cell.metadata.pop("execution", None)
        _check_traces(cell, f"{name}, cell {number}")
        if shows_progress(cell):
            raise CourseError(
                f"{name}, cell {number}: it shows your own progress; save with COURSE_HOME set to an empty folder."
            )
    notebook.metadata = _metadata(notebook, scale)
    return notebook


def shows_progress(cell: "NotebookNode") -> bool:
    """Whether the cell is to show how a learner begins, and shows something else."""
    fresh = FRESH_TAG in cell.metadata.get("tags", [])
    return fresh and not any(text.startswith(FRESH) for output in cell.get("outputs", []) for text in texts_of(output))


def _code_cells(notebook: "NotebookNode") -> Iterator["NotebookNode"]:
    return (cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip())


def _is_moving(output: "NotebookNode") -> bool:
    """Whether an output says nothing once it stands still: a progress bar, a script for what is live on a page, or a widget
    described by its constructor alone."""
    if output.get("metadata", {}).get("course") == "live":
        return True
    if output.output_type == "stream":
        lines = [line for line in output.text.replace("\r", "\n").splitlines() if line.strip()]
        return output.name == "stderr" and all(_BAR.search(line) for line in lines)
    described = "".join(output.get("data", {}).get("text/plain", ""))
    return _WIDGET in output.get("data", {}) and bool(_BAR.search(described) or _CONSTRUCTOR.match(described))


def _still(output: "NotebookNode", count: int) -> "NotebookNode":
    """The output without its widget, whose model's name would be another in every run."""
    output.get("data", {}).pop(_WIDGET, None)
    if output.output_type == "execute_result":
        output.execution_count = count
    return output


def _check_traces(cell: "NotebookNode", place: str) -> None:
    for output in cell.get("outputs", []):
        for trace in filter(None, map(machine_trace, texts_of(output))):
            raise CourseError(
                f"{place}: the output contains {trace!r}, which belongs to this machine; do not print it."
            )


def _metadata(notebook: "NotebookNode", scale: str) -> dict:
    """Only what the course keeps; `widgets`, the state of widgets nobody can click in a stored notebook, is not among it."""
    from nbformat import from_dict

    course = {**notebook.metadata.get("course", {}), "scale": scale}
    return from_dict({"course": course, "kernelspec": _KERNELSPEC, "language_info": _LANGUAGE})
