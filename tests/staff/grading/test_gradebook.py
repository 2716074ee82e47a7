"""A platform gets its own export back, with points for those whose submissions can be told, and a sentence on all others."""

import csv
import io

import pytest
from tiny_set import SET, notebook, submission

from course_staff.grading.gradebook import read_gradebook
from course_staff.grading.results import Results
from course_utils.cli import main
from course_utils.errors import CourseError

CANVAS = """\ufeffStudent,ID,SIS User ID,SIS Login ID,Section,Essay (77),99_test (78),Final Score
    Points Possible,,,,,10,3,(read only)
"Abel, Ann",501,u1,ann@example.org,One,9,,90
"Beck, =Bo",502,u2,bo@example.org,One,8,2,80
"Cook, Cy",503,u3,Cy,Two,7,1,70
"""
MOODLE = """Identifier,Full name,Email address,Status,Grade,Maximum Grade,Last modified (grade),Feedback comments
Participant 41,Ann Abel,ann@example.org,Submitted,,3.00,-,
Participant 42,Bo Beck,bo@example.org,Submitted,1.00,3.00,"Monday, 3 March 2025, 10:00 AM",Well done
"""


def records(**points):
    return [
        {"student": student.replace("__", "/"), "points": count, "max_points": 3} for student, count in points.items()
    ]


def fill(tmp_path, export, graded, name="99_test"):
    (tmp_path / "export.csv").write_text(export, encoding="utf-8")
    text, remarks = read_gradebook(tmp_path / "export.csv").fill(graded, name)
    return list(csv.reader(io.StringIO(text))), remarks


def test_canvas_gets_the_columns_of_a_student_and_the_assignment_called_as_the_set(tmp_path):
    rows, remarks = fill(tmp_path, CANVAS, records(abelann_501_9001_99_test=3, beckbo_LATE_502_9002_99_test=1.5))
    assert rows == [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "99_test (78)"],
        ["    Points Possible", "", "", "", "", "3"],
        ["Abel, Ann", "501", "u1", "ann@example.org", "One", "3"],
        ["Beck, =Bo", "502", "u2", "bo@example.org", "One", "1.5"],
    ]
    assert remarks == ["Without points, and so without a row: 1 student of export.csv, Cook, Cy."]


def test_without_such_an_assignment_canvas_gets_a_new_column_and_its_worth(tmp_path):
    rows, _ = fill(tmp_path, CANVAS.replace("99_test (78)", "Other (78)"), records(u3=2))
    assert [row[-1] for row in rows] == ["99_test", "3", "2"]


def test_a_submission_is_found_by_a_file_or_a_folder_called_as_a_student(tmp_path):
    graded = records(u1=1, cy__99_test=2) + [
        {"student": "BO@example.org/99_test/99_test", "points": 3, "max_points": 3}
    ]
    rows, _ = fill(tmp_path, CANVAS, graded)
    assert {row[1]: row[-1] for row in rows[2:]} == {"501": "1", "502": "3", "503": "2"}


def test_whoever_cannot_be_told_is_named_and_left_out(tmp_path):
    ungraded = {"student": "u3", "points": 0, "max_points": 3, "failed": True}
    rows, remarks = fill(tmp_path, CANVAS, [*records(stranger=3, u1=1, ann_501_1_99_test=3, u2=2), ungraded])
    assert [row[1] for row in rows[2:]] == ["502"]
    assert remarks == [
        "Left out, not graded, because the grader itself failed: u3.",
        "Left out, not in export.csv: stranger.",
        "Left out, several for one student, or one for several: u1, ann_501_1_99_test.",
        "Without points, and so without a row: 2 students of export.csv, Abel, Ann; Cook, Cy.",
    ]


def test_where_nobody_is_found_no_file_is_promised(tmp_path):
    (tmp_path / "export.csv").write_text(MOODLE, encoding="utf-8")
    report, is_written = Results(tmp_path, "99_test").fill(read_gradebook(tmp_path / "export.csv"), records(stranger=3))
    assert not is_written
    assert report[-1].startswith("No moodle.csv was written: no submission is named after a student in export.csv;")
    assert "Email address" in report[-1]
    assert not (tmp_path / "moodle.csv").exists()


