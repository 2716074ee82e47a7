"""A released set, and the sandbox that this machine has."""

import json
from tempfile import mkdtemp

import psutil
import pytest
from tiny_set import Q1, Q1_ANSWER, Q2, Q2_ANSWER, SEED, SET, SETUP, best_kind, need_sandbox, notebook

from course_staff.grading import asking, grade, sandbox
from course_staff.grading.prepare import prepare
from course_staff.grading.worklist import find_submissions
from course_staff.release.release import set_entry
from course_staff.release.source import load_solutions
from course_utils.cli import main
from course_utils.grading import loading


@pytest.fixture
def release_set(tmp_path, monkeypatch):
    """A function that releases a notebook of solutions as the set; gives the notebook's path."""

    def release(text):
        folder = tmp_path / "private"
        folder.mkdir()
        (folder / f"{SET}.ipynb").write_text(text)
        monkeypatch.setattr(loading, "SETS", folder)
        entries = [set_entry(exercise) for exercise in load_solutions(folder / f"{SET}.ipynb")]
        (folder / f"{SET}.json").write_text(json.dumps({"name": SET, "questions": entries}))
        return folder / f"{SET}.ipynb"

    return release


@pytest.fixture
def tiny_solutions(release_set, monkeypatch):
    """The notebook of solutions to the released set of two questions."""
    monkeypatch.setattr(asking, "GRACE", 1.5)
    return release_set(notebook(SETUP, Q1, Q1_ANSWER, Q2, Q2_ANSWER))


@pytest.fixture
def exercise_set(tiny_solutions):
    """The set of two questions, ready to be graded with hidden cases."""
    return prepare(SET, tiny_solutions, SEED)


@pytest.fixture
def write_class(tmp_path):
    """A function: writes notebooks with these texts, by student, into the folder `class` or another; student to path."""

    def write(texts, folder="class"):
        (tmp_path / folder).mkdir(exist_ok=True)
        for name, text in texts.items():
            (tmp_path / folder / f"{name}.ipynb").write_text(text)
        return find_submissions(tmp_path / folder)

    return write


@pytest.fixture
def grade_class(write_class, tmp_path):
    """A function: student to grade of a new class; afterwards no process is left that was not there before."""

    def grade_texts(texts, exercise_set, sandbox_kind, jobs=2):
        submissions = write_class(texts, mkdtemp(dir=tmp_path))
        before = set(psutil.Process().children(recursive=True))
        records = {}
        grade.grade_all(submissions, exercise_set, sandbox_kind, jobs, records.__setitem__)
        assert set(psutil.Process().children(recursive=True)) <= before
        return records

    return grade_texts


@pytest.fixture(params=["bwrap", "fork", "fresh"])
def sandbox_kind(request):
    """Each kind of sandbox; what the machine lacks is skipped."""
    need_sandbox(request.param)
    return request.param


@pytest.fixture
def run_command(tiny_solutions, tmp_path):
    """A function: `course grade` of the folder `class` or another path, with or without a sandbox; returns the exit code."""
    fixed = ["--set", SET, "--seed", str(SEED), "--solutions", str(tiny_solutions), "--trust"]
    return lambda *options, path="class": main(["grade", str(tmp_path / path), *fixed, *options])


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with nothing in its folders, the working directory of the test."""
    for folder in ("notebooks", "solutions", "exercises", "course_utils/grading/sets"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def safe_kind():
    """The kind of sandbox that this machine has; hostile submissions are only tried where there is one."""
    need_sandbox()
    return best_kind()


@pytest.fixture(scope="session")
def lanes():
    """Two lanes, the first with a sandbox that has started."""
    pair = [sandbox.Lane(best_kind()) for _ in range(2)]
    _start(pair[0])
    yield pair
    for lane in pair:
        lane.close()


def _start(lane):
    """In this thread: a sandbox ends with the one that started it."""
    with lane.open_process():
        pass


@pytest.fixture
def warm_lanes(lanes, monkeypatch):
    """Grading in lanes that stay from test to test, for tests of what is found there: a start takes three seconds."""

    class Warm(grade.LanePool):
        def __init__(self, requested):
            assert {lane.kind for lane in requested} == {lanes[0].kind}
            super().__init__(lanes[: len(requested)])
            for lane in self.lanes:
                _start(lane)

        def close(self):
            pass

    monkeypatch.setattr(grade, "LanePool", Warm)
    monkeypatch.setattr(sandbox.Lane, "clear", lambda lane: None)
