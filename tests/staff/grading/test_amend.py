"""Points by hand and late days: what instructors write is read, laid over every later grading, and never lost."""

import csv
import io
import json
import os
import random
import re
from datetime import datetime, timedelta, timezone

import pytest
from tiny_set import SEED, SET, submission, write_class

from course_staff.grading import report
from course_staff.grading.amend import read_amendments
from course_staff.grading.cells import csv_text, no_formula
from course_staff.grading.late import LateRule, due_time, kept
from course_utils.cli import main
from course_utils.errors import CourseError

WORTH = {"q1": 2, "q2": 1}
HEAD = "student,question,of,points,comment\n"


def question(name, points):
    whole = {"id": name, "title": "T", "points": points, "of": WORTH[name], "parts": False}
    said = {"case": "c", "passed": points > 0, "kind": "values", "sentence": "So.", "brief": "So."}
    lists = {"counted": [], "public": [said], "hidden": [], "not_run": 0, "notes": []}
    state = "passed" if points == WORTH[name] else "failed"
    return {**whole, **lists, "state": state, "diagnosis": "", "shown": {"diagnosis": "", "hint": ""}}


def record(student, q1=2, q2=1, file="f", **more):
    of = {"of": 3, "points": q1 + q2, "notes": [], "set": SET, "key": student, "file": file, "seed": SEED}
    return {"student": student, "questions": [question("q1", q1), question("q2", q2)], **of, **more}


def amended(folder, records, rows=None, late=None, **rule):
    if rows is not None:
        (folder / "by_hand.csv").write_text(rows, encoding="utf-8")
    if late is not None:
        (folder / "late.csv").write_text(late, encoding="utf-8")
    found = read_amendments(folder, [one["student"] for one in records], WORTH, **rule)
    found.keep(records)
    return {one["student"]: one for one in found.laid_over(records)}


def test_points_by_hand_take_the_place_of_the_graders_and_the_page_says_what_they_were(tmp_path):
    by = amended(tmp_path, [record("ann", q1=0), record("bo")], HEAD + 'ann,q1,,"1,5",Good `idea`.\nbo,q2,1,0,\n')
    assert (by["ann"]["points"], by["bo"]["points"]) == (1.5 + 1, 2 + 0)
    page = report.page(by["ann"])
    assert "1.5 of 2 points, by hand, was 0" in page
    assert page.count("Good <code>idea</code>.") == 2, "beside the points, and as what to look at next"
    assert "by hand" not in report.page(amended(tmp_path, [record("ann"), record("bo")], HEAD)["ann"])
    rows = list(csv.DictReader(io.StringIO(report.table(list(by.values())))))
    assert [(row["points"], row["q1"], row["q2"]) for row in rows] == [("2.5", "1.5", "1"), ("2.0", "2", "0.0")]
    assert "1.5 h" in report.summary_page(list(by.values()), SET, [])


def test_a_comment_alone_leaves_the_points(tmp_path):
    by = amended(tmp_path, [record("ann", q1=0)], HEAD + "ann,q1,,,See me.\n")
    assert by["ann"]["points"] == 1
    page = report.page(by["ann"])
    assert "See me." in page
    assert "by hand" not in page


def test_a_question_of_ones_own_raises_everybodys_maximum(tmp_path):
    by = amended(tmp_path, [record("ann"), record("bo")], HEAD + "ann,free,4,3,\n")
    assert [(by[name]["points"], by[name]["of"]) for name in ("ann", "bo")] == [(6, 7), (3, 7)]
    assert "not given yet, 0 of 4 points" in report.page(by["bo"])
    assert "<br>of 4" in report.summary_page(list(by.values()), SET, [])


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("zoe,q1,,1,", "row 2: there is no student 'zoe'"),
        ("ann,q9,,1,", "row 2: the set has no question 'q9'; write one of q1, q2"),
        ("ann,free,x,1,", "row 2: the set has no question 'free'"),
        ("ann,q1,,2.5,", "row 2: '2.5' are no points of q1; give a number from 0 to 2"),
        ("ann,q1,,-1,", "row 2: '-1' are no points"),
        ("ann,q1,,nan,", "row 2: 'nan' are no points"),
        ("ann,q1,,two,", "row 2: 'two' are no points"),
        ("\nann,q1,,1,\nann,q1,,2,", "row 4: 'ann' has points for q1 already"),
        ("ann,free,4,1,\nbo,free,5,1,", "row 3: free had 4 points above and has 5 here"),
    ],
)
def test_what_cannot_be_given_is_refused_with_its_row(tmp_path, row, says):
    with pytest.raises(CourseError, match=re.escape(says)):
        amended(tmp_path, [record("ann"), record("bo")], HEAD + row + "\n")


