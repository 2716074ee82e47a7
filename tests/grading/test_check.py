"""`check("q1")` as a learner meets it: in IPython's shell, in plain Python, with progress, and in strict mode."""

import html
import json
import linecache
import os
import re
import subprocess
import sys

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from course_utils import grading, settings
from course_utils.cli import main
from course_utils.errors import CourseError
from course_utils.grading import check as check_room
from course_utils.grading import showing
from course_utils.grading.check import Checker, FailedCheckError
from course_utils.grading.definition import binding_line
from course_utils.grading.judge import Verdict
from course_utils.grading.progress import Attempts, recall, remember
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


def text_of(shell, question="q1"):
    [(text, _)] = run(shell, f'check("{question}")')
    return text


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
    again = [text_of(notebook).splitlines()[3] for _ in range(2)]
    assert again == ["Hint: an outline"] * 2, "the mistake's own hint, from the second try on"


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
def test_what_nobody_can_ask_for_is_one_sentence_and_an_error_where_a_program_asks(
    notebook, call, message, monkeypatch
):
    [(text, _)] = run(notebook, f"check({call})")
    assert message in text
    with pytest.raises(CourseError, match=re.escape(message)):
        run(notebook, f"check({call}, points=True)")
    monkeypatch.setenv("COURSE_STRICT", "1")
    settings.settings.cache_clear()
    with pytest.raises(CourseError, match=re.escape(message)):
        run(notebook, f"check({call})")


def test_strict_mode_raises_after_showing(notebook, monkeypatch):
    monkeypatch.setenv("COURSE_STRICT", "1")
    settings.settings.cache_clear()
    run(notebook, "def double(x): return 5 * x")
    with pytest.raises(FailedCheckError, match="not right yet"):
        run(notebook, 'check("q1")')
    run(notebook, "def double(x): return 2 * x")
    assert text_of(notebook).startswith("q1 · Doubling <fast>: passed")


def test_with_points_they_are_returned_in_strict_mode_too(notebook, monkeypatch):
    monkeypatch.setenv("COURSE_STRICT", "1")
    settings.settings.cache_clear()
    run(notebook, "def double(x): return 5 * x\ngot = check('q1', points=True)")
    assert notebook.user_ns["got"] == 0
    run(notebook, "def double(x): return 2 * x\ngot = check('q1', points=True)")
    assert notebook.user_ns["got"] == 4


def test_plain_python_prints(entries, monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "IPython")
    monkeypatch.setattr(sys.modules["__main__"], "double", lambda x: 2 * x, raising=False)
    Checker("03_test", entries)("q1")
    assert capsys.readouterr().out.startswith("q1 · Doubling <fast>: passed, 4 points\nGraded: `double`")


def test_lines_that_bind_a_name():
    assert binding_line("a = 1\nwith b:\n    a: int = 2\ndef f():\n    a = 3", "a") == 3
    assert binding_line("import x.y\nfrom z import w as v", "x") == 1
    assert binding_line("import x.y\nfrom z import w as v", "v") == 2
    assert binding_line("a +=", "a") is None
    assert binding_line("b = a", "a") is None


def test_the_room_is_light_until_it_is_used():
    code = (
        "import sys, course_utils.grading as g; heavy = {'torch', 'jaxtyping'}; "
        "print(heavy & set(sys.modules), g.Case.__name__, heavy & set(sys.modules))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert output == "set() Case set()\n"
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


SOLUTION = """# EXERCISE q1
def double(x):
    ### BEGIN SOLUTION
    return x + x  # no `product`
    ### END SOLUTION
    ### BEGIN STUB
    # return ...
    ### END STUB
"""


@pytest.fixture
def solutions(tmp_path, monkeypatch):
    """A checkout whose `solutions/` hold the test's set; its folder is where the notebook runs."""
    for folder in ("notebooks", "course_utils", "solutions"):
        (tmp_path / folder).mkdir()
    path = tmp_path / "solutions" / "03_test.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": SOLUTION.splitlines(keepends=True)}]}))
    monkeypatch.chdir(tmp_path)
    return path


def ask(shell, words="solution=True"):
    [(text, page)] = run(shell, f'check("q1", {words})')
    return text, page


