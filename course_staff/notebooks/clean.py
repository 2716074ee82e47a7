"""An executed notebook made fit to be stored: nothing in it changes from one run to the next but results."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from course_staff.notebooks.traces import machine_trace, texts_of
from course_utils.errors import CourseError
from course_utils.grading.board import NOTHING_PASSED

if TYPE_CHECKING:
    from nbformat import NotebookNode

STORED_SCALE = "laptop"
"""The scale that stored outputs come from, and that the prose speaks of."""

FRESH_TAG = "fresh-learner"
"""The tag of a cell that shows the reader's own progress: what is stored of it is that of somebody who begins."""

_BUSY = "Other programs use"  # so begins the warning of `hardware.calibrate()`
_BAR = re.compile(r"\d+%\||\bit/s\]|\bs/it\]")
_CONSTRUCTOR = re.compile(r"\w+\(")
_WIDGET = "application/vnd.jupyter.widget-view+json"
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def clean(notebook: "NotebookNode", name: str, scale: str) -> "NotebookNode":
    """`notebook`, changed in place, as it is to be stored after a run at `scale`.

    Progress bars, widgets (none of which works in a stored notebook), execution times and the kernel's version go; a text given
    with a widget stays. Raises `CourseError` if an output holds something of this machine: that is the author's to mend, as
    cutting it out would store what no reader gets to see.
    """
    from nbformat import from_dict

    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    for count, cell in enumerate(code, start=1):
        cell.execution_count = count
        cell.outputs = [output for output in cell.outputs if not _is_moving(output)]
        for output in cell.outputs:
            output.get("data", {}).pop(_WIDGET, None)  # its model's name is another in every run
            if output.output_type == "execute_result":
                output.execution_count = count
    for number, cell in enumerate(notebook.cells, start=1):
        cell.metadata.pop("execution", None)
        for remark in leaks(cell):
            raise CourseError(f"{name}, cell {number}: {remark}")
    course = {**notebook.metadata.get("course", {}), "scale": scale}
    notebook.metadata = from_dict({"course": course, "kernelspec": KERNELSPEC, "language_info": {"name": "python"}})
    return notebook


def leaks(cell: "NotebookNode") -> Iterator[str]:
    """A sentence for each output of `cell` that tells of this machine, and for one that tells of its user's progress."""
    outputs = [list(texts_of(output)) for output in cell.get("outputs", [])]
    for texts in outputs:
        if trace := next(filter(None, map(machine_trace, texts)), None):
            yield f"the output contains {trace!r}, which belongs to this machine; do not print it."
        if any(_BUSY in text for text in texts):
            yield "other programs kept this machine busy; run it again when they are done, as its seconds mean nothing."
    beginner = any(text.startswith(NOTHING_PASSED) for texts in outputs for text in texts)
    if FRESH_TAG in cell.metadata.get("tags", []) and not beginner:
        yield "it shows your own progress; run `course run --save` with COURSE_HOME set to an empty folder."


def _is_moving(output: "NotebookNode") -> bool:
    """Whether an output says nothing once it stands still: a progress bar, a script for what is live on a page, or a widget
    described by its constructor alone."""
    if output.get("metadata", {}).get("course") == "live":
        return True
    if output.output_type == "stream":
        lines = [line for line in output.text.replace("\r", "\n").splitlines() if line.strip()]
        return output.name == "stderr" and all(_BAR.search(line) for line in lines)
    description = "".join(output.get("data", {}).get("text/plain", ""))
    return _WIDGET in output.get("data", {}) and bool(_BAR.search(description) or _CONSTRUCTOR.match(description))
