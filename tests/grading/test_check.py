"""`check("q1")` as a learner meets it: in IPython's shell, in plain Python, with progress, and in strict mode."""

import html
import linecache
import logging
import re
import subprocess
import sys

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from course_utils import grading, settings
from course_utils.errors import CourseError
from course_utils.grading import check as check_room
from course_utils.grading import showing
from course_utils.grading.check import Checker, FailedCheckError
from course_utils.grading.definition import binding_line
from course_utils.grading.judge import Verdict
from course_utils.grading.progress import Record, recall, remember
from course_utils.grading.question import UNTOUCHED

CODE = """
from course_utils.grading import Case, function

question = function(
    lambda x: 2 * x,
    id="q1", title="Doubling <fast>", points=4, difficulty=1, minutes=5, answer="double",
    hints=("a nudge", "an outline", "x + x"),
    public=lambda _: [Case("one", {"x": 1.0}), Case("two", {"x": [2]})],
)
"""
BUG = CODE.replace("q1", "q2").replace("double", "twice").replace("Doubling <fast>", "A bug hunt")
VALUE = """
from course_utils.grading import account

question = account(
    {"size": (8, "bytes")}, id="q3", title="Bytes", points=1, difficulty=1, minutes=1, answer="size", hints=("a", "b", "c")
)
"""
TRIPLING = {"kind": "values", "ending": "", "mutated": [], "values": {"result": 3.0}}
THREE_TWOS = {"length": 3, "entries": [2, 2, 2]}


def tripling():
    """A known mistake as a set holds it, made anew for each test."""
    return {"tripling": {"sentence": "this is <tripling>", "hint": 1, "prints": {"one": TRIPLING}}}


def entry(name, code, answer, stub, **options):
    plain = {"id": name, "title": f"Question {name}", "points": 4, "code": code, "answer": answer, "stub": stub}
    return {**plain, "has_hidden": False, "mistakes": {}, **options}


@pytest.fixture
def entries():
    stub = f"def double(x):\n    raise NotImplementedError({UNTOUCHED!r})"
    return [
        entry("q1", CODE, "double", stub, mistakes=tripling()),
        entry("q2", BUG, "twice", "def twice(x):\n    return x", has_hidden=True),
        entry("q3", VALUE, "size", "size = ..."),
    ]


@pytest.fixture
def notebook(entries):
    """A shell with `check` in it; `run(source)` runs a cell and gives what it displays as (text, HTML)."""
    InteractiveShell.clear_instance()
    main = sys.modules["__main__"]
    shell = InteractiveShell.instance()
    sys.modules["__main__"] = shell.user_module
    shell.user_ns["check"] = Checker("03_test", entries, seconds=0.5)
    yield shell
    InteractiveShell.clear_instance()
    sys.modules["__main__"] = main


def run(shell, source):
    with capture_output() as captured:
        done = shell.run_cell(source, store_history=True)
    done.raise_error()
    return [(output.data["text/plain"], output.data.get("text/html", "")) for output in captured.outputs]


def said(shell, question="q1"):
    [(text, _)] = run(shell, f'check("{question}")')
    return text


def test_a_right_answer_passes_and_is_shown_with_its_place(notebook):
    run(notebook, "import torch")
    run(notebook, "# a helper\n\ndef double(x):\n    return 2 * x")
    assert said(notebook).splitlines() == [
        "q1 · Doubling <fast>: passed, 4 points",
        "Graded: `double`, a function from cell [2], line 3.",
        "✓ one",
        "✓ two",
        "Progress: 1 of 3 questions passed.",
    ]


