"""What students and instructors read: how points come about, which mistakes are common, and what to do about each answer."""

import re
from pathlib import Path

from sample_records import question, record

from course_staff.grading import class_summary
from course_staff.grading.pages import RULE, RULE_OF_TESTS, class_page, student_page
from course_utils.grading.judge import points
from course_utils.grading.loading import load_set, question_from

GUIDE = (Path(__file__).parents[3] / "docs" / "instructors.md").read_text("utf-8")


def test_the_page_of_the_class_says_who_made_a_mistake():
    records = [
        record(name, question(diagnosis=sentence)) for name, sentence in [("ada", "A."), ("bo", "A."), ("cy", "B.")]
    ]
    page = class_page(records, "03_adamw", [])
    assert "q1: A.<details><summary>Who</summary>ada, bo</details>" in page


def test_the_rule_is_on_each_students_page_and_parts_are_marked():
    page = student_page(record("s", question(in_parts=True), question(2)))
    assert RULE in page
    assert page.count("0 of 2 points, in parts") == 1


def test_a_test_of_others_has_a_rule_of_its_own_which_is_that_of_its_points():
    """Right answers that are accepted earn nothing: where one of two wrong ones is refused, that is half of the points."""
    entry = next(entry for entry in load_set("03_adamw")["questions"] if entry["id"] == "q9")
    read = question_from(entry)
    expected = [{"verdict": word} for word in ("refused", "refused", "accepted", "accepted")]
    earned = [points(read, expected, passed) for passed in ([1, 0, 1, 1], [0, 0, 1, 1], [1, 1, 1, 0])]
    assert earned == [read.points / 2, 0, 0]
    page = student_page(record("s", question(9, in_parts=True, is_test=True)))
    assert RULE_OF_TESTS in page
    assert "in parts<" not in page
    assert page.count(", for what your test refuses") == 1
    assert RULE_OF_TESTS not in student_page(record("s", question(in_parts=True)))
    assert RULE_OF_TESTS.partition("accepting")[2] in GUIDE.replace("\n", " ")


def test_a_page_says_what_to_do_about_each_answer():
    assert "It is so." in student_page(record("s", question(state="untouched", kind="untouched")))
    empty_page = student_page(record("s", question(state="missing"), question(2, state="missing"), notes=["Why."]))
    assert "Hand in the notebook 03_exercises_adamw.ipynb" in empty_page
    assert "Why." in empty_page
    assert "q1" not in empty_page


def test_of_many_cases_that_are_right_a_page_says_how_many():
    passed = question(state="passed")
    page = student_page(record("s", {**passed, "public": passed["public"] * 25}))
    assert "All 25 public cases are right." in page


def test_what_is_empty_is_no_heading():
    empty = [question(number, state="untouched", kind="untouched") for number in range(1, 9)]
    page = student_page(record("s", *empty, question(9)))
    assert re.findall("<h2.*?>(.*?)</h2>", page) == ["What to look at next", "q9 · T", "Without an answer"]
    summary = class_summary.summary([record("s", *empty)], "03_adamw", [])
    assert [line for line in summary.splitlines() if line and not line.startswith(" ")][1:] == ["Nobody answered"]
    assert "<h2>q" not in class_page([record("s", *empty)], "03_adamw", [])


def test_a_page_says_what_to_look_at_next_what_is_wrong_before_what_is_not_written():
    wrong = question(3, public_diagnosis={"diagnosis": "The decay is left out.", "hint": ""})
    partly_right = record("s", question(1, state="untouched"), question(2, state="passed", points=2), wrong)
    steps = re.search("<ol>(.*?)</ol>", student_page(partly_right))[1]
    assert re.findall("<a href='#(.*?)'>", steps) == ["q3", "q1"]
    assert "The decay is left out." in steps
    assert "You have all points." in student_page(record("s", question(1, state="passed", points=2), points=2))


def test_a_comment_by_hand_stands_beside_the_diagnosis():
    entry = {"was": None, "comment": "Look at page 3."}
    wrong = question(1, public_diagnosis={"diagnosis": "The decay is left out.", "hint": ""}, by_hand=entry)
    unsaid = question(2, by_hand=entry)
    steps = re.findall("<li><a href='#q.'>q.</a>: (.*?)</li>", student_page(record("s", wrong, unsaid)))
    assert steps == ["The decay is left out. Comment: Look at page 3.", "Look at page 3."]


def test_who_was_not_graded_counts_for_nothing():
    ungraded = record("s", failed=True, max_points=4, notes=["Not graded, because."])
    assert class_summary.summary([ungraded], "03_adamw", []).startswith("03_adamw: 1 submission, 1 not graded\n")
    assert "No wrong answers" not in class_summary.summary([ungraded], "03_adamw", [])
    assert "<tfoot>" not in class_page([ungraded], "03_adamw", [])
    right = record("r", question(1, state="passed", points=2), question(2), points=2)
    page = class_page([ungraded, right], "03_adamw", [])
    means = re.findall("<td class='number'>(.*?)</td>", page.partition("<tfoot>")[2].partition("</tfoot>")[0])
    assert means == ["2.0", "2.0", "0.0"]
    assert ">not graded</td>" in page
    assert "03_adamw: 2 submissions, 50% of all points, 1 not graded" in page


def test_the_class_is_a_table_and_a_picture_that_says_what_it_shows():
    points = [0, 1, 5, 5, 6]
    passed = question(state="passed", points=2)
    graded = [
        record(f"s{day}", passed, points=count, max_points=6, graded=f"2026-05-0{day}T12:00+02:00")
        for day, count in enumerate(points, 1)
    ]
    page = class_page(graded, "03_adamw", [], title="Exercises 03")
    assert "<h1>Exercises 03: the class</h1>" in page
    assert not re.search(r"\.sheet\{[^}]*(max-)?height", page), "nobody is hidden in a box that scrolls by itself"
    assert "q1</a><br>of 2" in page
    assert "points<br>of 6" in page
    assert "Last graded on 5 May 2026, 12:00." in page
    (alt,) = re.findall("<img src='data:image/svg[^']*' alt='(.*?)'>", page)
    assert sorted(points)[len(points) // 2] == 5
    assert "The median is 5" in alt
    assert "q1: 100%" in alt
    counted = re.findall(r"([\d.]+) to ([\d.]+): (\d+)", alt)
    assert sum(int(count) for _, _, count in counted) == len(points)
    for low, high, count in counted:
        top = float(high) == 6
        assert int(count) == sum(float(low) <= p < float(high) or (top and p == 6) for p in points)
    hard = [question(1, difficulty=3), question(2, state="passed", difficulty=1)]
    page = class_page([record("s", *hard)], "03_adamw", [])
    assert "q1 · hard: 0%; q2 · easy: 100%" in page
