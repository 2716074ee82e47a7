"""Each rule, broken by one change to a good chapter, is the only one reported, at the right cell."""

import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from course_staff.notebooks.anatomy import violations_in


def code(notebook, index):
    return [cell for cell in notebook.cells if cell.cell_type == "code"][index]


def section(notebook, name):
    return next(cell for cell in notebook.cells if cell.source.startswith(f"## {name}"))


def insert_code(notebook, source="print(2)", **metadata):
    """A further executed cell, before the last one."""
    notebook.cells.insert(-1, new_code_cell(source, metadata=metadata))
    for count, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), start=1):
        cell.execution_count = count


def output(notebook, text, kind="text/plain"):
    code(notebook, 1).outputs = [new_output("display_data", data={kind: text})]


def stream(notebook, text, name="stdout"):
    code(notebook, 1).outputs = [new_output("stream", text=text, name=name)]


def replace(cell, old, new):
    assert old in cell.source
    cell.source = cell.source.replace(old, new)


def test_a_good_chapter_breaks_no_rule(chapter, save):
    assert violations_in(save(chapter)) == []


def swap_two_sections(notebook):
    measure, play = section(notebook, "Measure"), section(notebook, "Play")
    measure.source, play.source = play.source, measure.source


def long_cells(count):
    def change(notebook):
        for _ in range(count):
            insert_code(notebook, "\n".join(["x = 1"] * 12))

    return change


