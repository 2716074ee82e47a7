"""The glossary is read, and chapters link to it where they first use a term."""

import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course_staff.notebooks.files import read_notebook
from course_staff.notebooks.glossary import GLOSSARY, Term, add_links, read_glossary, stamp_links, strip_links
from course_utils.errors import CourseError

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / GLOSSARY).read_text(encoding="utf-8")
INTO = re.compile(r'\[([^\[\]]*)\]\(\.\./docs/glossary\.md#([\w-]+) "([^"]*)"\)')
BATCH = Term("batch", "batch", "What is taken together.", "00", ("batches",))
MICRO = Term("micro-batch", "micro-batch", 'A "piece" | of it. More.', "06")


def test_the_longest_term_wins_and_only_its_first_use_is_linked():
    texts = ["Micro-batches make a batch.", "A batch of micro-batches."]
    first, second = add_links(texts, [BATCH, MICRO])
    assert first == (
        "[Micro-batches](../docs/glossary.md#micro-batch \"A 'piece' / of it.\") make a "
        '[batch](../docs/glossary.md#batch "What is taken together.").'
    )
    assert second == texts[1]
    assert [strip_links(text) for text in (first, second)] == texts


@pytest.mark.parametrize(
    "text",
    [
        "# A batch",
        "`batch`",
        "```python\nbatch = 1\n```",
        "[a batch](../notebooks/00.ipynb)",
        "![batch](attachment:x.png)",
        "$batch$",
        '<img alt="batch">',
        "minibatch batchwise batch-free",
        "### Sources\n\n- *A batch of papers*",
    ],
)
def test_what_is_no_prose_is_left_as_it_is(text):
    assert add_links([text], [BATCH]) == [text]
    assert BATCH.title in add_links([f"a batch\n\n{text}"], [BATCH])[0]


def test_stamping_touches_the_text_alone_and_once(tmp_path):
    path = tmp_path / "06_x.ipynb"
    cells = [new_markdown_cell("A batch", id="a-text"), new_code_cell("batch = 1", id="code")]
    nbformat.write(new_notebook(cells=cells), path)
    assert stamp_links(path, [BATCH])
    assert not stamp_links(path, [BATCH])
    after = read_notebook(path)
    assert [cell.source.partition("(")[0] for cell in after.cells] == ["A [batch]", "batch = 1"]
    assert stamp_links(path, [])
    assert read_notebook(path).cells[0].source == "A batch"


def test_before_its_first_chapter_a_word_is_no_term(tmp_path):
    path = tmp_path / "05b_x.ipynb"
    nbformat.write(new_notebook(cells=[new_markdown_cell("A micro-batch of a batch", id="a-text")]), path)
    stamp_links(path, [BATCH, MICRO])
    assert [link[1] for link in INTO.findall(read_notebook(path).cells[0].source)] == ["batch"]


def test_a_chapter_may_leave_a_word_alone_that_means_something_else_there(tmp_path):
    path = tmp_path / "06_x.ipynb"
    notebook = new_notebook(cells=[new_markdown_cell("A micro-batch of a batch", id="a-text")])
    notebook.metadata["course"] = {"unlinked": ["batch"]}
    nbformat.write(notebook, path)
    stamp_links(path, [BATCH, MICRO])
    assert [link[1] for link in INTO.findall(read_notebook(path).cells[0].source)] == ["micro-batch"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('<a id="adam"></a>Adam\n', "Adam\n", "is not written like the others"),
        ('<a id="adam"></a>', '<a id="adamw"></a>', "'adamw' stands twice"),
    ],
)
def test_an_entry_that_cannot_be_read_is_named(old, new, says, tmp_path):
    assert old in TEXT
    (tmp_path / "glossary.md").write_text(TEXT.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(CourseError, match=says):
        read_glossary(tmp_path / "glossary.md")
