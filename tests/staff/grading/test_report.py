"""What students and instructors read: how points come about, which mistakes are common, and what to do about each answer."""

import re
from pathlib import Path

import pytest

from course_staff.grading import report
from course_staff.grading.overview import HOW_IT_ENDED
from course_utils.grading.judge import KINDS, Outcome, points
from course_utils.grading.released import load_set, question_from, set_names

GUIDE = (Path(__file__).parents[3] / "docs" / "instructors.md").read_text("utf-8")


def question(number=1, state="failed", diagnosis="", kind="values", **more):
    said = {
        "case": "c",
        "passed": state == "passed",
        "kind": kind,
        **dict.fromkeys(("sentence", "brief"), "" if state == "passed" else "It is so."),
    }
    whole = {
        "id": f"q{number}",
        "title": "T",
        "points": 0,
        "of": 2,
        "parts": False,
        "state": state,
        "diagnosis": diagnosis,
    }
    shown = {
        "shown": {"diagnosis": "", "hint": ""},
        "counted": [],
        "public": [said],
        "hidden": [],
        "not_run": 0,
        "notes": [],
    }
    return {**whole, **shown, **more}


def record(student, *questions, notes=()):
    of = {
        "points": 0,
        "of": 2 * len(questions),
        "notes": list(notes),
        "set": "03_adamw",
        "key": student,
        "file": student,
    }
    return {"student": student, "questions": list(questions), **of}


def mistakes(*named):
    """The section of the commonest mistakes, where these are the named ones of one question, a submission each."""
    records = [record(f"s{number}", question(diagnosis=name)) for number, name in enumerate(named)]
    return report.summary(records, "03_adamw", []).partition("\nCommonest named mistakes")[2]


def test_the_commonest_mistakes_say_how_many_there_are_and_what_is_left_out():
    assert mistakes("", "") == ""
    assert "Each was made once" in mistakes("A.", "B.")
    assert mistakes("B.", "A.", "C.", "A.", "C.", "A.").splitlines() == [
        ": 2 of 3 were made more than once",
        "     3  q1: A.",
        "     2  q1: C.",
    ]
    many = [f"{chr(65 + i)}." for i in range(12)] * 2
    assert mistakes(*many).splitlines()[0] == ": 12 of 12 were made more than once, the first 10"
    assert [line[-2:] for line in mistakes(*many).splitlines()[1:]] == [f"{chr(65 + i)}." for i in range(10)]


@pytest.mark.parametrize("name", set_names())
def test_points_come_about_as_the_guide_says(name):
    for entry in load_set(name)["questions"]:
        kind = re.search(r"^question = (\w+)\(", entry["code"], re.MULTILINE)
        in_parts = ("account", "design", "timeline", "kills", "weighed")
        assert entry["parts"] == (kind is not None and kind[1] in in_parts), entry["id"]
        assert not (entry["parts"] and entry["has_hidden"]) or kind[1] == "kills", "a guide that says so would be wrong"
        asked = question_from(entry)
        if kind is None or kind[1] != "kills":
            cases = asked.cases()
            expected, passed = [asked.expected(case.inputs) for case in cases], [False, *[True] * (len(cases) - 1)]
            one_wrong = round(asked.points * (len(cases) - 1) / len(cases), 2) if entry["parts"] else 0
            assert points(asked, expected, passed) == one_wrong


def test_the_guides_examples_of_points_are_those_of_the_set():
    first, _, third = load_set("03_adamw")["questions"][:3]
    assert len(question_from(first).cases()) == 5
    assert (len(question_from(third).cases()), third["points"]) == (4, 4)
    for said in (
        "five public cases of 03's q1",
        "six hidden",
        "Three of four\nnumbers right in q3",
        "worth 4 points, earn 3",
    ):
        assert said in GUIDE


def test_the_rule_is_on_each_students_page_and_parts_are_marked():
    page = report.page(record("s", question(parts=True), question(2)))
    assert report.RULE in page
    assert page.count("0 of 2 points, in parts") == 1


def test_a_page_says_what_to_do_about_each_answer():
    assert "It is so." in report.page(record("s", question(state="untouched", kind="untouched")))
    nothing = report.page(record("s", question(state="missing"), question(2, state="missing"), notes=["Why."]))
    assert "Hand in the notebook 03_adamw.ipynb" in nothing
    assert "Why." in nothing
    assert "q1" not in nothing


def test_of_many_cases_that_are_right_a_page_says_how_many():
    passed = question(state="passed")
    page = report.page(record("s", {**passed, "public": passed["public"] * 25, "counted": ["bytes"]}))
    assert "All 25 public cases are right." in page
    assert "Counted by the process that ran your code, and not a second time: bytes." in page


def test_no_hint_goes_with_an_answer_that_never_ended():
    from course_utils.grading.judge import grade

    entry = load_set("03_adamw")["questions"][0]
    asked = question_from(entry)
    for kind, hinted in (("timeout", False), ("died", False), ("stuck", False), ("exception", True)):
        result = grade(asked, asked.cases(), [Outcome(kind, text="20 s")] * 5, entry, tries=2)
        assert bool(result.hint) == hinted, kind


def test_however_a_hidden_case_ends_there_are_words_for_it():
    assert set(HOW_IT_ENDED) == set(KINDS)
