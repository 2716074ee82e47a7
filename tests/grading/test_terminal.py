"""A notebook's file, checked in a terminal: what it holds, and what stands in a notebook that is open beside it."""

import json
import os
import re

import pytest
from checked_notebook import STUB, run, text_of

from course_utils.cli import main
from course_utils.errors import CourseError
from course_utils.grading import terminal
from course_utils.grading.progress import PROGRESS, Attempts, recall


@pytest.fixture
def saved(tmp_path, monkeypatch, entries):
    """`save(answer)` writes the notebook as it stands at that moment; its kernel runs in the same folder."""
    monkeypatch.setattr(terminal, "load_set", lambda name: {"questions": entries[:1]})
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "03_exercises_test.ipynb"

    def save(answer, mtime):
        cells = [{"cell_type": "code", "source": f"# EXERCISE q1\n{answer}"}]
        path.write_text(json.dumps({"cells": cells}))
        os.utime(path, (mtime, mtime))
        return path

    return save


def is_right(path):
    [(result, _)] = terminal.check_notebook(path, "03_test")
    return result.passed


RIGHT, WRONG = "def double(x):\n    return 2 * x", "def double(x):\n    return 5 * x"


def test_a_file_older_than_what_was_checked_is_not_held_against_the_board(notebook, saved):
    path = saved(STUB, mtime=1)
    run(notebook, f"# EXERCISE q1\n{RIGHT}")
    assert "passed" in text_of(notebook)
    message = r"What you checked .* not in its file yet \(q1\): save the notebook first \(Ctrl\+S\)"
    with pytest.raises(CourseError, match=message):
        is_right(path)
    assert recall("03_test")["q1"].passed
    assert is_right(saved(RIGHT.replace("    ", "\t"), mtime=1)), "it holds that answer, whenever it was written"
    assert not is_right(saved(WRONG, mtime=recall("03_test")["q1"].time + 1)), "saved later, with another answer"
    assert recall("03_test")["q1"].tries == 1
    other = saved(WRONG, mtime=1).rename(path.with_name("copy.ipynb"))
    assert not is_right(other), "another notebook than the one that is open"


def test_jupyterlab_says_which_notebook_is_open(notebook, saved, monkeypatch):
    other = saved(STUB, mtime=1).rename("called otherwise.ipynb").absolute()
    monkeypatch.setenv("JPY_SESSION_NAME", str(other))
    run(notebook, f"# EXERCISE q1\n{RIGHT}")
    text_of(notebook)
    with pytest.raises(CourseError, match="save the notebook first"):
        is_right(other)
    assert not is_right(saved(STUB, mtime=1))


def test_a_check_in_the_terminal_is_no_newer_answer(saved):
    assert not is_right(saved(WRONG, mtime=1))
    assert is_right(saved(RIGHT, mtime=1))


def test_in_a_terminal_a_cell_is_named_by_what_stands_in_it(notebook, saved, capsys):
    path = saved(RIGHT, mtime=1)
    cells = json.loads(path.read_text())["cells"]
    broken = {"cell_type": "code", "source": "import torch\n1 / 0"}
    path.write_text(json.dumps({"cells": [broken, *cells]}))
    [(_, report)] = terminal.check_notebook(path, "03_test")
    assert "Graded: `double`, a function from the cell of q1, line 2." in str(report)
    first = capsys.readouterr().out
    assert first == "The cell that begins `import torch` stopped with ZeroDivisionError: division by zero\n"


def test_in_a_terminal_too_a_cell_that_stopped_is_no_answer_that_was_never_written(notebook, saved, capsys):
    path = saved(RIGHT.replace("return 2 * x", "return 2 * )"), mtime=1)
    [(_, report)] = terminal.check_notebook(path, "03_test")
    lines = str(report).splitlines()
    assert lines[0].endswith(": no verdict yet")
    assert lines[1] == "Its cell stopped with SyntaxError, so your `double` is not defined yet: fix that cell."
    first = capsys.readouterr().out.splitlines()[0]
    assert re.fullmatch(r"The cell of q1 stopped with SyntaxError: .*[^)] \(line 3\)", first)


def test_the_terminals_last_line_counts_as_its_verdicts_do(notebook, saved, solutions, monkeypatch, capsys):
    monkeypatch.setattr("course_utils.grading.loading.set_names", lambda: ["03_test"])
    path = saved(RIGHT, mtime=1)
    assert main(["check", str(path), "--set", "03_test"]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    saved_on = r"as saved on 1970-01-0[12] at .*; unsaved changes are not included\."
    assert re.fullmatch(rf"Checking .*\.ipynb {saved_on}", first)
    assert last == "1 of 1 answers is right."
    PROGRESS.put("03_test", {"q1": Attempts(1, False, 0.0, seen=True)})
    assert main(["check", str(path), "--set", "03_test"]) == 0
    *_, before, _, last = capsys.readouterr().out.splitlines()
    assert before == "Progress: 0 of 1 questions passed, 1 solution seen."
    assert last == "1 of 1 answers is right, 1 of them after you saw its solution."
