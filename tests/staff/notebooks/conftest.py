"""A small chapter in which every rule is kept: the skeleton that `course new chapter` writes, as if executed, with a figure."""

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_output

from course_staff.commands.new import chapter_skeleton


def picture(alt="A line that rises."):
    return new_output("display_data", data={"image/png": "AAAA"}, metadata={"image/png": {"alt": alt}})


@pytest.fixture
def chapter():
    """A notebook that breaks no rule; `save(chapter)` stores it."""
    notebook = chapter_skeleton(Path("07_topic.ipynb"))
    notebook.cells.insert(-1, new_code_cell("draw()", outputs=[picture()]))
    notebook.metadata.course.scale = "laptop"
    for count, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), start=1):
        cell.execution_count = count
    return notebook


TERM = '### <a id="quokka"></a>quokka\n\nA small animal.\n\n*First in [chapter 00](../notebooks/00_a.ipynb)*\n'


@pytest.fixture
def save(tmp_path):
    """Stores a notebook as a chapter, beside a glossary of one term."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "glossary.md").write_text(TERM)

    def write(notebook, name="07_topic.ipynb"):
        nbformat.write(notebook, folder / name)
        return folder / name

    return write
