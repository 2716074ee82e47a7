"""`check("q1")` as a learner meets it: in IPython's shell, in plain Python, with progress, and in strict mode."""

import html
import linecache
import re
import sys

import pytest
from checked_notebook import CODE, TRIPLING, attempt, run, text_of

from course_utils.errors import CourseError
from course_utils.grading.check import Checker, FailedCheckError
from course_utils.grading.progress import Attempts, recall
from course_utils.grading.question import UNTOUCHED

THREE_TWOS = {"length": 3, "entries": [2, 2, 2]}


def test_a_right_answer_passes_and_is_shown_with_its_place(notebook):
    run(notebook, "import torch")
    run(notebook, "# a helper\n\ndef double(x):\n    return 2 * x")
    assert text_of(notebook).splitlines() == [
        "q1 · Doubling <fast>: passed, 4 points",
        "Graded: `double`, a function from In [2], line 3.",
        "✓ one",
        "✓ two",
        "Progress: 1 of 3 questions passed.",
    ]


def test_a_named_mistake_is_diagnosed_with_its_hint(notebook, entries):
    entries[0]["mistakes"]["tripling"]["prints"]["two"] = {**TRIPLING, "values": {"result": THREE_TWOS}}
    run(notebook, "double = lambda x: 3 * x")
    lines = text_of(notebook).splitlines()
    assert lines[0] == "q1 · Doubling <fast>: not right yet, 0 of 2 checks passed"
    assert lines[1] == "Graded: `double`, a function from In [1], line 1."
    assert lines[2:4] == ["Diagnosis: this is <tripling>", "Hint: a nudge"]
    assert lines[4] == "✗ one: `result` is 3 but should be 2."
    hints = [text_of(notebook).splitlines()[3] for _ in range(2)]
    assert hints == ["Hint: an outline"] * 2, "the mistake's own hint, from the second try on"


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("1", "There is no `double` yet"),
        (
            f"def double(x):\n    raise NotImplementedError({UNTOUCHED!r})",
            "`double` is as it was handed out: write your answer in its cell, and run that cell.",
        ),
        ("def double(x, y): return x", "cannot be called as the exercise requires"),
        ("def double(x):\n    return 1 / 0", "ZeroDivisionError: division by zero at your line 2: `return 1 / 0`."),
        ("def double(x):\n    while True: pass", "had not ended after 0.5 s"),
        ("def double(x): return {'result': {1}}", "is of type set"),
        ("def double(x):\n    if type(x) is list: x += x; return x\n    return 2 * x", "changed its input `x`"),
        ("from torch import add as double", "✗"),
    ],
)
def test_every_failure_is_a_sentence_and_never_a_traceback(notebook, source, part):
    run(notebook, source)
    text = text_of(notebook)
    assert part in text
    assert "Traceback" not in text
    assert len([line for line in text.splitlines() if line.startswith("Progress: 0 of 3")]) == 1


def test_text_and_escaped_html_say_the_same(notebook):
    run(notebook, "class Evil(Exception): pass\ndef double(x):\n    raise Evil('<script>alert(1)</script> `</code>`')")
    [(text, page)] = run(notebook, 'check("q1")')
    assert "<script" not in page
    assert "Doubling &lt;fast&gt;" in page
    rows = re.findall(r"<div style=\"white-space[^>]*>(.*?)</div>", page, re.DOTALL)
    bare = [html.unescape(re.sub(r"<[^>]+>", "", row)) for row in rows]
    assert [row.replace("`", "") for row in bare] == [line.replace("`", "") for line in text.splitlines()]


def test_an_untouched_bug_hunt_is_known_by_its_source(notebook):
    run(notebook, "def twice(x):\n    return x")
    assert "q2 · A bug hunt: nothing to check yet" in text_of(notebook, "q2")
    run(notebook, "def twice(x):\n    return x + x")
    assert "passed on these cases; a grade for its 4 points comes from further ones" in text_of(notebook, "q2")


def test_a_value_is_traced_to_the_cell_that_assigned_it(notebook):
    run(notebook, "size = 7")
    run(notebook, "if True:\n    size = 8")
    run(notebook, "other = size")
    lines = text_of(notebook, "q3").splitlines()
    assert lines[1] == "Graded: `size`, an int from In [2], line 2."
    run(notebook, "size = ...")
    assert "nothing to check yet" in text_of(notebook, "q3")


def test_a_redefined_answer_is_graded_anew(notebook):
    run(notebook, "def double(x): return 0")
    assert "not right yet" in text_of(notebook)
    run(notebook, "%time\ndef double(x): return 2 * x")
    assert "from In [3], line 2" in text_of(notebook)


def test_cells_as_ipython_7_names_them_are_the_learners_too(notebook):
    """Colab's IPython compiles a cell as `<ipython-input-NUMBER-HASH>`."""
    source, file = "import math\ndef double(x):\n    return math.sqrt('4')", "<ipython-input-7-0a1b2c3d4e5f>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), notebook.user_ns)
    text = text_of(notebook)
    assert "Graded: `double`, a function from In [7], line 2." in text
    assert "stopped with TypeError: must be real number, not str at your line 3: `return math.sqrt('4')`." in text