def test_a_named_mistake_is_diagnosed_with_its_hint(notebook, entries):
    entries[0]["mistakes"]["tripling"]["prints"]["two"] = {**TRIPLING, "values": {"result": THREE_TWOS}}
    run(notebook, "double = lambda x: 3 * x")
    lines = said(notebook).splitlines()
    assert lines[0] == "q1 · Doubling <fast>: not right yet, 0 of 2 checks passed"
    assert lines[1] == "Graded: `double`, a function from cell [1], line 1."
    assert lines[2:4] == ["Diagnosis: this is <tripling>", "Hint: an outline"]
    assert lines[4] == "✗ one: `result` is 3 where 2 is right."


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("1", "There is no `double` yet"),
        (f"def double(x):\n    raise NotImplementedError({UNTOUCHED!r})", "`double` is not written yet"),
        ("def double(x, y): return x", "cannot be called as the exercise asks"),
        ("def double(x):\n    return 1 / 0", "ZeroDivisionError: division by zero at your line 2: `return 1 / 0`."),
        ("def double(x):\n    while True: pass", "had not ended after 0.5 s"),
        ("def double(x): return None", "is None where a number is expected"),
        ("def double(x): return float('nan')", "is NaN where 2 is right"),
        ("def double(x): return {'result': {1}}", "is of type set"),
        ("class E:\n    __eq__ = lambda a, b: True\ndef double(x): return E()", "is of type E"),
        ("def double(x):\n    if type(x) is list: x += x; return x\n    return 2 * x", "changed its input `x`"),
        ("from torch import add as double", "✗"),
    ],
)
def test_every_failure_is_a_sentence_and_never_a_traceback(notebook, source, part):
    run(notebook, source)
    text = said(notebook)
    assert part in text
    assert "Traceback" not in text
    assert len([line for line in text.splitlines() if line.startswith("Progress: 0 of 3")]) == 1


def test_text_and_html_say_the_same_and_html_is_escaped(notebook):
    run(notebook, "class Evil(Exception): pass\ndef double(x):\n    raise Evil('<script>alert(1)</script> `</code>`')")
    [(text, page)] = run(notebook, 'check("q1")')
    assert "<script" not in page
    assert "Doubling &lt;fast&gt;" in page
    rows = re.findall(r"<div style=\"white-space[^>]*>(.*?)</div>", page, re.DOTALL)
    bare = [html.unescape(re.sub(r"<[^>]+>", "", row)) for row in rows]
    assert [row.replace("`", "") for row in bare] == [line.replace("`", "") for line in text.splitlines()]


def test_an_untouched_bug_hunt_is_known_by_its_source(notebook):
    run(notebook, "def twice(x):\n    return x")
    assert "q2 · A bug hunt: not written yet" in said(notebook, "q2")
    run(notebook, "def twice(x):\n    return x + x")
    assert "public checks passed; hidden ones, run by your instructor, decide on 4 points" in said(notebook, "q2")


def test_a_value_is_traced_to_the_cell_that_assigned_it(notebook):
    run(notebook, "size = 7")
    run(notebook, "if True:\n    size = 8")
    run(notebook, "other = size")
    lines = said(notebook, "q3").splitlines()
    assert lines[1] == "Graded: `size`, an int from cell [2], line 2."
    run(notebook, "size = ...")
    assert "not written yet" in said(notebook, "q3")


def test_a_redefined_answer_is_graded_anew(notebook):
    run(notebook, "def double(x): return 0")
    assert "not right yet" in said(notebook)
    run(notebook, "%time\ndef double(x): return 2 * x")
    assert "from cell [3], line 2" in said(notebook)


def test_cells_as_ipython_7_names_them_are_the_learners_too(notebook):
    """Colab's IPython compiles a cell as `<ipython-input-NUMBER-HASH>`."""
    source, file = "import math\ndef double(x):\n    return math.sqrt('4')", "<ipython-input-7-0a1b2c3d4e5f>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), notebook.user_ns)
    text = said(notebook)
    assert "Graded: `double`, a function from cell [7], line 2." in text
    assert "stopped with TypeError: must be real number, not str at your line 3: `return math.sqrt('4')`." in text


def test_a_class_shows_its_own_line(notebook, entries):
    entries[0]["code"] = CODE.replace("2 * x", "x")
    run(notebook, "import torch\n\nclass double(dict):\n    a = 1\n    def __init__(self, x): pass")
    assert "Graded: `double`, a class from cell [1], line 3." in said(notebook)


def test_progress_stays_and_hints_are_earned(notebook):
    run(notebook, "def double(x): return 5 * x")
    assert 'For a hint: `check("q1", hint=1)`.' in said(notebook)
    assert "Hint: a nudge" in said(notebook)
    assert recall("03_test") == {"q1": Record(2, False, 0.0)}
    run(notebook, "def double(x): return 2 * x")
    said(notebook)
    run(notebook, "def double(x): return 5 * x")
    said(notebook)
    assert recall("03_test")["q1"] == Record(3, True, 4)
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
    with pytest.raises(CourseError, match="hint=1, 2 or 3"):
        run(notebook, 'check("q1", hint=4)')
    with pytest.raises(CourseError, match="no question 'q9'; it has q1, q2, q3"):
        run(notebook, 'check("q9")')