CHANGES = {
    "no title": (lambda n: replace(n.cells[0], "# A chapter", "A chapter"), 1, "title"),
    "two aims": (lambda n: replace(n.cells[0], "- do another,\n", ""), 1, "three lines"),
    "no time": (lambda n: replace(n.cells[0], "**Time:** about 5 minutes", ""), 1, "how long"),
    "set-up cell edited": (lambda n: replace(n.cells[1], "begin()", "begin() "), 2, "course stamp"),
    "set-up cell not tagged": (lambda n: n.cells[1].metadata.clear(), 2, "'setup'"),
    "set-up cell twice": (lambda n: insert_code(n, "pass", tags=["setup"]), 2, "'setup'"),
    "section missing": (lambda n: replace(section(n, "Play"), "## ", "### "), 0, "'## Play' is missing"),
    "section twice": (lambda n: n.cells.insert(5, new_markdown_cell("## Predict the cost")), 0, "more than once"),
    "section unknown": (lambda n: n.cells.insert(3, new_markdown_cell("## Aside")), 4, "'## Aside' is not a section"),
    "sections swapped": (swap_two_sections, 0, "wrong order"),
    "four lines of summary": (lambda n: replace(n.cells[-1], "5. Five.\n", ""), 18, "five numbered lines"),
    "no problems": (lambda n: replace(n.cells[-1], "### Problems", "### Others"), 18, "'### Problems'"),
    "an answer that is not folded": (lambda n: replace(n.cells[-1], "<details>", ""), 18, "three problems"),
    "leads to a chapter that is not next": (
        lambda n: replace(n.cells[-1], "[a paper]", "\n\n**Next:** [07 A chapter](07_topic.ipynb) [a paper]"),
        18,
        "course stamp",
    ),
    "a term that is not linked": (lambda n: n.cells.insert(3, new_markdown_cell("A quokka.")), 4, "course stamp"),
    "too many words": (lambda n: n.cells.insert(3, new_markdown_cell("word " * 2_300)), 0, "2,3"),
    "very long cell": (lambda n: insert_code(n, "\n".join(["x = 1"] * 16)), 18, "16 lines"),
    "too many long cells": (long_cells(2), 18, "2 of 11"),
    "empty cell": (lambda n: n.cells.insert(-1, new_code_cell("")), 18, "empty"),
    "executed out of order": (lambda n: code(n, 2).update(execution_count=9), 6, "the number 9"),
    "no scale": (lambda n: n.metadata.course.clear(), 0, "laptop scale"),
    "other kernel": (lambda n: n.metadata.kernelspec.update(name="my-env"), 0, "python3"),
    "error": (
        lambda n: code(n, 1).update(outputs=[new_output("error", ename="KeyError", evalue="x", traceback=[])]),
        4,
        "KeyError",
    ),
    "stderr": (lambda n: stream(n, "hello", "stderr"), 4, "stderr"),
    "warning": (lambda n: stream(n, "x.py:1: FutureWarning: soon"), 4, "FutureWarning"),
    "home path": (lambda n: output(n, "saved in /home/ada/x"), 4, "/home/ada/x"),
    "figure without alt": (lambda n: code(n, -1).outputs[0].metadata.clear(), 17, "alternative text"),
    "picture without alt": (
        lambda n: n.cells.insert(3, new_markdown_cell("![](https://example.org/x.png)")),
        4,
        "alternative text",
    ),
    "HTML picture without alt": (
        lambda n: n.cells.insert(3, new_markdown_cell('<img src="https://x.org/x.png">')),
        4,
        "alternative",
    ),
    "dead file link": (
        lambda n: n.cells.insert(3, new_markdown_cell("[x](99_none.ipynb)")),
        4,
        "99_none.ipynb leads nowhere",
    ),
    "old format": (lambda n: (n.update(nbformat_minor=4), [cell.pop("id") for cell in n.cells]), 0, "4.5"),
    "same id twice": (lambda n: n.cells[4].update(id=n.cells[3].id), 5, "is that of cell 4 too"),
    "output of no known kind": (
        lambda n: code(n, 1).update(outputs=[{"output_type": "sound"}]),
        0,
        "not a valid notebook",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_one_broken_rule_is_reported_and_nothing_else(name, chapter, save):
    change, cell, sentence = CHANGES[name]
    change(chapter)
    path = save(nbformat.v4.new_notebook())
    path.write_text(json.dumps(chapter), encoding="utf-8")
    violations = violations_in(path)
    assert [violation.cell for violation in violations] == [cell], violations
    assert sentence in violations[0].remark
    assert str(violations[0]).startswith("07_topic.ipynb")
    assert violations[0].remark.endswith(".")


def test_a_link_to_existing_exercises_is_required(chapter, save, tmp_path):
    path = save(chapter)
    (tmp_path / "exercises").mkdir()
    save(chapter, "../exercises/07_exercises_topic.ipynb")
    assert [v.remark for v in violations_in(path)] == [
        "the summary must link to the exercises: ../exercises/07_exercises_topic.ipynb."
    ]
    replace(chapter.cells[-1], "How many more?", "[Exercises](../exercises/07_exercises_topic.ipynb)")
    assert violations_in(save(chapter)) == []


@pytest.mark.parametrize("tag", ["raises-exception", "stderr-expected"])
def test_a_tag_excuses_an_error_and_stderr_but_not_a_machine_path(tag, chapter, save):
    error = new_output("error", ename="ValueError", evalue="no", traceback=["Traceback (most recent call last)"])
    code(chapter, 1).outputs = [error, new_output("stream", name="stderr", text="Warning: /home/ada")]
    code(chapter, 1).metadata["tags"] = [tag]
    (violation,) = violations_in(save(chapter))
    assert "/home/ada" in violation.remark


def test_one_long_cell_in_ten_is_allowed_and_comments_and_blank_lines_are_not_counted(chapter, save):
    insert_code(chapter, "\n\n".join(["# why\nx = 1"] * 12))
    assert len([cell for cell in chapter.cells if cell.cell_type == "code"]) == 10
    assert violations_in(save(chapter)) == []


def test_links_and_headings_inside_code_are_none(chapter, save):
    chapter.cells.insert(
        3, new_markdown_cell("```python\n## not a section\n[x](none.ipynb)\n```\nand `[x](none.ipynb)`")
    )
    assert violations_in(save(chapter)) == []