def test_an_assignment_that_is_worth_something_else_is_said(tmp_path):
    _, remarks = fill(tmp_path, CANVAS.replace("10,3,", "10,100,"), records(u1=1, u2=1, u3=1))
    assert remarks == [
        "The platform's assignment is worth 100 points and the set 3: points are written as they are, not scaled."
    ]


def test_moodle_gets_the_grade_beside_what_its_import_reads(tmp_path):
    graded = [{"student": "Ann Abel_41_assignsubmission_file_/99_test", "points": 2.25, "max_points": 3}]
    rows, remarks = fill(tmp_path, MOODLE, [*graded, *records(**{"bo@example.org": 3})])
    assert rows[0] == [
        "Identifier", "Full name", "Email address", "Maximum Grade", "Last modified (grade)", "Grade",
    ]  # fmt: skip
    assert [row[0] + ": " + row[-1] for row in rows[1:]] == ["Participant 41: 2.25", "Participant 42: 3"]
    assert rows[2][4] == "Monday, 3 March 2025, 10:00 AM"
    assert remarks == []


@pytest.mark.parametrize("start", ["=1+1", "+1", "-1", "@x", "\t=1"])
@pytest.mark.parametrize(("export", "name"), [(CANVAS, "Abel, Ann"), (MOODLE, "Ann Abel")], ids=["canvas", "moodle"])
def test_no_cell_is_taken_for_a_formula(tmp_path, export, name, start):
    rows, _ = fill(tmp_path, export.replace(name, start), records(**{"ann@example.org": 1}))
    assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for row in rows for cell in row)


def test_a_semicolon_between_cells_stays_one(tmp_path):
    (tmp_path / "export.csv").write_text('Student;ID;Section\n"Abel, Ann";501;One\n')
    text, _ = read_gradebook(tmp_path / "export.csv").fill(records(**{"501": 1.5}), "99_test")
    assert text == '"Student";"ID";"Section";"99_test"\n"Abel, Ann";"501";"One";1.5\n'


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"\xff\xfe\x00", b"Student,ID\n"])
def test_a_file_that_is_no_export_is_answered_with_how_to_get_one(tmp_path, content):
    (tmp_path / "x.csv").write_bytes(content)
    message = "x.csv is not an export that can be filled in; export the gradebook of Canvas"
    with pytest.raises(CourseError, match=message):
        read_gradebook(tmp_path / "x.csv")
    with pytest.raises(CourseError, match="cannot be read"):
        read_gradebook(tmp_path / "none.csv")


@pytest.mark.usefixtures("warm_lanes")
def test_the_command_writes_the_filled_file_beside_the_results(tmp_path, tiny_solutions, capsys):
    (tmp_path / "class").mkdir()
    right = submission("# EXERCISE q1\ndef scale(x, factor):\n    return x * factor")
    (tmp_path / "class" / "u1.ipynb").write_text(right)
    (tmp_path / "class" / "stranger.ipynb").write_text(notebook())
    (tmp_path / "export.csv").write_text(CANVAS.replace("99_test", SET), encoding="utf-8")
    grade = ["grade", str(tmp_path / "class"), "--set", SET, "--trust", "--jobs", "1"]
    assert main(grade) == 0
    assert not (tmp_path / "class-results" / "canvas.csv").exists()
    assert main([*grade, "--gradebook", str(tmp_path / "export.csv")]) == 0
    assert "2 of 2 were graded before" in (captured := capsys.readouterr()).err
    assert "Left out, not in export.csv: stranger." in captured.out
    rows = list(csv.reader((tmp_path / "class-results" / "canvas.csv").open(newline="")))
    assert rows[-1][0] == "Abel, Ann"
    assert float(rows[-1][-1]) > 0
    assert "earlier run" not in captured.out
    (tmp_path / "class-results" / "by_hand.csv").write_text("student,question,points\nu1,q1,0\n")
    assert main(grade) == 0
    assert "\ncanvas.csv is from an earlier run; use --gradebook" in capsys.readouterr().out
    (tmp_path / "other.csv").write_text(CANVAS.replace("99_test", SET).replace("u1", "v1"), encoding="utf-8")
    assert main([*grade, "--gradebook", str(tmp_path / "other.csv")]) == 1
    assert "canvas.csv is from an earlier run.\n" in capsys.readouterr().out
    assert list(csv.reader((tmp_path / "class-results" / "canvas.csv").open(newline=""))) == rows