def test_a_class_shows_its_own_line(notebook, entries):
    entries[0]["code"] = CODE.replace("2 * x", "x")
    run(notebook, "import torch\n\nclass double(dict):\n    a = 1\n    def __init__(self, x): pass")
    assert "Graded: `double`, a class from In [1], line 3." in text_of(notebook)


def test_progress_stays_and_hints_are_earned(notebook):
    run(notebook, "def double(x): return 5 * x")
    assert 'For a hint: `check("q1", hint=1)`.' in text_of(notebook)
    assert "Hint: a nudge" in text_of(notebook)
    assert recall("03_test") == {"q1": Attempts(2, False, 0.0, hint=1)}
    run(notebook, "def double(x): return 2 * x")
    text_of(notebook)
    run(notebook, "def double(x): return 5 * x")
    text_of(notebook)
    assert recall("03_test")["q1"] == Attempts(3, True, 4, hint=1)
    [(text, _)] = run(notebook, "check()")
    assert text.splitlines() == [
        "03_test: 1 of 3 questions passed",
        "✓ q1 · Question q1 · 4 points",
        "○ q2 · Question q2 · 4 points",
        "○ q3 · Question q3 · 4 points",
    ]


def test_hints_on_demand(notebook):
    [(text, _)] = run(notebook, 'check("q1", hint=3)')
    assert text == "q1 · Doubling <fast>: hint 3 of 3\nx + x"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ('"q1", hint=4', "hint=1, 2 or 3"),
        ('"q9"', "no question 'q9'; it has q1, q2, q3"),
        ('"q1", solution="now"', "ask for solution=True"),
    ],
)
def test_an_impossible_request_is_a_sentence_or_with_points_an_error(notebook, call, message):
    [(text, _)] = run(notebook, f"check({call})")
    assert message in text
    with pytest.raises(CourseError, match=re.escape(message)):
        run(notebook, f"check({call}, points=True)")


@pytest.mark.usefixtures("strict")
def test_strict_mode_raises_after_showing(notebook):
    run(notebook, "def double(x): return 5 * x")
    with pytest.raises(FailedCheckError, match="not right yet"):
        run(notebook, 'check("q1")')
    with pytest.raises(CourseError, match="hint=1, 2 or 3"):
        run(notebook, 'check("q1", hint=4)')
    run(notebook, "def double(x): return 2 * x")
    assert text_of(notebook).startswith("q1 · Doubling <fast>: passed")


@pytest.mark.usefixtures("strict")
def test_with_points_they_are_returned_in_strict_mode_too(notebook):
    run(notebook, "def double(x): return 5 * x\ngot = check('q1', points=True)")
    assert notebook.user_ns["got"] == 0
    run(notebook, "def double(x): return 2 * x\ngot = check('q1', points=True)")
    assert notebook.user_ns["got"] == 4


def test_plain_python_prints(entries, monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "IPython")
    monkeypatch.setattr(sys.modules["__main__"], "double", lambda x: 2 * x, raising=False)
    Checker("03_test", entries)("q1")
    assert capsys.readouterr().out.startswith("q1 · Doubling <fast>: passed, 4 points\nGraded: `double`")


@pytest.mark.parametrize(
    ("newer", "error"),
    [
        ("def double(x) return 2 * x", "SyntaxError (expected ':', line 2)"),
        ("1 / 0\ndef double(x): return 2 * x", "ZeroDivisionError"),
    ],
)
def test_a_verdict_on_an_older_cell_says_so(notebook, newer, error):
    attempt(notebook, f"# EXERCISE q1\n{newer}")
    first = f"In [1] failed with {error}, so your `double` is not defined yet: fix that cell and run it again."
    lines = text_of(notebook).splitlines()
    assert lines[0].endswith(": no verdict yet")
    assert first in lines
    assert "".join(lines).count("There is no") == 0, "one sentence is enough"
    run(notebook, "# EXERCISE q1\ndef double(x): return 5 * x")
    assert "newest" not in text_of(notebook)
    attempt(notebook, f"# EXERCISE q1\n{newer}")
    attempt(notebook, "1 / 0  # of no question")
    lines = text_of(notebook).splitlines()
    assert (
        lines[2] == f"Not your newest answer: In [5] failed with {error}, so this is a verdict on the one from In [3]."
    )
    run(notebook, "# EXERCISE q1\ndef double(x): return 2 * x")
    assert "newest" not in text_of(notebook)


def test_a_value_that_a_failed_cell_did_not_assign_is_the_older_ones(notebook):
    run(notebook, "# EXERCISE q3\nsize = 7")
    attempt(notebook, "# EXERCISE q3\nsize = 8 / 0")
    lines = text_of(notebook, "q3").splitlines()
    assert lines[1] == "Graded: `size`, an int from In [1], line 2."
    assert "In [2] failed with ZeroDivisionError, so this is a verdict on the one from In [1]." in lines[2]
    attempt(notebook, "# EXERCISE q3\nsize = 8\n1 / 0")
    lines = text_of(notebook, "q3").splitlines()
    assert lines[0].endswith("passed, 1 point")
    assert lines[1].endswith("from In [4], line 2."), "it was assigned before the cell failed"
    assert "newest" not in "".join(lines)
