"""A demo as pages: the notebook that Voilà shows to the class, and the presenter's window."""

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from course_staff.demos.needs import plan
from course_staff.demos.script import Demo, Step

if TYPE_CHECKING:
    from nbformat import NotebookNode

TEMPLATES = Path(__file__).parent / "share" / "voila" / "templates" / "course"
_KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
_OURS = "from course_staff.demos import stage as _demo_stage\n\n_demo_stage."  # `stage` is a name that chapters use


def presentation(demo: Demo) -> "NotebookNode":
    """The notebook; what a cell is for stands in its metadata, under `demo`. Nothing in it is for the presenter alone."""
    from nbformat.v4 import new_notebook

    pages = (_page(demo.scale, number, *step) for number, step in enumerate(plan(demo), start=1))
    about = {"title": demo.title, "steps": len(demo.steps)}
    return new_notebook(
        cells=[cell for page in pages for cell in page],
        metadata={"demo": about, "kernelspec": _KERNELSPEC, "language_info": {"name": "python"}},
    )


def _page(scale: str, number: int, step: Step, unseen: list, shown: "NotebookNode | None") -> Iterator["NotebookNode"]:
    from nbformat.v4 import new_code_cell, new_markdown_cell

    about = {"role": "step", "number": number, "title": step.title, "held": step.covered, "then": step.then}
    yield new_markdown_cell(step.say, metadata={"demo": about})
    sources = [("unseen", f"{_OURS}live({scale!r})")] if number == 1 else []
    sources += [("unseen", cell.source) for cell in unseen]
    sources += [("shown", shown.source)] if shown else []
    sources += [("click", f"{_OURS}offer({step.click!r})")] if step.click else []
    for role, source in sources:
        yield new_code_cell(source, metadata={"demo": {"role": role}})


def presenter_page(demo: Demo) -> str:
    """The presenter's window as HTML: notes, answer, what to expect, the next step and the plan of minutes."""
    from jinja2 import Environment, FileSystemLoader
    from nbconvert.filters import markdown2html

    templates = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True)
    templates.filters["markdown"] = markdown2html
    until = accumulate(step.minutes for step in demo.steps)
    steps = [
        {"step": step, "until": end, "expect": expectations(step)} for step, end in zip(demo.steps, until, strict=True)
    ]
    return templates.get_template("presenter.html.j2").render(demo=demo, steps=steps)


def expectations(step: Step) -> list[str]:
    """What the presenter can hold the screen against, in words."""
    outputs = [f"The output says: {text}" for text in step.text]
    pictures = [f"In the description of the picture: {words}" for words in step.picture]
    return [*(number.says for number in step.numbers if number.says), *outputs, *pictures]