def test_before_a_try_the_solution_is_kept_and_the_way_to_it_is_told(notebook, solutions):
    text, _ = ask(notebook)
    assert "x + x" not in text
    assert "First check your own answer" in text
    assert '`check("q1", solution="anyway")`' in text
    assert not recall("03_test")
    run(notebook, f"# EXERCISE q1\ndef double(x):\n    raise NotImplementedError({UNTOUCHED!r})")
    text_of(notebook)
    assert "x + x" not in ask(notebook)[0], "a check of what was handed out is no try"
    assert 'ask for solution=True, or for solution="anyway"' in ask(notebook, 'solution="now"')[0]


def test_after_a_failed_try_the_solution_stands_beside_the_answer(notebook, solutions):
    run(notebook, "# EXERCISE q1\ndef double(x):\n    return x < x")
    text_of(notebook)
    text, page = ask(notebook)
    assert text.splitlines()[2:] == [
        "  # EXERCISE q1",
        "  def double(x):",
        "−     return x < x",
        "+     return x + x  # no `product`",
        "The question now counts as seen.",
    ]
    rows = re.findall(r"<div style=\"white-space[^>]*>(.*?)</div>", page, re.DOTALL)
    assert [html.unescape(re.sub(r"<[^>]+>", "", row)) for row in rows] == text.splitlines()
    assert "return x &lt; x" in page
    run(notebook, SOLUTION.replace("    ### BEGIN SOLUTION\n", "").partition("    ### END")[0])
    assert "They are the same, line by line." in ask(notebook)[0].splitlines()


def test_who_saw_the_solution_first_earns_nothing_more_and_is_told_so(notebook, solutions, entries):
    run(notebook, "def double(x):\n    return 5 * x")
    text_of(notebook)
    ask(notebook)
    run(notebook, "def double(x):\n    return 2 * x")
    lines = text_of(notebook).splitlines()
    assert lines[0] == "q1 · Doubling <fast>: right, and counted as seen, because our solution was shown before"
    assert lines[-1] == "Progress: 0 of 3 questions passed, 1 solution seen."
    assert recall("03_test")["q1"] == Attempts(1, False, 0.0, seen=True)
    assert "○ q1 · Question q1 · 4 points · solution seen" in run(notebook, "check()")[0][0]


def test_what_was_earned_before_stands(notebook, solutions):
    run(notebook, "def double(x):\n    return 2 * x")
    assert 'Compare with our solution: `check("q1", solution=True)`.' in text_of(notebook)
    ask(notebook)
    run(notebook, "def double(x):\n    return 5 * x")
    text_of(notebook)
    run(notebook, "def double(x):\n    return 2 * x")
    assert text_of(notebook).startswith("q1 · Doubling <fast>: passed, 4 points\n")
    assert recall("03_test")["q1"] == Attempts(1, True, 4, seen=True)
    assert "solution seen" not in run(notebook, "check()")[0][0]


def test_anyway_shows_it_beside_what_was_handed_out(notebook, solutions):
    text, _ = ask(notebook, 'solution="anyway"')
    assert f"−     raise NotImplementedError({UNTOUCHED!r})" in text.splitlines()
    assert "+     return x + x  # no `product`" in text.splitlines()
    assert recall("03_test")["q1"] == Attempts(seen=True)


def test_the_solution_is_mentioned_once_all_hints_are_seen(notebook, solutions):
    run(notebook, "def double(x):\n    return 5 * x")
    assert "solution=True" not in text_of(notebook)
    assert "solution=True" not in run(notebook, 'check("q1", hint=2)')[0][0]
    assert "solution=True" in run(notebook, 'check("q1", hint=3)')[0][0]
    assert text_of(notebook).count("solution=True") == 1


def test_where_no_solutions_were_handed_out_a_sentence_says_where_they_are(notebook, solutions):
    run(notebook, "def double(x):\n    return 2 * x")
    for content in (None, b"{", b'{"cells": []}'):
        solutions.unlink() if content is None else solutions.write_bytes(content)
        if content is None:
            assert "solution" not in text_of(notebook)
            assert "`solutions/03_test.ipynb` of the course's repository, and that file is not on" in ask(notebook)[0]
        else:
            assert "holds no solution of q1; restore it" in ask(notebook)[0]
    assert not recall("03_test")["q1"].seen


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


def attempt(shell, source):
    """Run a cell that may fail, as a learner does."""
    with capture_output():
        shell.run_cell(source, store_history=True)


