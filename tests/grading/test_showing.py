"""Which cases a check tells in full, and which share a line."""

from course_utils.grading import showing
from course_utils.grading.judge import Verdict


def test_only_the_first_failures_are_told_in_full():
    sentences = [f"off by {number}" if number != 3 else "" for number in range(9)]
    verdicts = [Verdict(f"case {number}", not sentence, sentence) for number, sentence in enumerate(sentences)]
    lines = [line.text for line in showing.case_lines(verdicts)]
    assert lines[:3] == ["case 0: off by 0", "case 1: off by 1", "case 2: off by 2"]
    assert lines[3:] == ["case 4: off by 4", "case 5: off by 5", "3 more: case 6 · case 7 · case 8", "case 3"]


def test_cases_that_end_alike_share_a_line():
    failures = (Verdict("a", False, "stopped"), Verdict("b", False, "off by 1"), Verdict("c", False, "stopped"))
    opened = (Verdict("d", False, "is still `...`", kind="untouched"),)
    passed = tuple(Verdict(f"case {number}", True) for number in range(6))
    lines = showing.case_lines((*failures, *opened, *passed))
    assert [(line.kind, line.text) for line in lines] == [
        ("failed", "a · c: stopped"),
        ("failed", "b: off by 1"),
        ("open", "d: is still `...`"),
        ("passed", "case 0 · case 1 · case 2 · case 3 · case 4 · case 5"),
    ]
    [shared] = showing.case_lines((failures[0], failures[2]))
    assert shared == showing.Line("failed", "stopped")
