"""A small chapter in which every rule is kept."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course_staff.notebooks.anatomy import SECTIONS
from course_staff.notebooks.setup_cell import setup_source

TITLE = """# A chapter

After it you can

- do one thing,
- do another,
- do a third.

**Time:** about 5 minutes"""

SUMMARY = """## Summary

1. One.
2. Two.
3. Three.
4. Four.
5. Five.

### Questions

Why?

### Sources

See [the idea](#The-idea-in-one-picture) and [a paper](https://example.org/paper)."""


def picture(alt="A line that rises."):
    return new_output("display_data", data={"image/png": "AAAA"}, metadata={"image/png": {"alt": alt}})


@pytest.fixture
def chapter(tmp_path):
    """A notebook that breaks no rule; `save(chapter)` stores it."""
    figure = new_code_cell("draw()", outputs=[picture()])
    setup = new_code_cell(
        setup_source(), metadata={"tags": ["setup"]}, outputs=[new_output("stream", text="laptop scale\n")]
    )
    cells = [new_markdown_cell(TITLE), setup]
    for name in SECTIONS[:-1]:
        cells += [new_markdown_cell(f"## {name}\n\nSome words."), new_code_cell("print(1)")]
    cells += [figure, new_markdown_cell(SUMMARY)]
    notebook = new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    notebook.metadata["course"] = {"scale": "laptop"}
    for count, cell in enumerate((cell for cell in cells if cell.cell_type == "code"), start=1):
        cell.execution_count = count
    return notebook


@pytest.fixture
def save(tmp_path):
    folder = tmp_path / "notebooks"
    folder.mkdir()

    def write(notebook, name="07_topic.ipynb"):
        nbformat.write(notebook, folder / name)
        return folder / name

    return write
