"""The line at a chapter's end that leads to the next one."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course_staff.notebooks.anatomy import Chapter, check_successor
from course_staff.notebooks.files import read_notebook
from course_staff.notebooks.successor import stamp_successor, with_successor


@pytest.fixture
def chapters(tmp_path):
    """Three; the last Markdown of each is followed by code."""
    titles = {"05_a": "# Eight: bits of it", "05b_b": "# Choosing", "06_c_d": "no title"}
    for name, title in titles.items():
        cells = [new_markdown_cell(title), new_markdown_cell("- a source"), new_code_cell("x = 1")]
        nbformat.write(new_notebook(cells=cells), tmp_path / f"{name}.ipynb")
    return [tmp_path / f"{name}.ipynb" for name in titles]


def end_of(path):
    return nbformat.read(path, 4).cells[1].source


def broken(path):
    return list(check_successor(Chapter(path, read_notebook(path))))


def test_each_chapter_leads_to_the_next_and_the_last_to_none(chapters):
    assert [bool(broken(path)) for path in chapters] == [True, True, False]
    assert [stamp_successor(path) for path in chapters] == [True, True, False]
    assert end_of(chapters[0]) == "- a source\n\n**Next:** [05b Choosing](05b_b.ipynb)"
    assert end_of(chapters[1]) == "- a source\n\n**Next:** [06 c d](06_c_d.ipynb)"
    assert end_of(chapters[2]) == "- a source"
    assert not any(map(broken, chapters))
    assert not any(map(stamp_successor, chapters)), "once is enough"


def test_a_chapter_put_between_or_taken_away_is_noticed(chapters):
    for path in chapters:
        stamp_successor(path)
    chapters[2].unlink()
    assert "course stamp" in broken(chapters[1])[0][1]
    assert stamp_successor(chapters[1])
    assert end_of(chapters[1]) == "- a source"


def test_a_line_within_the_text_stays(chapters):
    text = "**Next:** not this one\n\nbut this"
    assert with_successor(chapters[2], text) == text