@pytest.mark.parametrize(
    "text", ["student;question;of;points;comment\nann;q1;;1,5;\n", "\ufeff" + HEAD + "ann,q1,,1.5,\n"]
)
def test_a_file_may_be_as_a_spreadsheet_saves_it(tmp_path, text):
    assert amended(tmp_path, [record("ann")], text)["ann"]["points"] == 2.5


def test_a_file_that_is_no_table_is_refused(tmp_path):
    with pytest.raises(CourseError, match="lacks the column 'student'"):
        amended(tmp_path, [record("ann")], "hello\n")
    (tmp_path / "by_hand.csv").write_bytes("student,question,points\nZoë,q1,1\n".encode("latin-1"))
    with pytest.raises(CourseError, match="CSV UTF-8"):
        amended(tmp_path, [record("ann")])


def test_the_template_gives_nothing_survives_a_spreadsheet_and_is_written_once(tmp_path):
    names = ["=cmd()", "a,b", "Zoë"]
    amended(tmp_path, [record(name) for name in names])
    text = (tmp_path / "by_hand.csv").read_text("utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["student"], row["question"], row["of"]) for row in rows[:2]] == [
        ("'=cmd()", "q1", "2"),
        ("'=cmd()", "q2", "1"),
    ]
    assert len(rows) == 2 * len(names)
    before = {name: one["points"] for name, one in amended(tmp_path, [record(name) for name in names]).items()}
    assert set(before.values()) == {3}, "an empty template changes nothing"
    filled = text.replace('"\'=cmd()","q1",2,"",""', '"\'=cmd()","q1",2,"0.5","x"')
    assert amended(tmp_path, [record(name) for name in names], filled)["=cmd()"]["points"] == 1.5
    assert (tmp_path / "by_hand.csv").read_text("utf-8") == filled


def test_late_rows_follow_what_is_handed_in_and_keep_what_was_entered(tmp_path):
    def rows():
        return [
            list(row.values()) for row in csv.DictReader(io.StringIO((tmp_path / "late.csv").read_text("utf-8-sig")))
        ]

    first = record("ann", handed_in="2026-05-04T13:20:00+00:00"), record("=bo", handed_in="2026-05-04T13:25:00+00:00")
    amended(tmp_path, first, due="2026-05-04T13:35+00:00")
    assert rows() == [["'=bo", "2026-05-04 13:25", "", ""], ["ann", "2026-05-04 13:20", "", ""]]
    entered = "student;days late;used before;remark\n'=bo;2;1;ill\nann;;;\n"
    amended(tmp_path, first, late=entered)
    assert (tmp_path / "late.csv").read_text("utf-8") == entered, "nothing is new"
    entered = "student,handed in,days late,used before\n'=bo,2026-05-04 13:25,2,1\nann,2026-05-04 13:20,,\n"
    again = (
        first[1],
        record("ann", handed_in="2026-05-04T13:53:00+00:00"),
        record("cy", handed_in="2026-05-04T13:54:00+00:00"),
    )
    by = amended(tmp_path, again, late=entered)
    assert {name: one["late"]["days"] for name, one in by.items()} == {"ann": 1, "=bo": 2, "cy": 1}
    assert rows() == [
        ["'=bo", "2026-05-04 13:25", "2", "1"],
        ["ann", "2026-05-04 13:53", "", ""],
        ["cy", "2026-05-04 13:54", "", ""],
    ]


