"""The chapters as strangers open them: each alone, elsewhere, and all its cells twice in one kernel."""

import nbformat
import pytest
from twice import name, notebooks, run_twice

from course_staff.notebooks.files import write_notebook


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("path", notebooks("notebooks"), ids=name)
def test_a_chapter_runs_alone_and_elsewhere_and_twice_in_one_kernel(path, tmp_path):
    run_twice(path, tmp_path / "elsewhere")


def test_a_notebook_that_cannot_run_twice_is_found(tmp_path):
    cells = [
        nbformat.v4.new_code_cell("count = globals().get('count', 0) + 1", id="a"),
        nbformat.v4.new_code_cell("print(count)", id="b", metadata={"tags": ["nbval-check-output"]}),
    ]
    write_notebook(nbformat.v4.new_notebook(cells=cells), tmp_path / "a.ipynb")
    with pytest.raises(AssertionError, match=r"something else the second time: \['b'\]"):
        run_twice(tmp_path / "a.ipynb", tmp_path / "elsewhere")


def test_a_notebook_that_leaves_something_is_found(tmp_path):
    cells = [nbformat.v4.new_code_cell("open('left.txt', 'w').close()", id="a")]
    write_notebook(nbformat.v4.new_notebook(cells=cells), tmp_path / "a.ipynb")
    with pytest.raises(AssertionError, match=r"left \{'left.txt'\} beside itself"):
        run_twice(tmp_path / "a.ipynb", tmp_path / "elsewhere")
