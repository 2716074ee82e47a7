"""Of the room: the class of the instructors' guide, made anew, graded anew, and the guide shows what came out."""

import json
import tempfile
from pathlib import Path

import class_of_twenty as twenty
import pytest

from course_staff.release.source import load_solutions
from course_utils.grading.loading import load_set


@pytest.fixture(scope="module")
def submissions():
    return twenty.submissions(load_solutions(twenty.ROOT / "solutions" / f"{twenty.SET}.ipynb"))


def test_the_program_writes_nineteen_and_a_day_later_the_twentieth(tmp_path, monkeypatch):
    for options, count in ((), 19), (("--late",), 20):
        monkeypatch.setattr("sys.argv", ["class_of_twenty.py", str(tmp_path / "class"), *options])
        twenty.run()
        assert len(list((tmp_path / "class").iterdir())) == count


def test_the_guide_names_what_each_handed_in(submissions):
    for student, (description, _) in submissions.items():
        assert f"| {student} | {description} |" in twenty.in_guide(), (
            "run `python tests/staff/class_of_twenty.py --write`"
        )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("safe_kind")
def test_the_class_is_graded_as_the_guide_shows_it(submissions, tmp_path):
    text, _ = twenty.grade_twice(tmp_path / "class")
    results = tmp_path / "class-results"
    records = {record["student"]: record for record in json.loads((results / "results.json").read_text("utf-8"))}
    maximum = sum(entry["points"] for entry in load_set(twenty.SET)["questions"])
    full = [student for student, record in records.items() if record["points"] == maximum]
    assert full == ["student-01", "student-02", "student-03", "student-04", "student-20"]
    assert [records[f"student-{number:02}"]["points"] for number in (6, 17, 18)] == [0, 0, 0]
    assert all(question["points"] < question["max_points"] for question in records["student-14"]["questions"]), (
        "a part of a question may be right"
    )
    for number, question in enumerate(list(records["student-01"]["questions"])[:7], start=7):
        record = records[f"student-{number:02}"]
        assert [entry["id"] for entry in record["questions"] if entry["points"] < entry["max_points"]] == [
            question["id"]
        ]
    for name, question_id in (("student-15", "q1"), ("student-16", "q1"), ("student-19", "q5")):
        assert [entry["id"] for entry in records[name]["questions"] if entry["points"] < entry["max_points"]] == [
            question_id
        ]
    assert not Path(tempfile.gettempdir(), "was-here").exists()
    assert len(list((results / "students").glob("*.html"))) == 20
    assert text == twenty.in_guide(), "run `python tests/staff/class_of_twenty.py --write`"