def test_strict_mode_raises_after_showing(notebook, monkeypatch):
    monkeypatch.setenv("COURSE_STRICT", "1")
    settings.settings.cache_clear()
    run(notebook, "def double(x): return 5 * x")
    with pytest.raises(FailedCheckError, match="not right yet"):
        run(notebook, 'check("q1")')
    run(notebook, "def double(x): return 2 * x")
    assert said(notebook).startswith("q1 · Doubling <fast>: passed")


def test_with_points_they_are_returned_in_strict_mode_too(notebook, monkeypatch):
    monkeypatch.setenv("COURSE_STRICT", "1")
    settings.settings.cache_clear()
    run(notebook, "def double(x): return 5 * x\ngot = check('q1', points=True)")
    assert notebook.user_ns["got"] == 0
    run(notebook, "def double(x): return 2 * x\ngot = check('q1', points=True)")
    assert notebook.user_ns["got"] == 4


def test_plain_python_prints(entries, monkeypatch, capsys):
    monkeypatch.setattr(check_room, "_shell", lambda: None)
    monkeypatch.setattr(sys.modules["__main__"], "double", lambda x: 2 * x, raising=False)
    Checker("03_test", entries)("q1")
    assert capsys.readouterr().out.startswith("q1 · Doubling <fast>: passed, 4 points\nGraded: `double`")


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"q1": 1}', '{"q1": {"tries": -1}}', '{"q1": {"points": NaN}}', '{"q1": {"x": 1}}', "\xff"],
)
def test_a_damaged_progress_file_is_put_aside_and_said(content, caplog):
    remember("03_test", {"q1": Record(1, True, 2.0)})
    [path] = (settings.settings().home / "progress").iterdir()
    path.write_bytes(content.encode("latin-1"))
    with caplog.at_level(logging.WARNING):
        assert recall("03_test") == {}
    assert path.with_suffix(".damaged").read_bytes() == content.encode("latin-1")
    assert "could not be read" in caplog.text
    remember("03_test", {"q1": Record(1, True, 2.0)})
    assert recall("03_test") == {"q1": Record(1, True, 2.0)}


def test_progress_that_cannot_be_written_is_said(caplog):
    home = settings.settings().home
    home.parent.mkdir(parents=True, exist_ok=True)
    home.write_text("a file where a folder should be")
    with caplog.at_level(logging.WARNING):
        remember("03_test", {"q1": Record()})
    assert "will be forgotten" in caplog.text


def test_lines_that_bind_a_name():
    assert binding_line("a = 1\nwith b:\n    a: int = 2\ndef f():\n    a = 3", "a") == 3
    assert binding_line("import x.y\nfrom z import w as v", "x") == 1
    assert binding_line("import x.y\nfrom z import w as v", "v") == 2
    assert binding_line("a +=", "a") is None
    assert binding_line("b = a", "a") is None


def test_the_room_is_light_until_it_is_used():
    code = (
        "import sys, course_utils.grading as g; print('torch' in sys.modules, g.Case.__name__, 'torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert found.split() == ["False", "Case", "False"]
    with pytest.raises(AttributeError, match="no attribute 'quiz'; it has"):
        _ = grading.quiz
    assert {"exercise", "stream", "Case"} <= set(dir(grading))


def test_only_the_first_failures_are_told_in_full():
    verdicts = tuple(
        Verdict(f"case {number}", number == 3, "" if number == 3 else f"off by {number}") for number in range(9)
    )
    lines = [line.text for line in showing.case_lines(verdicts)]
    assert lines[:3] == ["case 0: off by 0", "case 1: off by 1", "case 2: off by 2"]
    assert lines[3:] == ["case 4: off by 4", "case 5: off by 5", "3 more: case 6 · case 7 · case 8", "case 3"]


def test_cases_that_end_alike_share_a_line():
    failed = (Verdict("a", False, "stopped"), Verdict("b", False, "off by 1"), Verdict("c", False, "stopped"))
    opened = (Verdict("d", False, "is still `...`", kind="untouched"),)
    passed = tuple(Verdict(f"case {number}", True) for number in range(6))
    lines = showing.case_lines((*failed, *opened, *passed))
    assert [(line.kind, line.text) for line in lines] == [
        ("failed", "a · c: stopped"),
        ("failed", "b: off by 1"),
        ("open", "d: is still `...`"),
        ("passed", "case 0 · case 1 · case 2 · case 3 · case 4 · case 5"),
    ]
    [alone] = showing.case_lines((failed[0], failed[2]))
    assert alone == showing.Line("failed", "stopped")
