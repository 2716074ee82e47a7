"""How much of the code by hand the chapters show."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from course_staff.notebooks.shown import share, shown_lines

FILE = '"""A file."""\n\nimport torch\n\n\ndef f():\n    return 1\n\n\nclass A:\n    def g(self):\n        return 1\n'
F = "def f():\n    return 1"
G = "def g(self):\n    return 1"


@pytest.fixture
def checkout(tmp_path):
    """A file by hand of seven lines, one that only re-exports, one that starts processes, and a chapter."""
    for name in ("optim/first.py", "optim/__init__.py", "distributed/launch.py", "distributed/ring.py"):
        path = tmp_path / "course_utils" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FILE)
    (tmp_path / "notebooks").mkdir()

    def counts(*listings: tuple[str, str]) -> dict:
        texts = [f"`course_utils.{name}`\n\n```python\n{code}\n```" for name, code in listings]
        outputs = [new_output("display_data", {"text/markdown": text}) for text in texts]
        chapter = new_notebook(cells=[new_code_cell("viz.source(f)", outputs=outputs)])
        nbformat.write(chapter, tmp_path / "notebooks" / "01_a.ipynb")
        return shown_lines(tmp_path)

    return counts


@pytest.mark.parametrize(
    ("listings", "lines"),
    [
        ([], 0),
        ([("optim.first.f", F)], 2),
        ([("optim.first.A.g", G)], 2),
        ([("optim.first.f", F), ("optim.first.f", F), ("optim.first.A.g", G)], 4),
        ([("optim.first", FILE.rstrip())], 7),
        ([("optim.first_two.f", F)], 0),
        ([("optim.first.f", "def f():\n    return 2")], 0),
    ],
    ids=["nothing", "a function", "a method", "each once", "the whole file", "another file", "what it was before"],
)
def test_a_line_counts_where_a_stored_output_shows_it_as_it_is(listings, lines, checkout):
    counts = checkout(*listings)
    assert counts == {"optim/first.py": (lines, 7), "distributed/ring.py": (0, 7)}
    assert share(counts) == lines / 14
