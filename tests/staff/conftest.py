"""A released set, and the sandbox that this machine has."""

import json

import pytest
from tiny_set import Q1, Q1_ANSWER, Q2, Q2_ANSWER, SEED, SET, SETUP, best_kind, need_sandbox, notebook

from course_staff.grading import asking, grade, sandbox
from course_staff.grading.prepare import prepare
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
def tiny(release_set, monkeypatch):
    """The released set of two questions and the folder of its solutions."""
    monkeypatch.setattr(asking, "GRACE", 1.5)
    return release_set(notebook(SETUP, Q1, Q1_ANSWER, Q2, Q2_ANSWER))


@pytest.fixture
def exercise_set(tiny):
    """The set of two questions, ready to be graded with hidden cases."""
    return prepare(SET, tiny, SEED)


@pytest.fixture
def run_command(tiny, tmp_path):
    """A function: `course grade` of the folder `class`, with more options, whether there is a sandbox or not."""
    command = ["grade", str(tmp_path / "class"), "--set", SET, "--seed", str(SEED), "--solutions", str(tiny), "--trust"]
    return lambda *options: main([*command, *options])


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with nothing in its folders, the working directory of the test."""
    for folder in ("notebooks", "solutions", "exercises", "course_utils/grading/sets"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def safe():
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
def warm(lanes, monkeypatch):
    """Grading in lanes that stay from test to test, for tests of what is found there: a start takes three seconds."""

    class Warm(grade.Lanes):
        def __init__(self, requested):
            assert {lane.kind for lane in requested} == {lanes[0].kind}
            super().__init__(lanes[: len(requested)])
            for lane in self.lanes:
                _start(lane)

        def close(self):
            pass

    monkeypatch.setattr(grade, "Lanes", Warm)
    monkeypatch.setattr(sandbox.Lane, "clear", lambda lane: None)
