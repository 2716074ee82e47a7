"""A demo as the notebook that Voilà shows: each cell's metadata says under `demo` what the cell is for."""

from dataclasses import asdict
from itertools import accumulate

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course_staff.demos.needs import cells_by_step
from course_staff.demos.script import Demo
from course_staff.notebooks.clean import KERNELSPEC

# `stage` is a name that chapters use.
_CALL_STAGE = "from course_staff.demos import stage as _demo_stage\n\n_demo_stage."


def presentation(demo: Demo) -> NotebookNode:
    """The notebook: each step is a Markdown cell with all that both windows say of it, then its code cells."""
    ends = list(accumulate(step.minutes for step in demo.steps))
    following = [f"Next: {step.title}, {step.minutes:g} min" for step in demo.steps[1:]] + ["This is the last step."]
    cells = []
    for number, (step, unseen, shown_cell) in enumerate(cells_by_step(demo), start=1):
        position = {"role": "step", "number": number, "until": ends[number - 1], "next": following[number - 1]}
        cells.append(new_markdown_cell(step.say, metadata={"demo": {**asdict(step), **position}}))
        sources = [("unseen", f"{_CALL_STAGE}live({demo.scale!r})")] if number == 1 else []
        sources += [("unseen", cell.source) for cell in unseen]
        sources += [("shown", shown_cell.source)] if shown_cell else []
        sources += [("click", f"{_CALL_STAGE}offer({step.click!r})")] if step.click else []
        cells += [new_code_cell(source, metadata={"demo": {"role": role}}) for role, source in sources]
    demo_info = {"title": demo.title, "minutes": demo.minutes, "steps": len(demo.steps)}
    metadata = {"demo": demo_info, "kernelspec": KERNELSPEC, "language_info": {"name": "python"}}
    return new_notebook(cells=cells, metadata=metadata)