@pytest.mark.parametrize(
    ("text", "added"),
    [
        (HEAD + "ann,q1,,1,", '\n"bo","q1",2,"",""\n"bo","q2",1,"",""\n'),
        ("Question;Student;Points\r\nq1;ann;1,5\r\n", '"q1";"bo";""\n"q2";"bo";""\n'),
    ],
)
def test_who_is_new_gets_rows_below_what_stands_there(tmp_path, text, added):
    (tmp_path / "by_hand.csv").write_bytes(text.encode("utf-8-sig"))
    before = amended(tmp_path, [record("ann")])
    assert (tmp_path / "by_hand.csv").read_bytes() == text.encode("utf-8-sig")
    for _ in range(2):
        assert amended(tmp_path, [record("ann"), record("bo")])["ann"] == before["ann"]
        assert (tmp_path / "by_hand.csv").read_bytes() == text.encode("utf-8-sig") + added.encode()


def test_extra_points_leave_every_maximum_alone(tmp_path):
    by = amended(tmp_path, [record("ann"), record("bo")], HEAD + "ann,bonus,0,2,Well.\n")
    assert [(by[name]["points"], by[name]["of"]) for name in ("ann", "bo")] == [(5, 3), (3, 3)]
    page = report.page(by["ann"])
    assert "2 extra points, by hand" in page
    assert "width:100.0%" in page
    assert "What to look at next" not in page
    assert "5" in report.summary_page(list(by.values()), SET, [])


def test_two_names_that_one_cell_could_mean_get_no_points_by_mistake(tmp_path):
    assert no_formula("=a") == "'=a"
    with pytest.raises(CourseError, match="no student"):
        amended(tmp_path, [record("=a"), record("'=a")], HEAD + "'=a,q1,,1,\n")


def test_points_by_hand_outlive_a_changed_submission_and_say_so(tmp_path):
    rows = HEAD + "ann,q1,,1,Well.\n"
    assert not amended(tmp_path, [record("ann", file="old")], rows)["ann"]["questions"][0]["by_hand"]["older"]
    later = amended(tmp_path, [record("ann", file="new")])["ann"]
    assert later["points"] == 2
    assert "given to an older file" in report.summary([later], SET, [])
    again = amended(tmp_path, [record("ann", file="new")], rows.replace("Well.", "Still well."))["ann"]
    assert "older file" not in report.summary([again], SET, [])


def test_late_days_never_give_points_and_never_cost_more_than_there_are():
    drawn = random.Random(3)
    for _ in range(2000):
        points, free, percent = drawn.uniform(0, 40), drawn.randrange(5), drawn.choice([0, 5, 10, 33.3, 100])
        left = [kept(points, days, free, percent) for days in range(20)]
        assert left[0] == round(points, 2)
        assert all(later <= before for before, later in zip(left, left[1:], strict=False))
        assert all(0 <= one <= round(points, 2) for one in left)
        for over in range(10):  # the rule as a person would say it: a day more, so many percent of the whole less
            by_steps = points
            for _ in range(over):
                by_steps = max(0.0, by_steps - points * percent / 100)
            assert kept(points, free + over, free, percent) == pytest.approx(by_steps, abs=0.006)


def test_a_day_that_has_begun_counts_in_any_time_zone():
    due = datetime(2026, 5, 4, 23, 59, tzinfo=timezone(timedelta(hours=2)))
    rule = LateRule(due.isoformat())
    for seconds, days in ((-86400, 0), (0, 0), (1, 1), (86400, 1), (86401, 2)):
        for hours in (-7, 0, 5):
            came = (due + timedelta(seconds=seconds)).astimezone(timezone(timedelta(hours=hours)))
            assert rule.days_late(came) == days
    assert datetime.fromisoformat(due_time("2026-05-04T23:59")).utcoffset() is not None
    with pytest.raises(CourseError, match="'soon' is no date and time"):
        due_time("soon")


