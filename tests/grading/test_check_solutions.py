"""Our solution beside the learner's answer: when it is shown, and what it costs."""

import html
import re

import pytest
from checked_notebook import SOLUTION, run, text_of

from course_utils.grading.progress import Attempts, recall
from course_utils.grading.question import UNTOUCHED


def ask(shell, option="solution=True"):
    [(text, page)] = run(shell, f'check("q1", {option})')
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
    solutions.unlink()
    assert "solution" not in text_of(notebook)
    assert "`solutions/03_test.ipynb` of the course's repository, and that file is not on" in ask(notebook)[0]
    assert not recall("03_test")["q1"].seen


@pytest.mark.parametrize("content", [b"{", b'{"cells": []}'])
def test_a_damaged_file_of_solutions_is_named(notebook, solutions, content):
    run(notebook, "def double(x):\n    return 2 * x")
    text_of(notebook)
    solutions.write_bytes(content)
    assert "holds no solution of q1; restore it" in ask(notebook)[0]
    assert not recall("03_test")["q1"].seen
