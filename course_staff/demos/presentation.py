"""A demo as the notebook that Voilà shows: per step the words, the cells it needs unseen, its own cell, and the clicks."""

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from course_staff.demos.needs import plan
from course_staff.demos.script import Demo, Step

if TYPE_CHECKING:
    from nbformat import NotebookNode

_KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
_OURS = "from course_staff.demos import stage as _demo_stage\n\n_demo_stage."  # `stage` is a name that chapters use


def presentation(demo: Demo) -> "NotebookNode":
    """The notebook; what a cell is for stands in its metadata, under `demo`."""
    from nbformat.v4 import new_notebook

    steps = plan(demo)
    until = accumulate(step.minutes for step in demo.steps)
    pages = (
        _page(demo.scale, at, end, *step) for at, (end, step) in enumerate(zip(until, steps, strict=True), start=1)
    )
    about = {"title": demo.title, "minutes": demo.minutes, "steps": len(demo.steps), "chapter": demo.name}
    return new_notebook(
        cells=[cell for page in pages for cell in page],
        metadata={"demo": about, "kernelspec": _KERNELSPEC, "language_info": {"name": "python"}},
    )


def _page(
    scale: str, number: int, until: float, step: Step, unseen: list, shown: "NotebookNode | None"
) -> Iterator["NotebookNode"]:
    from nbformat.v4 import new_code_cell, new_markdown_cell

    # What the presenter is to see besides the output's own text, which the page shows.
    expected = [number.says for number in step.numbers if number.says]
    expected += [f"In the picture: {words}" for words in step.picture]
    about = {"number": number, "title": step.title, "minutes": step.minutes, "until": until, "held": step.covered}
    about |= {"role": "step", "then": step.then, "expect": expected}
    yield new_markdown_cell(step.say, metadata={"demo": about})
    sources = [("unseen", f"{_OURS}live({scale!r})")] if number == 1 else []
    sources += [("unseen", cell.source) for cell in unseen]
    sources += [("shown", shown.source)] if shown else []
    sources += [("click", f"{_OURS}offer({step.click!r})")] if step.click else []
    for role, source in sources:
        yield new_code_cell(source, metadata={"demo": {"role": role}})


def write_presentation(demo: Demo, folder: Path) -> Path:
    """Store the notebook in `folder`, and return where; raises `CourseError` where nothing can be written there."""
    from course_staff.notebooks.files import write_notebook

    path = folder / f"{demo.name}.ipynb"
    write_notebook(presentation(demo), path)
    return path
