"""The folder of a grading: a table that was edited is kept, and git adds no grade."""

import subprocess

import pytest
from sample_records import question, record

from course_staff.grading.record import file_name
from course_staff.grading.results import Results
from course_utils.errors import CourseError


def test_a_table_that_was_edited_is_kept_beside_the_new_one(tmp_path, capsys):
    results = Results(tmp_path, "03_adamw")
    results.finish([record("a", question(1))], [])
    (tmp_path / "results.csv").write_text("points given by hand")
    results.finish([record("a", question(1))], [])
    assert "results.csv was edited after the last run; your version is saved in" in capsys.readouterr().err
    (copy,) = (tmp_path / "copies").glob("*/results.csv")
    assert copy.read_text() == "points given by hand"


def test_results_of_another_set_are_not_taken_up(tmp_path):
    Results(tmp_path, "03_adamw").save("a", record("a", question(1)))
    assert [*Results(tmp_path, "03_adamw").earlier()] == ["a"]
    with pytest.raises(CourseError, match="contains results of the set 03_adamw; name another folder with --out"):
        Results(tmp_path, "04_adafactor").earlier()


def test_git_adds_no_result_unless_the_instructor_wants_it(tmp_path):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    out = tmp_path / "class-results"

    def added():
        Results(out, "03_adamw").save("ann", {"points": 0, "max_points": 1, "notes": [], "questions": []})
        subprocess.run(["git", "add", "-A"], cwd=tmp_path, check=True)
        return subprocess.check_output(["git", "ls-files"], cwd=tmp_path, text=True).split()

    assert added() == []
    (out / ".gitignore").write_text("*.html\n")
    assert added() == ["class-results/.gitignore", f"class-results/records/{file_name('ann')}.json"]