@pytest.fixture
def saved(tmp_path, monkeypatch, entries):
    """`save(answer)` writes the notebook as it stands at that moment; its kernel runs in the same folder."""
    monkeypatch.setattr(check_room, "load_set", lambda name: {"questions": entries[:1]})
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "03_exercises_test.ipynb"

    def save(answer, at):
        cells = [{"cell_type": "code", "source": f"# EXERCISE q1\n{answer}"}]
        path.write_text(json.dumps({"cells": cells}))
        os.utime(path, (at, at))
        return path

    return save


def looked(path):
    [(result, _)] = check_room.check_notebook(path, "03_test")
    return result.passed


STUB = f"def double(x):\n    raise NotImplementedError({UNTOUCHED!r})"
RIGHT, WRONG = "def double(x):\n    return 2 * x", "def double(x):\n    return 5 * x"


def test_a_file_older_than_what_was_checked_is_not_held_against_the_board(notebook, saved):
    path = saved(STUB, at=1)
    run(notebook, f"# EXERCISE q1\n{RIGHT}")
    assert "passed" in text_of(notebook)
    with pytest.raises(
        CourseError, match=r"What you checked .* not in its file yet \(q1\): save the notebook first \(Ctrl\+S\)"
    ):
        looked(path)
    assert recall("03_test")["q1"].passed
    assert looked(saved(RIGHT.replace("    ", "\t"), at=1)), "it holds that answer, whenever it was written"
    assert not looked(saved(WRONG, at=recall("03_test")["q1"].time + 1)), "saved later, with another answer"
    assert recall("03_test")["q1"].tries == 1
    other = saved(WRONG, at=1).rename(path.with_name("copy.ipynb"))
    assert not looked(other), "another notebook than the one that is open"


def test_jupyterlab_says_which_notebook_is_open(notebook, saved, monkeypatch):
    other = saved(STUB, at=1).rename("called otherwise.ipynb").absolute()
    monkeypatch.setenv("JPY_SESSION_NAME", str(other))
    run(notebook, f"# EXERCISE q1\n{RIGHT}")
    text_of(notebook)
    with pytest.raises(CourseError, match="save the notebook first"):
        looked(other)
    assert not looked(saved(STUB, at=1))


def test_a_check_in_the_terminal_is_no_newer_answer(saved):
    assert not looked(saved(WRONG, at=1))
    assert looked(saved(RIGHT, at=1))


def test_in_a_terminal_a_cell_is_named_by_what_stands_in_it(notebook, saved, capsys):
    path = saved(RIGHT, at=1)
    cells = json.loads(path.read_text())["cells"]
    broken = {"cell_type": "code", "source": "import torch\n1 / 0"}
    path.write_text(json.dumps({"cells": [broken, *cells]}))
    [(_, shown)] = check_room.check_notebook(path, "03_test")
    assert "Graded: `double`, a function from the cell of q1, line 2." in str(shown)
    first = capsys.readouterr().out
    assert first == "The cell that begins `import torch` stopped with ZeroDivisionError: division by zero\n"


def test_in_a_terminal_too_a_cell_that_stopped_is_no_answer_that_was_never_written(notebook, saved, capsys):
    path = saved(RIGHT.replace("return 2 * x", "return 2 * )"), at=1)
    [(_, shown)] = check_room.check_notebook(path, "03_test")
    lines = str(shown).splitlines()
    assert lines[0].endswith(": no verdict yet")
    assert lines[1] == "Its cell stopped with SyntaxError, so your `double` is not defined yet: fix that cell."
    assert re.search(
        r"^The cell of q1 stopped with SyntaxError: .*[^)] \(line 3\)$", capsys.readouterr().out, re.MULTILINE
    )


def test_the_terminals_last_line_counts_as_its_verdicts_do(notebook, saved, solutions, monkeypatch, capsys):
    monkeypatch.setattr("course_utils.grading.loading.set_names", lambda: ["03_test"])
    path = saved(RIGHT, at=1)
    assert main(["check", str(path), "--set", "03_test"]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"Checking .*\.ipynb as saved on 1970-01-0[12] at .*; unsaved changes are not included\.", first
    )
    assert last == "1 of 1 answers is right."
    remember("03_test", {"q1": Attempts(1, False, 0.0, seen=True)})
    assert main(["check", str(path), "--set", "03_test"]) == 0
    *_, before, _, last = capsys.readouterr().out.splitlines()
    assert before == "Progress: 0 of 1 questions passed, 1 solution seen."
    assert last == "1 of 1 answers is right, 1 of them after you saw its solution."