def test_late_days_are_taken_off_the_whole_and_written_plainly(tmp_path):
    due = "2026-05-04T23:59+00:00"
    came = {"ann": "2026-05-04T12:00:00+00:00", "bo": "2026-05-07T12:00:00+00:00", "cy": "2026-05-05T00:00:00+00:00"}
    records = [record(name, handed_in=time) for name, time in came.items()]
    by = amended(tmp_path, records, due=due, days=1, percent=20.0)
    assert {name: one["points"] for name, one in by.items()} == {"ann": 3, "bo": 1.8, "cy": 3}
    assert "40 % of the 3 points earned were taken off" in report.page(by["bo"])
    assert "covered by late days" in report.page(by["cy"])
    assert "Handed in on time." in report.page(by["ann"])
    rows = list(csv.DictReader(io.StringIO(report.table(list(by.values())))))
    assert [(row["points"], row["days late"], row["before late days"]) for row in rows] == [
        ("3.0", "0", "3"),
        ("1.8", "3", "3"),
        ("3.0", "1", "3"),
    ]
    told = "student,days late,used before\nbo,0,\ncy,1,1\n"
    by = amended(tmp_path, records, late=told)
    assert {name: one["points"] for name, one in by.items()} == {"ann": 3, "bo": 3, "cy": 2.4}, (
        "the rule of the run before"
    )


def test_what_is_no_day_and_late_days_without_a_due_time_are_refused(tmp_path):
    with pytest.raises(CourseError, match="Late days need a due time"):
        amended(tmp_path, [record("ann")], days=2)
    for days in ("-1", "1.5", "x"):
        with pytest.raises(CourseError, match="row 2.*no number of days"):
            amended(tmp_path, [record("ann")], late=f"student,days late\nann,{days}\n", due="2026-05-04T23:59")


@pytest.mark.usefixtures("warm")
def test_the_command_reads_what_the_instructor_wrote_in_every_later_run(tiny, tmp_path, capsys):
    right = submission("# EXERCISE q1\ndef scale(x, factor):\n    return x * factor")
    paths = write_class(tmp_path / "class", {"ann": right, "bo": right})
    due = datetime(2026, 5, 4, 12).astimezone()
    for name, hours in (("ann", -1), ("bo", 30)):
        os.utime(paths[name], ((due + timedelta(hours=hours)).timestamp(),) * 2)
    grade = ["grade", str(tmp_path / "class"), "--set", SET, "--seed", str(SEED), "--solutions", str(tiny), "--trust"]
    assert main([*grade, "--due", "2026-05-04T12:00", "--per-day", "25"]) == 0
    out = tmp_path / "class-results"

    def points():
        return {
            row["student"]: float(row["points"]) for row in csv.DictReader((out / "results.csv").open(encoding="utf-8"))
        }

    whole = points()["ann"]
    assert points() == {"ann": whole, "bo": whole / 2}
    stored = json.loads(next((out / "records").glob("bo*.json")).read_text("utf-8"))
    assert stored["points"] == whole, "what the grader found stays"
    (out / "by_hand.csv").write_text(
        csv_text([["student", "question", "of", "points", "comment"], ["bo", "free", 4, 4, "!"]])
    )
    for more in ([], ["--again"]):
        assert main([*grade, *more]) == 0
        assert points() == {"ann": whole, "bo": (whole + 4) / 2}
    for hours, share in ((40, 1 / 2), (-1, 1)):  # a copy is younger than the file; a time that was set right counts
        os.utime(paths["bo"], ((due + timedelta(hours=hours)).timestamp(),) * 2)
        assert main(grade) == 0
        assert points() == {"ann": whole, "bo": (whole + 4) * share}
    (out / "by_hand.csv").write_text(HEAD + "nobody,q1,,1,\n")
    before = (out / "results.csv").read_bytes()
    capsys.readouterr()
    assert main(grade) == 2
    assert "by_hand.csv, row 2: there is no student 'nobody'" in capsys.readouterr().err
    assert (out / "results.csv").read_bytes() == before
