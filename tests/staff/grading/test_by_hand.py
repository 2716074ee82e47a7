"""Points and comments by hand: what an instructor writes is read, laid over every later grading, and never lost."""

import csv
import io
import json
import re

import pytest
import sample_records
from sample_records import question
from tiny_set import SET, submission

from course_staff.grading.by_hand import FILE, read_by_hand, with_points_by_hand
from course_staff.grading.pages import class_page, student_page
from course_staff.grading.results import table
from course_utils.errors import CourseError

WORTH = {"q1": 2, "q2": 1}
HEAD = "student,question,points,comment\n"


def record(student, q1=2, q2=1):
    states = ["passed" if points == worth else "failed" for points, worth in zip((q1, q2), WORTH.values(), strict=True)]
    questions = question(1, states[0], points=q1), question(2, states[1], points=q2, max_points=1)
    return sample_records.record(student, *questions, points=q1 + q2, max_points=3)


def amended(folder, records, rows):
    (folder / FILE).write_text(rows, encoding="utf-8")
    corrections = read_by_hand(folder / FILE, [record["student"] for record in records], WORTH)
    return {record["student"]: with_points_by_hand(record, corrections) for record in records}


def test_points_by_hand_replace_the_graders_and_the_page_names_both(tmp_path):
    by = amended(tmp_path, [record("ann", q1=0), record("bo")], HEAD + 'ann,q1,"1,5",Good `idea`.\nbo,q2,0,\n')
    assert (by["ann"]["points"], by["bo"]["points"]) == (1.5 + 1, 2 + 0)
    page = student_page(by["ann"])
    assert "1.5 of 2 points, by hand, was 0" in page
    assert page.count("Good <code>idea</code>.") == 2, "beside the points, and as what to look at next"
    assert "by hand" not in student_page(record("ann"))
    rows = list(csv.DictReader(io.StringIO(table(list(by.values())))))
    assert [(row["points"], row["q1"], row["q2"]) for row in rows] == [("2.5", "1.5", "1"), ("2.0", "2", "0.0")]
    assert "1.5 h" in class_page(list(by.values()), SET, [])


def test_a_comment_alone_leaves_the_points(tmp_path):
    by = amended(tmp_path, [record("ann", q1=0)], HEAD + "ann,q1,,See me.\n")
    assert by["ann"]["points"] == 1
    page = student_page(by["ann"])
    assert "See me." in page
    assert "by hand" not in page


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("zoe,q1,1,", "row 2: there is no student 'zoe'"),
        ("ann,q9,1,", "row 2: the set has no question 'q9'; write one of q1, q2"),
        ("ann,q1,2.5,", "row 2: '2.5' is not a number of points for q1; give a number from 0 to 2"),
        ("ann,q1,-1,", "row 2: '-1' is not a number of points"),
        ("ann,q1,nan,", "row 2: 'nan' is not a number of points"),
        ("ann,q1,two,", "row 2: 'two' is not a number of points"),
        ("\nann,q1,1,\nann,q1,2,", "row 4: 'ann' already has a row for q1"),
    ],
)
def test_what_cannot_be_given_is_refused_with_its_row(tmp_path, row, says):
    with pytest.raises(CourseError, match=re.escape(says)):
        amended(tmp_path, [record("ann"), record("bo")], HEAD + row + "\n")


@pytest.mark.parametrize(
    "text",
    ["Student;question;points;comment\nann;q1;1,5;\n", "\ufeff" + HEAD + "ann,q1,1.5,\n", HEAD + "ann,q1, 1.5\n"],
)
def test_a_file_may_be_as_a_spreadsheet_saves_it(tmp_path, text):
    assert amended(tmp_path, [record("ann")], text)["ann"]["points"] == 2.5


def test_a_file_that_is_no_table_is_refused(tmp_path):
    for text in ("hello\n", ""):
        with pytest.raises(CourseError, match="has no column 'student'"):
            amended(tmp_path, [record("ann")], text)
    (tmp_path / FILE).write_bytes("student,question,points\nZoë,q1,1\n".encode("latin-1"))
    with pytest.raises(CourseError, match="CSV UTF-8"):
        read_by_hand(tmp_path / FILE, ["Zoë"], WORTH)


def test_names_are_found_as_results_csv_has_them_whatever_they_look_like(tmp_path):
    for name in ("=cmd()", "a,b", "Zoë"):
        (row,) = csv.DictReader(io.StringIO(table([record(name)])))
        by = amended(tmp_path, [record(name)], f'{HEAD}"{row["student"]}",q1,0,\n')
        assert by[name]["points"] == 1


@pytest.mark.usefixtures("warm_lanes")
def test_the_command_reads_what_the_instructor_wrote_in_every_later_run(run_command, write_class, tmp_path, capsys):
    write_class({"ann": submission("# EXERCISE q1\ndef scale(x, factor):\n    return x * factor")})
    assert run_command() == 0
    out = tmp_path / "class-results"
    (out / FILE).write_text(HEAD + "ann,q2,0,Copied.\n")
    for options in ([], ["--again"]):
        assert run_command(*options) == 0
        (row,) = csv.DictReader((out / "results.csv").open(encoding="utf-8"))
        assert row["points"] == "2.0"
    record = json.loads(next((out / "records").glob("ann*.json")).read_text("utf-8"))
    assert record["points"] == 3, "what the grader found stays"
    (out / FILE).write_text(HEAD + "nobody,q1,1,\n")
    before = (out / "results.csv").read_bytes()
    capsys.readouterr()
    assert run_command() == 2
    assert "by_hand.csv, row 2: there is no student 'nobody'" in capsys.readouterr().err
    assert (out / "results.csv").read_bytes() == before
