"""A set as nbgrader's assignment: the sources hold nothing hidden, and nbgrader itself makes stubs and gives the points."""

import csv
import html
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from own_solutions import PATHS, solutions_of
from tiny_set import answered

from course_staff.notebooks.files import read_notebook
from course_staff.release.nbgrader import source_files
from course_staff.release.release import renew
from course_staff.release.source import apply_mistake, marker
from course_utils.cli import main
from course_utils.files import exercises_of
from course_utils.grading.loading import load_set

ROOT = Path(__file__).parents[3]
SETS = ["00_start_here", "03_adamw"]
FOR_ALL_SETS = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


@FOR_ALL_SETS
def test_every_answer_is_a_solution_and_every_check_a_locked_grade_worth_its_points(path, tmp_path):
    source, _ = source_files(path, tmp_path)
    cells = json.loads(source_files(path, tmp_path)[source])["cells"]
    kinds = {cell["id"]: cell["metadata"]["nbgrader"] for cell in cells if "nbgrader" in cell["metadata"]}
    assert all(name == kind["grade_id"] for name, kind in kinds.items())
    points = [kind["points"] for kind in kinds.values() if kind["grade"]]
    assert points == [entry["points"] for entry in load_set(path.stem)["questions"]]
    assert all(kind["locked"] is not kind["solution"] for kind in kinds.values())
    authored_by_id = {authored.question.id: authored for authored in solutions_of(path.stem)}
    answers = [cell for cell in cells if cell["metadata"].get("nbgrader", {}).get("solution")]
    assert [cell["metadata"]["course_stub"] for cell in answers] == [
        authored.stub for authored in authored_by_id.values()
    ]
    text = json.dumps(cells)
    assert not any(mark in text for mark in ("# HIDDEN", "# QUESTION", "def hidden"))


def test_an_instructors_configuration_stays_and_another_source_is_kept_as_a_copy(tmp_path, capsys):
    release = ["release", "00", "--nbgrader", str(tmp_path)]
    assert main(release) == 0
    (tmp_path / "nbgrader_config.py").write_text("c.CourseDirectory.course_id = 'ours'\n")
    source = tmp_path / "source" / SETS[0] / f"{SETS[0]}.ipynb"
    source.write_text("{}")
    capsys.readouterr()
    assert main(release) == 0
    assert "00_start_here.ipynb: written; old copy in " in capsys.readouterr().out
    assert "ours" in (tmp_path / "nbgrader_config.py").read_text()
    assert main([*release, "--check"]) == 0


def test_a_set_that_was_not_released_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("course_staff.release.nbgrader.digest_of", lambda path: "another")
    assert main(["release", "00", "--nbgrader", str(tmp_path)]) == 2
    assert "run `course release 00_start_here` first" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A course folder in which nbgrader has graded `right`, `stub`, `warned`, whose right answer warns, and `mistaken`, who
    made one known mistake in q2 of 03 and got a part of q3 right."""
    if not find_spec("nbgrader"):
        pytest.skip("nbgrader is not installed: pip install -e '.[nbgrader]'")
    place = tmp_path_factory.mktemp("nbgrader")
    for name in SETS:
        renew(source_files(ROOT / "solutions" / f"{name}.ipynb", place))
        run_nbgrader("generate_assignment", name, "--create", place=place)
        authored_by_id = {authored.question.id: authored for authored in solutions_of(name)}
        hand_in(place, name, "stub", {})
        answers = {key: authored.solution for key, authored in authored_by_id.items()}
        hand_in(place, name, "right", answers)
    warning = "t = len(gradients)"
    assert answers["q1"].count(warning) == 1
    warning = {"q1": answers["q1"].replace(warning, f"{warning}; __import__('warnings').warn('a warning')")}
    hand_in(place, SETS[1], "warned", warning)
    mistakes = {}
    for key, name in (("q2", "L2 in the gradient"), ("q3", "counters")):
        (mistakes[key],) = (mistake for mistake in authored_by_id[key].question.mistakes if mistake.name == name)
    wrong = {key: apply_mistake(authored_by_id[key].solution, mistake) for key, mistake in mistakes.items()}
    hand_in(place, SETS[1], "mistaken", wrong)
    for name in SETS:
        run_nbgrader("autograde", name, "--create", place=place)
        run_nbgrader("generate_feedback", name, place=place)
    run_nbgrader("export", place=place)
    return place, mistakes["q2"].sentence


@pytest.mark.slow
def test_nbgrader_hands_out_the_stubs(graded):
    place, _ = graded
    for name in SETS:
        expected = read_notebook(ROOT / exercises_of(name)).cells
        cells = read_notebook(place / "release" / name / f"{name}.ipynb").cells
        stubs, expected_stubs = ({marker(c): c["source"] for c in part if marker(c)} for part in (cells, expected))
        assert stubs == expected_stubs
        assert not any("course_stub" in cell["metadata"] or "SOLUTION" in cell["source"] for cell in cells)


@pytest.mark.slow
def test_nbgrader_gives_full_marks_no_marks_and_those_for_parts(graded):
    place, _ = graded
    with open(place / "grades.csv", encoding="utf-8", newline="") as file:
        scores = {(row["assignment"], row["student_id"]): float(row["score"]) for row in csv.DictReader(file)}
    for name in SETS:
        assert scores[name, "right"] == sum(entry["points"] for entry in load_set(name)["questions"])
        assert scores[name, "stub"] == 0
    first, _, parts, *_ = load_set(SETS[1])["questions"]
    assert scores[SETS[1], "warned"] == first["points"]
    assert parts["parts"]
    assert 0 < scores[SETS[1], "mistaken"] < parts["points"]


@pytest.mark.slow
def test_no_students_tries_count_for_another(graded):
    place, _ = graded
    assert not (place / "home").exists()


@pytest.mark.slow
def test_the_diagnosis_stands_in_nbgraders_feedback(graded):
    place, sentence = graded
    page = html.unescape((place / "feedback" / "mistaken" / SETS[1] / f"{SETS[1]}.html").read_text("utf-8"))
    assert sentence in page
    assert "FailedCheckError" in page
    page = (place / "feedback" / "right" / SETS[1] / f"{SETS[1]}.html").read_text("utf-8")
    assert sentence not in html.unescape(page)


def hand_in(place: Path, name: str, student: str, answers: dict[str, str]) -> None:
    """What nbgrader handed out, with these answers by question."""
    text = answered(place / "release" / name / f"{name}.ipynb", answers)
    path = place / "submitted" / student / name / f"{name}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")


def run_nbgrader(*arguments: str, place: Path) -> None:
    programs = [Path(find_spec("nbgrader").origin).parents[1] / "bin", Path(sys.executable).parent]  # it calls alembic
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "PATH": os.pathsep.join([*map(str, programs), os.environ["PATH"]]),
        "COURSE_HOME": str(place / "home"),
    }
    process = subprocess.run(
        [sys.executable, "-m", "nbgrader", *arguments],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-2000:]
