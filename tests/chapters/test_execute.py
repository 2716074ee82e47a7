"""Chapters executed in real kernels: what works, and what is said when it does not."""

import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course_utils.chapters.clean import clean
from course_utils.chapters.execute import execute_chapter, run_chapters
from course_utils.chapters.files import notebook_text, read_notebook, write_notebook
from course_utils.errors import CourseError


def write(folder, *sources, name="01_a.ipynb"):
    cells = [new_markdown_cell("# A"), *map(new_code_cell, sources)]
    nbformat.write(
        new_notebook(cells=cells, metadata={"kernelspec": {"name": "elsewhere", "display_name": "X"}}), folder / name
    )
    return folder / name


def printed(notebook):
    return [output.text for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def test_cells_run_in_this_python_in_the_notebooks_folder_at_the_scale_asked_for(tmp_path):
    (tmp_path / "beside.txt").write_text("here")
    show = "import os, sys; print(open('beside.txt').read(), sys.executable, os.environ['COURSE_SCALE'])"
    done = execute_chapter(write(tmp_path, show), scale="laptop")
    import sys

    assert printed(done) == [f"here {sys.executable} laptop\n"]


def test_a_failing_cell_is_named_and_ends_the_run(tmp_path):
    good, bad = write(tmp_path, "1"), write(tmp_path, "x = 1", "1 / 0", name="02_b.ipynb")
    never = write(tmp_path, "1", name="03_c.ipynb")
    copies = []
    with pytest.raises(CourseError, match=r"02_b.ipynb, cell 3, failed with ZeroDivisionError: division by zero"):
        copies.extend(run_chapters([good, bad, never], tmp_path / "runs"))
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["01_a.ipynb"]


def test_a_dead_kernel_and_its_cell_are_named(tmp_path):
    with pytest.raises(CourseError, match=r"01_a.ipynb: the kernel died in cell 3"):
        execute_chapter(write(tmp_path, "x = 1", "import os; os._exit(1)"))


def test_a_cell_that_takes_too_long_is_named(tmp_path):
    with pytest.raises(CourseError, match=r"01_a.ipynb, cell 2, took more than 2 s"):
        execute_chapter(write(tmp_path, "import time; time.sleep(100)"), timeout=2)


def test_two_runs_are_stored_as_the_same_bytes(tmp_path):
    sources = [
        "from tqdm.auto import tqdm\nfor _ in tqdm(range(3)): pass",
        "from ipywidgets import IntSlider\nIntSlider()",
        "import sys; from tqdm import tqdm\nfor _ in tqdm(range(3)): pass\nprint('done')",
        "40 + 2",
    ]
    path = write(tmp_path, *sources)
    texts = []
    for _ in range(2):
        write_notebook(clean(execute_chapter(path), path.name, "laptop"), path)
        texts.append(path.read_text(encoding="utf-8"))
    assert texts[0] == texts[1]
    stored = read_notebook(path)
    assert [[output.output_type for output in cell.outputs] for cell in stored.cells[1:]] == [
        [],
        [],
        ["stream"],
        ["execute_result"],
    ]
    assert [cell.execution_count for cell in stored.cells[1:]] == [1, 2, 3, 4]
    assert stored.metadata == {
        "course": {"scale": "laptop"},
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert texts[0].endswith("}\n")


def notebook_showing(*outputs, **metadata):
    cell = new_code_cell("x", execution_count=7, outputs=list(outputs), metadata={"execution": {"iopub": "now"}})
    return new_notebook(cells=[cell], metadata=metadata)


def test_a_text_given_with_a_widget_stays_and_its_model_goes():
    widget = {
        "application/vnd.jupyter.widget-view+json": {"model_id": "1"},
        "text/plain": "Run this notebook to move the slider.",
    }
    cleaned = clean(notebook_showing(new_output("display_data", data=widget)), "a", "laptop")
    assert cleaned.cells[0].outputs[0].data == {"text/plain": "Run this notebook to move the slider."}
    assert cleaned.cells[0].metadata == {}


def test_what_the_notebook_says_of_itself_stays():
    notebook = notebook_showing(course={"waived": {"Play": "why"}, "scale": "smoke"}, widgets={"state": {}})
    assert clean(notebook, "a", "laptop").metadata.course == {"waived": {"Play": "why"}, "scale": "laptop"}


def test_a_warning_on_stderr_is_no_progress_bar_and_stays_to_be_found():
    stream = new_output("stream", name="stderr", text="50%|#  | 1/2\nUserWarning: look")
    assert len(clean(notebook_showing(stream), "a", "laptop").cells[0].outputs) == 1


@pytest.mark.parametrize("text", ["saved to /home/ada/x", r"C:\Users\ada", "/tmp/tmpx1"])
def test_a_path_of_this_machine_is_refused_not_edited(text):
    with pytest.raises(CourseError, match=r"a.ipynb, cell 1: the output contains .*(ada|tmp)"):
        clean(notebook_showing(new_output("stream", text=text)), "a.ipynb", "laptop")


def test_a_file_that_is_no_notebook_is_named(tmp_path):
    (tmp_path / "x.ipynb").write_text("{}")
    for path, words in ((tmp_path / "x.ipynb", "is not a notebook"), (tmp_path / "y.ipynb", "There is no notebook at")):
        with pytest.raises(CourseError, match=words):
            read_notebook(path)


def test_writing_leaves_nothing_beside_the_notebook_and_keeps_the_old_one_on_failure(tmp_path, monkeypatch):
    path = write(tmp_path, "1")
    before = path.read_bytes()
    notebook = read_notebook(path)
    assert notebook_text(notebook) == notebook_text(read_notebook(path))
    monkeypatch.setattr("course_utils.chapters.files.notebook_text", lambda _: "half" + chr(0xD800))
    with pytest.raises(UnicodeEncodeError):
        write_notebook(notebook, path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.glob("*.ipynb*")] == [path.name]
    assert re.match(rb"\{\n \"cells\"", before)
