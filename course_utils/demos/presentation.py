"""A demo as the notebook that Voilà shows: per step the words, the cells it needs unseen, its own cell, and the clicks."""

from pathlib import Path
from typing import TYPE_CHECKING

from course_utils.demos.needs import plan
from course_utils.demos.script import Demo, Step

if TYPE_CHECKING:
    from nbformat import NotebookNode

_KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
_OPENING = "from course_utils.demos import stage\n\nstage.live()"


def presentation(demo: Demo) -> "NotebookNode":
    """The notebook; what a cell is for stands in its metadata, under `demo`."""
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

    from course_utils.chapters.files import read_notebook

    cells = []

    def add(make, source: str, role: str, **more) -> None:
        cells.append(make(source, metadata={"demo": {"role": role, **more}}))

    planned = 0.0
    for number, (step, unseen, cell) in enumerate(plan(demo, read_notebook(demo.notebook)), start=1):
        planned += step.minutes
        about = {"number": number, "title": step.title, "minutes": step.minutes, "until": planned, "held": step.covered}
        add(new_markdown_cell, step.say, "step", **about, then=step.then, expect=expectations(step))
        if number == 1:
            add(new_code_cell, _OPENING, "unseen")
        for needed in unseen:
            add(new_code_cell, needed.source, "unseen")
        if cell is not None:
            add(new_code_cell, cell.source, "shown")
        if step.click:
            add(new_code_cell, f"stage.offer({step.click!r})", "click")
    about = {"title": demo.title, "minutes": demo.minutes, "steps": len(demo.steps), "chapter": demo.name}
    return new_notebook(
        cells=cells, metadata={"demo": about, "kernelspec": _KERNELSPEC, "language_info": {"name": "python"}}
    )


def expectations(step: Step) -> list[str]:
    """What the presenter is to see, a line each."""
    numbers = [f"{number.of} = {_number(number.value)}" for number in step.numbers]
    return [*step.text, *numbers, *(f"In the picture: {words}" for words in step.picture)]


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else f"{value}"


def write_presentation(demo: Demo, folder: Path) -> Path:
    """Store the notebook in `folder`, and return where; raises `CourseError` where nothing can be written there."""
    from course_utils.chapters.files import write_notebook

    path = folder / f"{demo.name}.ipynb"
    write_notebook(presentation(demo), path)
    return path
