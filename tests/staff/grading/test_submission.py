"""What is found in a notebook, whatever has happened to it."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tiny_set import cell, notebook

from course_staff.grading import submission
from course_staff.grading.submission import answer_to, notes_on_set, parse_cell

STUB = "# EXERCISE q1\ndef f(x):\n    raise NotImplementedError('write your answer here')"
RIGHT = "# EXERCISE q1\ndef f(x):\n    return x"
OTHER = "# EXERCISE q2\ng = 1"
ENTRY = {"id": "q1", "stub": STUB, "answer": "f"}


def read_submission(path):
    return submission.read_submission(path, lambda sources: list(map(parse_cell, sources)))


def read_text(text):
    with TemporaryDirectory() as folder:
        path = Path(folder, "a.ipynb")
        path.write_text(text, "utf-8")
        return read_submission(path)


def answer(*sources, **fields):
    return answer_to(read_text(notebook(*sources, **fields)), ENTRY)


def sources_of(cells):
    return [(cell.source, is_answer) for cell, is_answer in cells]


def test_the_answer_is_run_alone_and_else_with_every_cell_that_answers_nothing():
    result = answer(
        "import torch", cell("text", "markdown"), RIGHT, 'check("q1")', OTHER, "# QUESTION q1\nx = 1", "y = 2"
    )
    assert result.state == "written"
    assert sources_of(result.cells) == [(RIGHT, True)]
    assert sources_of(result.all_cells) == [("import torch", False), (RIGHT, True), ("y = 2", False)]
    assert result.notes == ()


@pytest.mark.parametrize("experiment", ["1 + 1", '"a note"', "None"])
def test_a_marked_cell_below_the_answer_that_defines_nothing_is_none(experiment):
    assert sources_of(answer(RIGHT, f"# EXERCISE q1\n{experiment}").cells) == [(RIGHT, True)]


USES = "# EXERCISE q1\ndef f(x):\n    y = 1\n    return helper(math.sqrt(x + y))"
REQUIRED_CELLS = {
    "above": ("import math", "def helper(x): return x"),
    "below, and through another": ("helper = lambda x: other(x)", "def other(x): return math.sqrt(x)", "import math"),
    "in another question's cell": ("# EXERCISE q2\nimport math\ng = 1", "# EXERCISE q3\ndef helper(x): return x"),
    "by a magic's side": ("%matplotlib inline\nimport math", "%load_ext x\nhelper = 1"),
    "changed": ("import math\nhelper = type('H', (), {})", "helper.a['b'] = 1"),
    "what nobody can see": ("from torch import *", "exec('helper = 1')"),
}
IDLE = ("y = 2", "optimizer = f(3)\nx = [f(x) for x in range(9)]", "print(f(1))\n%timeit f(2)", "def g(): return 1 +")


@pytest.mark.parametrize("cells", REQUIRED_CELLS.values(), ids=REQUIRED_CELLS)
def test_what_an_answer_rests_on_is_run_with_it_wherever_it_stands_and_no_experiment(cells):
    result = answer(IDLE[0], cells[0], *IDLE[1:3], USES, *cells[1:], IDLE[3])
    assert [source for source, _ in sources_of(result.cells)] == [cells[0], USES, *cells[1:]]


def test_of_another_answers_cell_only_what_no_plain_cell_gives_is_taken():
    plain, other = "import math\ndef helper(x): return x", "# EXERCISE q2\ndef helper(x): return -x"
    assert sources_of(answer(other, plain, USES).cells) == [(plain, False), (USES, True)]


def test_a_chain_of_thousands_is_followed_at_once():
    chain = [f"a{i} = a{i + 1}" for i in range(5000)]
    assert len(answer(*chain, f"{RIGHT} + a0").cells) == 5001


@pytest.mark.parametrize("source", [STUB, STUB + "\n\n", STUB.replace("\n", "\r\n"), "#EXERCISE q1" + STUB[13:]])
def test_the_stub_is_untouched(source):
    assert answer(source).state == "untouched"


def test_an_answer_that_is_nowhere_is_missing():
    result = answer("from somewhere import f", OTHER)
    assert result.state == "missing"
    assert "# EXERCISE q1" in result.notes[0]


@pytest.mark.parametrize(
    "marker",
    ["#EXERCISE q1", "# Exercise q1:", "  # EXERCISE  q1 ", "# mine\n\n# EXERCISE q1", "%%time\n# EXERCISE q1"],
)
def test_a_marker_that_was_edited_is_still_one(marker):
    result = answer(RIGHT.replace("# EXERCISE q1", marker))
    assert result.state == "written"
    assert result.notes == ()


@pytest.mark.parametrize("source", ["def f(x):\n    return x", "class f: pass", "f = abs", "a, f = 1, 2", "f: int = 3"])
def test_an_answer_whose_marker_is_lost_is_found_by_its_name(source):
    result = answer("import torch", source, OTHER)
    assert result.state == "written"
    assert sources_of(result.cells)[-1] == (source, True)
    assert "cell 2 was graded" in result.notes[0]


@pytest.mark.parametrize("marked_cell", ["# EXERCISE q1", "# EXERCISE q1\n# mine", "# EXERCISE q1\nimport torch"])
def test_a_marker_above_no_answer_leads_to_the_cell_that_defines_it(marked_cell):
    result = answer(marked_cell, "def f(x):\n    return torch.as_tensor(x)")
    assert sources_of(result.cells)[-1] == ("def f(x):\n    return torch.as_tensor(x)", True)
    assert ("import torch" in marked_cell) == (len(result.cells) == 2)
    assert result.notes == ("Cell 1 has # EXERCISE q1 but no answer; cell 2 was graded, which defines the answer.",)


@pytest.mark.parametrize(
    "marked_cell", ["# EXERCISE q1\ndef f(x:", "%%time\n" + RIGHT, "# EXERCISE q1\nexec('f = abs')"]
)
def test_a_marked_cell_that_may_define_the_answer_counts_before_one_without_a_marker(marked_cell):
    result = answer("f = abs", marked_cell)
    assert sources_of(result.cells)[-1] == (marked_cell, True)


@pytest.mark.parametrize("kind", ["markdown", "raw"])
def test_an_answer_that_became_text_is_pointed_out(kind):
    result = answer(OTHER, cell(RIGHT, kind))
    assert result.state == "missing"
    assert result.notes == ("Cell 2 contains the answer as text: turn it into a code cell.",)


def test_of_several_answers_the_last_one_written_counts_and_a_note_says_so():
    result = answer(RIGHT.replace("x:", "y:"), RIGHT, STUB)
    assert sources_of(result.cells) == [(RIGHT, True)]
    assert "Cells 1, 2, 3 all answer q1; cell 2" in result.notes[0]


def test_two_answers_in_one_cell_serve_both():
    assert answer(f"{OTHER}\n{RIGHT}").state == "written"


@pytest.mark.parametrize("check", ['check("q1")', "check('q1', hint=1)  # again", 'check("q1")\ncheck()'])
def test_checks_are_not_run(check):
    assert sources_of(answer(RIGHT, check).all_cells) == [(RIGHT, True)]
    source = f"x = 1\n{check}"
    assert sources_of(answer(RIGHT, source).all_cells)[-1] == (source, False)


def test_another_set_is_named():
    ids = ["q1", "q2"]
    assert notes_on_set(read_text(notebook(RIGHT, OTHER)), "s", ids) == ()
    assert notes_on_set(read_text(notebook(OTHER, RIGHT)), "s", ids) == ()
    assert "is it 03_exercises_adamw.ipynb?" in notes_on_set(read_text(notebook("x = 1")), "03_adamw", ids)[0]
    (note,) = notes_on_set(read_text(notebook('check = exercise("t")', RIGHT)), "03_adamw", ids)
    assert "of the set t" in note
    assert note.endswith("hand in 03_exercises_adamw.ipynb.")


@pytest.mark.parametrize(
    "metadata",
    [None, [], {"kernelspec": 3}, {"kernelspec": {"language": None}}, {"kernelspec": {"language": "python3"}}],
)
def test_odd_metadata_does_no_harm(metadata):
    assert answer(RIGHT, metadata=metadata).state == "written"


def test_cells_of_any_shape_are_passed_over():
    odd = [3, None, {}, {"cell_type": "code"}, cell(None), cell([1, "x = 1\n", None])]
    odd += [{"cell_type": []}, cell("\ud800")]
    submission = read_text(json.dumps({"cells": [*odd, cell(RIGHT)]}))
    assert [cell.number for cell in submission.cells] == [6, 8, 9]
    assert answer_to(submission, ENTRY).state == "written"


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('<<<<<<< HEAD\n{"cells": []}\n>>>>>>> x\n', "merge conflict"),
        ("[]", "not a notebook"),
        ("null", "not a notebook"),
        ('{"cells": {}}', "not a notebook"),
        ('{"worksheets": []}', "not a notebook"),
    ],
)
def test_what_is_no_notebook_has_no_cells_and_a_note(text, note):
    submission = read_text(text)
    assert submission.cells == ()
    assert note in submission.notes[0]


def test_files_of_every_kind_are_read_or_noted(tmp_path):
    def read(content):
        (tmp_path / "a.ipynb").write_bytes(content)
        return read_submission(tmp_path / "a.ipynb")

    text = notebook(RIGHT + "  # Größe")
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        assert len(read(text.encode(encoding)).cells) == 1
    assert len(read(text.replace("\\u00f6", "ö").encode("latin-1")).cells) == 1
    assert "empty" in read(b" \n").notes[0]
    (tmp_path / "folder.ipynb").mkdir()
    (tmp_path / "link.ipynb").symlink_to(tmp_path / "a.ipynb")
    for name in ("folder", "link"):
        assert "not a regular file" in read_submission(tmp_path / f"{name}.ipynb").notes[0]
    assert "cannot be read" in read_submission(tmp_path / "none.ipynb").notes[0]


def test_text_made_to_keep_the_reader_busy_is_read_at_once_or_refused():
    assert answer("# EXERCISE q1" + " " * 300_000 + "x").state == "missing"
    assert "characters that are read" in read_text(notebook("a\n" * 300_000)).notes[0]


def test_a_file_beyond_all_size_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("course_staff.grading.submission.LARGEST", 100)
    (tmp_path / "a.ipynb").write_text(notebook(RIGHT))
    assert "clear its outputs" in read_submission(tmp_path / "a.ipynb").notes[0]


def test_a_file_without_cells_is_said_once():
    assert answer_to(read_text("not a notebook"), ENTRY).notes == ()
