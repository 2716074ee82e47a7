"""Reading a solutions notebook: what is cut out, what is hidden, and what is said of a notebook that does not fit together."""

import json
from pathlib import Path

import pytest

from course_staff.notebooks.files import read_notebook
from course_staff.release.skeleton import empty_notebook, with_question
from course_staff.release.source import apply_mistake, load_solutions, marker, public_part, split_answer
from course_utils.errors import CourseError
from course_utils.grading.loading import load_set
from course_utils.grading.question import Mistake
from course_utils.grading.solutions import solution_in


def notebook(*kinds: str) -> dict:
    solutions = empty_notebook("99_test", "%pip install nothing")
    for kind in kinds:
        solutions, _ = with_question(solutions, kind)
    return solutions


def write(solutions: dict, folder: Path) -> Path:
    path = folder / "99_test.ipynb"
    path.write_text(json.dumps(solutions), encoding="utf-8")
    return path


def cell_of(solutions: dict, name: str) -> dict:
    return next(cell for cell in solutions["cells"] if cell["id"] == name)


def test_a_hole_becomes_the_default_stub_at_its_own_indentation():
    source = "def f():\n    a = 1\n    ### BEGIN SOLUTION\n    b = 2\n    return a + b\n    ### END SOLUTION\n"
    solution, stub = split_answer(source)
    assert solution == "def f():\n    a = 1\n    b = 2\n    return a + b"
    assert stub == 'def f():\n    a = 1\n    raise NotImplementedError("write your answer here")'


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[3] / "solutions").glob("*.ipynb")), ids=lambda path: path.stem
)
def test_a_learner_who_asks_for_a_solution_sees_what_a_perfect_one_hands_in(path):
    cells = read_notebook(path).cells
    answers = {mark[1]: cell["source"] for cell in cells if (mark := marker(cell) or ("",))[0] == "EXERCISE"}
    assert len(answers) > 2
    for question, source in answers.items():
        assert solution_in(path, question) == split_answer(source)[0]
        assert "###" not in solution_in(path, question)


def test_a_stub_of_the_authors_replaces_the_default_one():
    source = (
        "def f():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION\n"
        "    ### BEGIN STUB\n    # if True:\n    #     return 2\n    #\n    # return 3\n    ### END STUB\n\n\nx = f()"
    )
    solution, stub = split_answer(source)
    assert solution == "def f():\n    return 1\n\n\nx = f()"
    assert stub == "def f():\n    if True:\n        return 2\n\n    return 3\n\n\nx = f()"


def test_assignments_and_several_holes_in_one_cell():
    source = "a = 3 * 4  ### SOLUTION\nb: int = 5  ### SOLUTION\nc = 1\n### BEGIN SOLUTION\nd = 2\n### END SOLUTION"
    solution, stub = split_answer(source)
    assert solution == "a = 3 * 4\nb: int = 5\nc = 1\nd = 2"
    assert stub == 'a = ...\nb: int = ...\nc = 1\nraise NotImplementedError("write your answer here")'


@pytest.mark.parametrize(
    "source",
    [
        "x = 1",
        "### BEGIN SOLUTION\nx = 1",
        "    ### BEGIN SOLUTION\n    x = 1\n### END SOLUTION\ny = 1  ### SOLUTION",
        "### BEGIN SOLUTION\nx = 1\n### END SOLUTION\n\n### BEGIN STUB\n# x = 2\n### END STUB",
        "### BEGIN SOLUTION\nx = 1\n### END SOLUTION\n### BEGIN STUB\nx = 2\n### END STUB",
    ],
)
def test_marks_that_do_not_fit_together_are_refused(source):
    with pytest.raises(CourseError):
        split_answer(source)


def test_what_is_hidden_is_cut_out_wherever_it_stands():
    source = "# QUESTION q1\na = 1\n# HIDDEN\nb = 2\n# END HIDDEN\nc = 3\n# HIDDEN\nd = 4\n# END HIDDEN"
    assert public_part(source) == "# QUESTION q1\na = 1\nc = 3\n"
    with pytest.raises(CourseError, match="no partner"):
        public_part("a = 1\n# HIDDEN\nb = 2")


def test_markers_stand_in_the_first_line_of_code_cells_only():
    def mark(source, kind="code"):
        return marker({"cell_type": kind, "source": source})

    assert mark("# QUESTION q1\nx = 1") == ("QUESTION", "q1")
    assert mark("# EXERCISE q12") == ("EXERCISE", "q12")
    assert mark("x = 1\n# EXERCISE q1") is None
    assert mark("# EXERCISE q1", "markdown") is None
    assert mark("# EXERCISES q1") is None


def test_imports_and_definitions_above_are_known_but_nothing_is_run(tmp_path):
    solutions = notebook("function")
    above = "import math\n\nprint('loud')\n\n\ndef helper():\n    return math.pi"
    cell_of(solutions, "check-setup")["source"] = above
    (authored,) = load_solutions(write(solutions, tmp_path))
    assert "import math" in authored.preamble
    assert "def helper" in authored.preamble
    assert "loud" not in authored.preamble


def broken(flaw: str) -> dict:
    solutions = notebook("function")
    question, answer = cell_of(solutions, "q1-question"), cell_of(solutions, "q1-exercise")
    if flaw == "no exercise":
        solutions["cells"].remove(answer)
    if flaw == "twice":
        solutions["cells"].append({**answer, "id": "again"})
    if flaw == "other id":
        question["source"] = question["source"].replace('id="q1"', 'id="q7"')
    if flaw == "no question":
        question["source"] = "# QUESTION q1\nx = 1"
    if flaw == "no hole":
        answer["source"] = "# EXERCISE q1\nx = 1"
    return solutions


@pytest.mark.parametrize(
    ("flaw", "says"),
    [
        ("no exercise", "q1 needs a QUESTION cell and an EXERCISE cell"),
        ("twice", "Two cells begin with # EXERCISE q1"),
        ("other id", "99_test, q1: .* whose id is 'q1'"),
        ("no question", "99_test, q1: .* must define `question`"),
        ("no hole", "99_test, q1: nothing is removed"),
    ],
)
def test_a_notebook_that_does_not_fit_together_is_refused_with_the_questions_name(flaw, says, tmp_path):
    with pytest.raises(CourseError, match=says):
        load_solutions(write(broken(flaw), tmp_path))


def test_a_patch_must_fit_exactly_once():
    two = Mistake("two", "Two.", (("a", "b"), ("c", "d")))
    assert apply_mistake("a c", two) == "b d"
    for source in ("c", "a a c"):
        with pytest.raises(CourseError, match="occurs . times in the solution"):
            apply_mistake(source, two)


def test_an_unknown_set_is_answered_with_those_that_are_there():
    with pytest.raises(CourseError, match="the sets are: 00_start_here, "):
        load_set("99_unknown")
